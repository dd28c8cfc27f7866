// How stores tell their content from what is there in its place: sums of blocks. And which blocks a sync has yet to
// cover.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "varve/pager/kernel.hpp"

namespace varve::pager::detail {

/// Tells content from other content and from torn content; no defence against who wants two to be alike. Four lanes,
/// so that the multiplications overlap. Neither 0 nor all ones. `data` is a multiple of 32 bytes, or what is over
/// counts as absent.
[[nodiscard]] inline std::uint64_t sum_of(std::span<const std::byte> data) noexcept {
    constexpr std::uint64_t prime = 0x9e3779b97f4a7c15u;
    std::array<std::uint64_t, 4> lanes{1, 2, 3, 4};
    for (std::size_t i = 0; i + 32 <= data.size(); i += 32) {
        for (std::size_t k = 0; k < 4; ++k) {
            std::uint64_t word = 0;
            std::memcpy(&word, data.data() + i + k * 8, 8);
            lanes[k] = std::rotl((lanes[k] ^ word) * prime, 29);
        }
    }
    std::uint64_t sum = data.size();
    for (const std::uint64_t lane : lanes) {
        sum = (sum ^ lane ^ (lane >> 31)) * prime;
    }
    sum ^= sum >> 32;
    return sum != 0 && ~sum != 0 ? sum : 1;
}

/// A sum of each block of 4096 bytes that was written, or read, since this was made (8 bytes each, committed as they
/// are used). Several threads may call it at once, but never two for the same block. Invariant: a block whose sum is
/// known is accepted only with the content that was last written, or seen, there.
class block_sums {
public:
    static constexpr std::size_t block = 4096;

    /// For offsets below `capacity`, rounded up: the last page of a space may reach beyond. Throws std::system_error.
    explicit block_sums(byte_count capacity)
        : blocks_((capacity.value + largest_page - 1) / largest_page * (largest_page / block)),
          sums_({blocks_ * sizeof(std::uint64_t)}, {block}) {}

    [[nodiscard]] std::size_t blocks() const noexcept { return blocks_; }
    [[nodiscard]] bool within(std::uint64_t at, std::uint64_t bytes) const noexcept {
        return at <= blocks_ * block && bytes <= blocks_ * block - at;
    }

    /// `content` was read from `at`. Gives how many bytes of it are what they must be; what is seen for the first time
    /// is remembered. Parts of blocks are believed.
    [[nodiscard]] std::size_t accept(std::uint64_t at, std::span<const std::byte> content) noexcept {
        for (std::size_t done = 0; done + block <= content.size() && at % block == 0; done += block) {
            std::uint64_t& known = of(at + done);
            const std::uint64_t sum = sum_of(content.subspan(done, block));
            if (known == unknown) {
                known = sum;
            } else if (known != sum) {
                return done;
            }
        }
        return content.size();
    }
    /// Whether `content`, all that could be read of the block at `at`, may stand there; nothing is remembered.
    [[nodiscard]] bool agrees(std::uint64_t at, std::span<const std::byte> content) noexcept {
        return of(at) == unknown || (content.size() == block && of(at) == sum_of(content));
    }
    /// A write came to its end, or (not `whole`) stopped anywhere: then nothing is accepted until the next one.
    void wrote(std::uint64_t at, std::span<const std::byte> out, bool whole) noexcept {
        for_blocks(at, out.size(), [&](std::size_t first, std::uint64_t& known, bool all_of_it) {
            known = !whole ? torn : all_of_it ? sum_of(out.subspan(first, block)) : unknown;
        });
    }
    /// It reads as zero from now on, or (not `done`) as zero or as before.
    void discarded(std::uint64_t at, std::uint64_t bytes, bool done) noexcept {
        static constexpr std::array<std::byte, block> zeros{};
        static const std::uint64_t sum = sum_of(zeros);
        for_blocks(at, bytes, [&](std::size_t, std::uint64_t& known, bool all_of_it) {
            known = !all_of_it || !done ? unknown : sum;
        });
    }

private:
    static constexpr std::size_t largest_page = std::size_t{2} << 20;
    static constexpr std::uint64_t unknown = 0;
    static constexpr std::uint64_t torn = ~std::uint64_t{0};  ///< no sum: sum_of never gives it

    [[nodiscard]] std::uint64_t& of(std::uint64_t at) noexcept {
        return reinterpret_cast<std::uint64_t*>(sums_.start())[at / block];
    }
    /// Calls `visit(where in the transfer, the block's sum, whether all of the block)`.
    template <class Visitor>
    void for_blocks(std::uint64_t at, std::uint64_t bytes, Visitor visit) noexcept {
        for (std::uint64_t b = at / block; b * block < at + bytes; ++b) {
            const bool all_of_it = b * block >= at && (b + 1) * block <= at + bytes;
            visit(static_cast<std::size_t>(b * block - std::min(at, b * block)), of(b * block), all_of_it);
        }
    }

    std::size_t blocks_;
    kernel::memory sums_;
};

/// Which blocks of a file were written since the last sync that succeeded. `add` may be called by many threads, after
/// the write and with the store's lock shared; the rest by one, with the lock exclusive where it says so.
class unsynced {
public:
    explicit unsynced(std::size_t blocks)
        : words_((blocks + 63) / 64),
          written_(std::make_unique<std::atomic<std::uint64_t>[]>(words_)),
          syncing_(words_) {}

    void add(std::size_t block) noexcept {
        written_[block / 64].fetch_or(std::uint64_t{1} << (block % 64), std::memory_order_relaxed);
    }
    /// A sync begins: what is added from here on is for the next one. Exclusive.
    void begin() noexcept {
        for (std::size_t i = 0; i < words_; ++i) {
            syncing_[i] = written_[i].exchange(0, std::memory_order_relaxed);
        }
    }
    /// It ended. If it failed, the blocks are unsynced as before, and in doubt.
    void end(bool succeeded) noexcept {
        if (succeeded) {
            return;
        }
        in_doubt_ = true;
        for (std::size_t i = 0; i < words_; ++i) {
            written_[i].fetch_or(syncing_[i], std::memory_order_relaxed);
        }
    }
    /// After a sync that failed the kernel may take for clean what never reached the disk, and a later sync would
    /// succeed without it. So `write_again(block)` must write every block that is in doubt once more. 0, or the first
    /// errno value that one of them returned: then all are in doubt as before. Exclusive.
    template <class Rewrite>
    int resolve(Rewrite write_again) noexcept {
        if (!in_doubt_) {
            return 0;
        }
        int error = 0;
        for (std::size_t i = 0; i < words_; ++i) {
            for (std::uint64_t left = written_[i].load(std::memory_order_relaxed); left != 0; left &= left - 1) {
                const int failed = write_again(i * 64 + static_cast<std::size_t>(std::countr_zero(left)));
                error = error != 0 ? error : failed;
            }
        }
        in_doubt_ = error != 0;
        return error;
    }

private:
    std::size_t words_;
    std::unique_ptr<std::atomic<std::uint64_t>[]> written_;
    std::vector<std::uint64_t> syncing_;
    bool in_doubt_ = false;
};

}  // namespace varve::pager::detail
