// A disk that fails and loses power on demand, as a medium for stores: writes reach it at a sync or, each sector for
// itself, in any order before.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "varve/pager/stores/medium.hpp"

namespace test {

using namespace varve;

/// What becomes of unsynced writes when a sync fails.
enum class after_failure {
    keeps,  ///< they read as written and count as clean: the next sync leaves them out (ext4, XFS)
    drops   ///< some reached the disk, the others read as before (dm-flakey, btrfs)
};

class disk {
public:
    explicit disk(unsigned seed) : random_(seed) {}

    // How it behaves.
    bool syncs = true;             ///< false: a sync succeeds and does nothing
    std::uint64_t operations = 0;  ///< writes, discards and syncs so far
    std::uint64_t failing = 0;     ///< the operation that fails, counted from 1; 0: none
    bool failed = false;           ///< it did
    after_failure then = after_failure::keeps;
    std::function<void()> before_operation;

    pager::io_result read(std::uint64_t at, std::span<std::byte> in) const {
        const std::size_t n = at >= cached_.size() ? 0 : std::min<std::size_t>(in.size(), cached_.size() - at);
        std::copy_n(cached_.data() + at, n, in.data());
        return {n, 0};
    }
    pager::io_result write(std::uint64_t at, std::span<const std::byte> out) {
        const bool fails = begin();
        const std::size_t n = fails ? out.size() / 2 : out.size();
        if (cached_.size() < at + n) {
            cached_.resize(at + n);
        }
        std::copy_n(out.data(), n, cached_.data() + at);
        remember(at, n);
        return {n, fails ? EIO : 0};
    }
    int discard(std::uint64_t at, std::uint64_t bytes) {
        if (begin()) {
            return EIO;
        }
        if (at < cached_.size()) {
            const std::uint64_t n = std::min<std::uint64_t>(bytes, cached_.size() - at);
            std::fill_n(cached_.data() + at, n, std::byte{0});
            remember(at, n);
        }
        return 0;
    }
    int sync() {
        if (begin()) {
            fail_sync();
            return EIO;
        }
        if (syncs) {
            durable_.resize(cached_.size());
            std::erase_if(unsynced_, [this](const auto& sector) {
                if (sector.second.back().clean) {
                    return false;
                }
                put(durable_, sector.first, sector.second.back().content);
                return true;
            });
        }
        return 0;
    }
    [[nodiscard]] std::uint64_t size() const { return cached_.size(); }
    void resize(std::uint64_t bytes) {
        cached_.resize(bytes);
        durable_.resize(bytes);
    }

    /// The disk after a power cut at this moment: of each sector, some version that was written since it was synced,
    /// or the synced one; and as long as it was, or is, or between.
    [[nodiscard]] std::shared_ptr<disk> cut() {
        auto after = std::make_shared<disk>(static_cast<unsigned>(random_()));
        after->durable_ = durable_;
        const std::size_t longest = std::max(cached_.size(), durable_.size());
        after->durable_.resize(longest);
        // Sometimes nearly all of it arrives, sometimes nearly nothing.
        const auto arrives = random_() % 101;
        for (const auto& [sector, versions] : unsynced_) {
            if (random_() % 100 < arrives) {
                const bool last = random_() % 2 == 0;
                put(after->durable_, sector,
                    versions[last ? versions.size() - 1 : random_() % versions.size()].content);
            }
        }
        const std::size_t shortest = std::min(cached_.size(), durable_.size());
        const std::size_t between = shortest + (longest == shortest ? 0 : random_() % (longest - shortest));
        after->durable_.resize(std::array{durable_.size(), cached_.size(), between}[random_() % 3]);
        after->cached_ = after->durable_;
        return after;
    }
    /// The disk as a process finds it that is started after another was killed at this moment.
    [[nodiscard]] std::shared_ptr<disk> after_kill() {
        auto after = std::make_shared<disk>(static_cast<unsigned>(random_()));
        after->cached_ = cached_;
        after->durable_ = durable_;
        after->unsynced_ = unsynced_;
        after->syncs = syncs;
        return after;
    }

private:
    static constexpr std::size_t sector_bytes = 512;
    struct version {
        std::array<std::byte, sector_bytes> content{};
        bool clean = false;
    };

    bool begin() {
        if (before_operation) {
            before_operation();
        }
        const bool fails = ++operations == failing;
        failed = failed || fails;
        return fails;
    }
    void remember(std::uint64_t at, std::uint64_t n) {
        for (std::uint64_t s = at / sector_bytes; n != 0 && s * sector_bytes < at + n; ++s) {
            version v;
            const std::size_t start = s * sector_bytes;
            std::copy_n(cached_.data() + start, std::min(sector_bytes, cached_.size() - start), v.content.data());
            unsynced_[s].push_back(v);
        }
    }
    static void put(std::vector<std::byte>& to, std::uint64_t sector,
                    const std::array<std::byte, sector_bytes>& content) {
        const std::size_t start = sector * sector_bytes;
        if (start < to.size()) {
            std::copy_n(content.data(), std::min(sector_bytes, to.size() - start), to.data() + start);
        }
    }
    void fail_sync() {
        for (auto& [sector, versions] : unsynced_) {
            for (version& v : versions) {
                v.clean = true;
            }
            if (then == after_failure::drops) {
                durable_.resize(cached_.size());
                if (random_() % 2 == 0) {
                    put(durable_, sector, versions.back().content);
                }
                std::array<std::byte, sector_bytes> kept{};
                const std::size_t start = sector * sector_bytes;
                std::copy_n(durable_.data() + start, std::min(sector_bytes, durable_.size() - start), kept.data());
                put(cached_, sector, kept);
            }
        }
        if (then == after_failure::drops) {
            unsynced_.clear();
        }
    }

    std::mt19937 random_;
    std::vector<std::byte> cached_, durable_;
    std::map<std::uint64_t, std::vector<version>> unsynced_;  ///< the last one is what is read
};

/// What a store holds of it.
class simulated_file {
public:
    explicit simulated_file(std::shared_ptr<disk> d) : disk_(std::move(d)) {}
    pager::io_result read(std::uint64_t at, std::span<std::byte> in) noexcept { return disk_->read(at, in); }
    pager::io_result write(std::uint64_t at, std::span<const std::byte> out) noexcept { return disk_->write(at, out); }
    int discard(std::uint64_t at, std::uint64_t bytes) noexcept { return disk_->discard(at, bytes); }
    int sync() noexcept { return disk_->sync(); }
    [[nodiscard]] std::uint64_t size() const { return disk_->size(); }
    void resize(std::uint64_t bytes) { disk_->resize(bytes); }
    [[nodiscard]] std::string name() const { return "simulated disk"; }

private:
    std::shared_ptr<disk> disk_;
};
static_assert(pager::medium<simulated_file>);

}  // namespace test
