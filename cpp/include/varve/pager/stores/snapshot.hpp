// A file that survives crashes: what a later attachment finds is the content of the last commit, whole.
//
// Layout, little-endian, in units of the page size P (N pages of content):
//   0          header A and, 4096 bytes further, header B, in as many pages as these 8192 bytes need
//   T0, T1     two tables of N 64-bit entries: 0 for a page of zeros, else 1 + the slot that holds it
//   D          slots of P bytes each
// Writes never touch a slot that the last commit refers to (copy on write). A commit makes the slots durable, then
// writes the table that the last header does not name, makes it durable, then writes the older header, and makes it
// durable. A crash before that last step leaves the last commit as it was: headers and tables carry checksums, and the
// newest header whose table agrees counts. Slots that no table names are free.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "varve/pager/stores/file.hpp"

namespace varve::pager {

class snapshot_store {
public:
    /// Attaches to the last commit of `path`, or creates it, all zero. Throws std::system_error, or std::runtime_error
    /// if the file is something else, was made for another size, or has no whole commit.
    snapshot_store(const std::filesystem::path& path, byte_count capacity, byte_count page)
        : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)),
          page_(page.value),
          pages_((capacity.value + page.value - 1) / page.value),
          state_(std::make_unique<state>()) {
        struct stat status {};
        if (!fd_.open() || ::fstat(fd_.get(), &status) != 0) {
            throw std::system_error(errno, std::generic_category(), "varve: " + path.string());
        }
        state_->current.resize(pages_);
        if (status.st_size == 0) {
            create(path);
        } else {
            attach(path, static_cast<std::uint64_t>(status.st_size));
        }
    }

    /// Commits since the file was made.
    [[nodiscard]] std::uint64_t generation() const noexcept { return state_->generation; }

    io_result read(store_offset at, std::span<std::byte> in) noexcept {
        const std::shared_lock guard(state_->lock);
        for (std::size_t done = 0; done < in.size(); done += page_) {
            const std::size_t page = to_number(at + done) / page_;
            if (page >= pages_) {
                return {done, 0};
            }
            const std::uint64_t entry = state_->current[page];
            if (entry == 0) {
                std::memset(in.data() + done, 0, page_);
            } else if (const io_result r = detail::read_fully(fd_.get(), in.data() + done, page_, slot_at(entry));
                       !r.complete(page_)) {
                return {done + r.bytes, r.error};
            }
        }
        return {in.size(), 0};
    }

    io_result write(store_offset at, std::span<const std::byte> out) noexcept {
        const std::shared_lock guard(state_->lock);
        for (std::size_t done = 0; done < out.size(); done += page_) {
            const std::size_t page = to_number(at + done) / page_;
            if (page >= pages_) {
                return {done, ENOSPC};
            }
            std::uint64_t entry = state_->current[page];
            const bool fresh = entry == 0 || entry == state_->committed[page];
            if (fresh) {
                entry = take_slot();
            }
            const io_result r = detail::write_fully(fd_.get(), out.data() + done, page_, slot_at(entry));
            if (!r.complete(page_)) {
                if (fresh) {
                    return_slot(entry);
                }
                return {done + r.bytes, r.error};
            }
            state_->current[page] = entry;
        }
        return {out.size(), 0};
    }

    int discard(store_offset at, byte_count n) noexcept {
        const std::shared_lock guard(state_->lock);
        for (std::size_t page = to_number(at) / page_; page < std::min(pages_, (to_number(at) + n.value) / page_);
             ++page) {
            const std::uint64_t entry = std::exchange(state_->current[page], 0);
            if (entry != 0 && entry != state_->committed[page]) {
                return_slot(entry);
            }
        }
        return 0;
    }

    /// Makes the slots durable; a later attachment still finds the last commit only.
    int sync() noexcept { return ::fdatasync(fd_.get()) == 0 ? 0 : errno; }

    int commit() noexcept {
        const std::unique_lock guard(state_->lock);
        if (const int error = write_commit(); error != 0) {
            return error;
        }
        for (std::size_t page = 0; page < pages_; ++page) {
            const std::uint64_t old = state_->committed[page];
            if (old != 0 && old != state_->current[page]) {
                return_slot(old);
            }
        }
        state_->committed = state_->current;
        return 0;
    }

private:
    struct header {
        std::array<char, 8> magic{'V', 'A', 'R', 'V', 'E', 'P', 'G', '1'};
        std::uint64_t page_bytes = 0, pages = 0;
        std::uint64_t generation = 0;
        std::uint64_t table_sum = 0;
        std::uint64_t sum = 0;  ///< of all fields before
    };
    /// Behind a pointer, so that the store can be moved.
    struct state {
        std::shared_mutex lock;  ///< shared by transfers, which are of different pages; exclusive for a commit
        std::vector<std::uint64_t> current, committed;
        std::mutex slots_lock;
        std::vector<std::uint64_t> free;  ///< entries
        std::uint64_t next = 1;           ///< the first entry never used
        std::uint64_t generation = 0;
    };

    /// FNV-1a, over 64-bit words: the sums tell torn writes from whole ones.
    static std::uint64_t checksum(const void* data, std::size_t bytes) noexcept {
        std::uint64_t sum = 0xcbf29ce484222325u;
        for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
            std::uint64_t word = 0;
            std::memcpy(&word, static_cast<const std::byte*>(data) + i, 8);
            sum = (sum ^ word) * 0x100000001b3u;
            sum ^= sum >> 32;
        }
        return sum;
    }

    [[nodiscard]] std::uint64_t table_bytes() const noexcept { return pages_ * sizeof(std::uint64_t); }
    [[nodiscard]] std::uint64_t rounded(std::uint64_t n) const noexcept { return (n + page_ - 1) / page_ * page_; }
    [[nodiscard]] std::uint64_t table_at(std::uint64_t generation) const noexcept {
        return rounded(8192) + generation % 2 * rounded(table_bytes());
    }
    [[nodiscard]] std::uint64_t slot_at(std::uint64_t entry) const noexcept {
        return rounded(8192) + 2 * rounded(table_bytes()) + (entry - 1) * page_;
    }

    std::uint64_t take_slot() noexcept {
        const std::lock_guard guard(state_->slots_lock);
        if (state_->free.empty()) {
            return state_->next++;
        }
        const std::uint64_t entry = state_->free.back();
        state_->free.pop_back();
        return entry;
    }
    void return_slot(std::uint64_t entry) noexcept {
        const std::lock_guard guard(state_->slots_lock);
        try {
            state_->free.push_back(entry);
        } catch (const std::bad_alloc&) {
            // The slot stays unused until the file is attached again.
        }
    }

    int write_commit() noexcept {
        header h;
        h.page_bytes = page_;
        h.pages = pages_;
        h.generation = state_->generation + 1;
        h.table_sum = checksum(state_->current.data(), table_bytes());
        h.sum = checksum(&h, sizeof h - sizeof h.sum);
        const auto* table = reinterpret_cast<const std::byte*>(state_->current.data());
        if (const int error = sync(); error != 0) {
            return error;
        }
        if (const io_result r = detail::write_fully(fd_.get(), table, table_bytes(), table_at(h.generation));
            !r.complete(table_bytes())) {
            return r.error != 0 ? r.error : EIO;
        }
        if (const int error = sync(); error != 0) {
            return error;
        }
        if (const io_result r = detail::write_fully(fd_.get(), reinterpret_cast<const std::byte*>(&h), sizeof h,
                                                    h.generation % 2 * 4096);
            !r.complete(sizeof h)) {
            return r.error != 0 ? r.error : EIO;
        }
        if (const int error = sync(); error != 0) {
            return error;
        }
        state_->generation = h.generation;
        return 0;
    }

    void create(const std::filesystem::path& path) {
        state_->committed = state_->current;
        if (const int error = write_commit(); error != 0) {
            throw std::system_error(error, std::generic_category(), "varve: " + path.string());
        }
        const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
        const kernel::descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (!directory.open() || ::fsync(directory.get()) != 0) {
            throw std::system_error(errno, std::generic_category(), "varve: " + folder.string());
        }
    }

    void attach(const std::filesystem::path& path, std::uint64_t file_bytes) {
        bool recognised = false;
        std::vector<std::uint64_t> table(pages_);
        for (unsigned which = 0; which < 2; ++which) {
            header h;
            if (!detail::read_fully(fd_.get(), reinterpret_cast<std::byte*>(&h), sizeof h, which * 4096)
                     .complete(sizeof h) ||
                h.magic != header{}.magic || h.sum != checksum(&h, sizeof h - sizeof h.sum)) {
                continue;
            }
            if (h.page_bytes != page_ || h.pages != pages_) {
                throw std::runtime_error("varve: " + path.string() + " was made for " + std::to_string(h.pages) +
                                         " pages of " + std::to_string(h.page_bytes) + " bytes");
            }
            if (h.generation % 2 != which || (recognised && h.generation < state_->generation) ||
                !detail::read_fully(fd_.get(), reinterpret_cast<std::byte*>(table.data()), table_bytes(),
                                    table_at(h.generation))
                     .complete(table_bytes()) ||
                checksum(table.data(), table_bytes()) != h.table_sum) {
                continue;
            }
            recognised = true;
            state_->generation = h.generation;
            state_->current = table;
        }
        if (!recognised && blank()) {
            // Whoever created it did not get as far as the first header.
            create(path);
            return;
        }
        if (!recognised) {
            throw std::runtime_error("varve: " + path.string() + " holds no whole commit of a paged region");
        }
        state_->committed = state_->current;
        find_free_slots(path, file_bytes);
    }

    [[nodiscard]] bool blank() const noexcept {
        std::array<std::byte, 8192> headers{};
        (void)detail::read_fully(fd_.get(), headers.data(), headers.size(), 0);
        return std::all_of(headers.begin(), headers.end(), [](std::byte b) { return b == std::byte{0}; });
    }

    void find_free_slots(const std::filesystem::path& path, std::uint64_t file_bytes) {
        const std::uint64_t data = slot_at(1);
        const std::uint64_t slots = file_bytes <= data ? 0 : (file_bytes - data + page_ - 1) / page_;
        std::vector<bool> used(slots);
        for (const std::uint64_t entry : state_->current) {
            if (entry > slots || (entry != 0 && used[entry - 1])) {
                throw std::runtime_error("varve: " + path.string() + " refers to a slot that is not there, or twice");
            }
            if (entry != 0) {
                used[entry - 1] = true;
            }
        }
        state_->next = slots + 1;
        for (std::uint64_t i = slots; i-- > 0;) {
            if (!used[i]) {
                state_->free.push_back(i + 1);
            }
        }
    }

    kernel::descriptor fd_;
    std::size_t page_;
    std::size_t pages_;
    std::unique_ptr<state> state_;
};
static_assert(store<snapshot_store> && detail::committing<snapshot_store>);

}  // namespace varve::pager
