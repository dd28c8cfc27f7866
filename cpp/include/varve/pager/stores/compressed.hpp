// A store in the memory of this process that keeps pages compressed with LZ4.
#pragma once

#include <lz4.h>

#include <atomic>
#include <memory>
#include <new>

#include "varve/pager/store.hpp"

namespace varve::pager {

/// Pages of zeros take nothing, pages that do not shrink are kept as they are. Nothing outlives the process.
class compressed_store {
public:
    /// `page` is the page size of the space that it serves: transfers are whole multiples of it. Throws std::bad_alloc.
    compressed_store(byte_count capacity, byte_count page)
        : page_(page.value),
          count_((capacity.value + page.value - 1) / page.value),
          slots_(std::make_unique<slot[]>(count_)),
          stored_(std::make_unique<std::atomic<std::size_t>>(0)) {}

    io_result read(store_offset at, std::span<std::byte> in) noexcept {
        for (std::size_t done = 0; done < in.size(); done += page_) {
            const std::size_t index = index_of(at + done);
            if (index >= count_) {
                return {done, 0};
            }
            if (!unpack(slots_[index], in.data() + done)) {
                return {done, EIO};
            }
        }
        return {in.size(), 0};
    }

    io_result write(store_offset at, std::span<const std::byte> out) noexcept {
        for (std::size_t done = 0; done < out.size(); done += page_) {
            const std::size_t index = index_of(at + done);
            if (index >= count_) {
                return {done, ENOSPC};
            }
            if (!pack(slots_[index], out.data() + done)) {
                return {done, ENOMEM};
            }
        }
        return {out.size(), 0};
    }

    int discard(store_offset at, byte_count n) noexcept {
        for (std::size_t done = 0; done < n.value && index_of(at + done) < count_; done += page_) {
            replace(slots_[index_of(at + done)], nullptr, 0);
        }
        return 0;
    }
    int sync() noexcept { return 0; }

    /// Bytes that the pages take, compressed.
    [[nodiscard]] byte_count stored() const noexcept { return {stored_->load()}; }

private:
    struct slot {
        std::unique_ptr<std::byte[]> data;
        std::uint32_t bytes = 0;  ///< 0: zeros; the page size: not compressed
    };

    /// Memory that compressing needs, once per thread.
    struct workspace {
        explicit workspace(std::size_t page) noexcept
            : bytes(static_cast<std::size_t>(LZ4_compressBound(static_cast<int>(page)))),
              state(new (std::nothrow) std::byte[static_cast<std::size_t>(LZ4_sizeofState())]),
              output(new (std::nothrow) std::byte[bytes]) {}
        std::size_t bytes;
        std::unique_ptr<std::byte[]> state;
        std::unique_ptr<std::byte[]> output;
    };

    [[nodiscard]] std::size_t index_of(store_offset at) const noexcept { return to_number(at) / page_; }

    void replace(slot& s, std::unique_ptr<std::byte[]> data, std::uint32_t bytes) noexcept {
        stored_->fetch_add(std::size_t{bytes} - s.bytes, std::memory_order_relaxed);
        s.data = std::move(data);
        s.bytes = bytes;
    }

    [[nodiscard]] bool unpack(const slot& s, std::byte* to) const noexcept {
        if (s.bytes == 0) {
            std::memset(to, 0, page_);
            return true;
        }
        if (s.bytes == page_) {
            std::memcpy(to, s.data.get(), page_);
            return true;
        }
        return LZ4_decompress_safe(reinterpret_cast<const char*>(s.data.get()), reinterpret_cast<char*>(to),
                                   static_cast<int>(s.bytes), static_cast<int>(page_)) == static_cast<int>(page_);
    }

    [[nodiscard]] bool pack(slot& s, const std::byte* from) noexcept {
        if (from[0] == std::byte{0} && std::memcmp(from, from + 1, page_ - 1) == 0) {
            replace(s, nullptr, 0);
            return true;
        }
        thread_local workspace space(page_);
        if (space.bytes < page_ || space.state == nullptr || space.output == nullptr) {
            space = workspace(page_);
        }
        std::size_t length = 0;
        if (space.state != nullptr && space.output != nullptr) {
            length = static_cast<std::size_t>(LZ4_compress_fast_extState(
                space.state.get(), reinterpret_cast<const char*>(from), reinterpret_cast<char*>(space.output.get()),
                static_cast<int>(page_), static_cast<int>(page_ - 1), 1));
        }
        const std::byte* source = length == 0 ? from : space.output.get();
        length = length == 0 ? page_ : length;
        std::unique_ptr<std::byte[]> data(new (std::nothrow) std::byte[length]);
        if (data == nullptr) {
            return false;
        }
        std::memcpy(data.get(), source, length);
        replace(s, std::move(data), static_cast<std::uint32_t>(length));
        return true;
    }

    std::size_t page_;
    std::size_t count_;
    std::unique_ptr<slot[]> slots_;
    std::unique_ptr<std::atomic<std::size_t>> stored_;
};
static_assert(store<compressed_store> && detail::discarding<compressed_store>);

}  // namespace varve::pager
