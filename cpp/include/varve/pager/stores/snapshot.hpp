// A file that survives crashes: what a later attachment finds is the content of the last commit, whole.
//
// Layout, little-endian, in units of the page size P (N pages of content):
//   0          header A and, 4096 bytes further, header B, in as many pages as these 8192 bytes need
//   T0, T1     two tables of N entries of 16 bytes: the slot that holds the page, counted from 1, or 0 for a page of
//              zeros, and the sum of its content
//   D          slots of P bytes each
// A commit writes the table that the last header does not name, makes it and the slots durable, then writes the older
// header, and makes that durable. A crash before that last step leaves the last commit as it was: headers and tables
// carry sums, and the newest header whose table agrees counts. Slots that no table names are free.
//
// Invariant: a slot that the last commit names, or that a commit which failed since may have named durably, is *sealed*
// and not written to (copy on write): whichever of the two headers a later attachment finds, its slots are whole.
// Invariant: before an attachment changes anything, the header that it found is durable: it may have been written by a
// process that was killed before the last step.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "varve/pager/stores/medium.hpp"

namespace varve::pager {

/// Snapshots on a medium. A page that does not come back as it was written fails the read with EIO.
template <medium M>
class basic_snapshot_store {
public:
    static constexpr bool recovers_sync = true;

    /// Attaches to the last commit of `file`, or creates it, all zero. Throws std::system_error, or std::runtime_error
    /// if the file is something else, was made for another size, or has no whole commit; with `attach`, also if it
    /// holds nothing at all.
    basic_snapshot_store(M file, byte_count capacity, byte_count page, opening how)
        : file_(std::move(file)),
          page_(page.value),
          pages_((capacity.value + page.value - 1) / page.value),
          state_(std::make_unique<state>(pages_, page_)) {
        if (file_.size() == 0 && how == opening::attach_or_create) {
            create();
        } else {
            attach(how);
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
            if (const int error = fetch(state_->current[page], in.subspan(done, page_)); error != 0) {
                return {done, error};
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
            entry& now = state_->current[page];
            const bool fresh = now.slot == 0 || sealed(now.slot);
            const std::uint64_t slot = fresh ? take_slot() : now.slot;
            const std::span<const std::byte> content = out.subspan(done, page_);
            if (const io_result r = file_.write(slot_at(slot), content); !r.complete(page_)) {
                if (fresh) {
                    return_slot(slot);
                }
                return {done + r.bytes, r.error};
            }
            now = {slot, detail::sum_of(content)};
            state_->pending.add(page);
        }
        return {out.size(), 0};
    }

    int discard(store_offset at, byte_count n) noexcept {
        const std::shared_lock guard(state_->lock);
        for (std::size_t page = to_number(at) / page_; page < std::min(pages_, (to_number(at) + n.value) / page_);
             ++page) {
            const entry old = std::exchange(state_->current[page], entry{});
            if (old.slot != 0 && !sealed(old.slot)) {
                return_slot(old.slot);
            }
        }
        return 0;
    }

    /// Makes the slots durable; a later attachment still finds the last commit only.
    int sync() noexcept {
        const std::lock_guard one_at_a_time(state_->syncing);
        {
            const std::unique_lock guard(state_->lock);
            if (const int error = begin_sync(); error != 0) {
                return error;
            }
        }
        return end_sync();
    }

    /// After a sync or a commit that failed it writes what was written since the last good one again, from what the
    /// medium still has. EIO if that is not what was written: then it fails until those pages are written anew.
    int commit() noexcept {
        const std::lock_guard one_at_a_time(state_->syncing);
        const std::unique_lock guard(state_->lock);
        if (const int error = write_commit(); error != 0) {
            return error;
        }
        free_what_is_not_named();
        return 0;
    }

private:
    struct header {
        std::array<char, 8> magic{'V', 'A', 'R', 'V', 'E', 'P', 'G', '2'};
        std::uint64_t page_bytes = 0, pages = 0;
        std::uint64_t generation = 0;
        std::uint64_t table_sum = 0;
        std::uint64_t unused[2]{};
        std::uint64_t sum = 0;  ///< of all fields before
        [[nodiscard]] std::uint64_t own_sum() const noexcept {
            header h = *this;
            h.sum = 0;
            return detail::sum_of(std::as_bytes(std::span(&h, 1)));
        }
    };
    static_assert(sizeof(header) % 32 == 0 && sizeof(header) <= 512);
    struct entry {
        std::uint64_t slot = 0;
        std::uint64_t sum = 0;
    };

    /// Behind a pointer, so that the store can be moved.
    struct state {
        state(std::size_t pages, std::size_t page_bytes)
            : current(pages + pages % 2), pending(pages), buffer(page_bytes) {}
        std::shared_mutex lock;      ///< shared by transfers, which are of different pages; exclusive for a commit
        std::vector<entry> current;  ///< an even number of them, as sum_of wants it
        std::vector<bool> sealed;    ///< by slot - 1; what lies beyond its end is not
        std::mutex slots_lock;
        std::vector<std::uint64_t> free;
        std::uint64_t next = 1;  ///< the first slot never used
        std::uint64_t generation = 0;
        std::mutex syncing;
        detail::unsynced pending;       ///< by page
        std::vector<std::byte> buffer;  ///< of one page, for `resolve`
    };

    [[nodiscard]] std::uint64_t table_bytes() const noexcept { return state_->current.size() * sizeof(entry); }
    [[nodiscard]] std::uint64_t rounded(std::uint64_t n) const noexcept { return (n + page_ - 1) / page_ * page_; }
    [[nodiscard]] std::uint64_t table_at(std::uint64_t generation) const noexcept {
        return rounded(8192) + generation % 2 * rounded(table_bytes());
    }
    [[nodiscard]] std::uint64_t slot_at(std::uint64_t slot) const noexcept {
        return rounded(8192) + 2 * rounded(table_bytes()) + (slot - 1) * page_;
    }
    [[nodiscard]] bool sealed(std::uint64_t slot) const noexcept {
        return slot - 1 < state_->sealed.size() && state_->sealed[slot - 1];
    }

    /// The content that `from` names. 0 or an errno value.
    int fetch(const entry& from, std::span<std::byte> in) noexcept {
        if (from.slot == 0) {
            std::memset(in.data(), 0, in.size());
            return 0;
        }
        const io_result r = file_.read(slot_at(from.slot), in);
        if (r.complete(in.size())) {
            return detail::sum_of(in) == from.sum ? 0 : EIO;
        }
        return r.error != 0 ? r.error : EIO;
    }

    std::uint64_t take_slot() noexcept {
        const std::lock_guard guard(state_->slots_lock);
        if (state_->free.empty()) {
            return state_->next++;
        }
        const std::uint64_t slot = state_->free.back();
        state_->free.pop_back();
        return slot;
    }
    void return_slot(std::uint64_t slot) noexcept {
        const std::lock_guard guard(state_->slots_lock);
        try {
            state_->free.push_back(slot);
        } catch (const std::bad_alloc&) {
            // The slot stays unused until the file is attached again.
        }
    }

    /// With the lock exclusive. 0 or an errno value.
    int begin_sync() noexcept {
        const int error = state_->pending.resolve([this](std::size_t page) {
            const entry& now = state_->current[page];
            if (now.slot == 0) {
                return 0;
            }
            if (const int lost = fetch(now, state_->buffer); lost != 0) {
                return lost;
            }
            return store_at(slot_at(now.slot), state_->buffer);
        });
        if (error == 0) {
            state_->pending.begin();
        }
        return error;
    }
    int end_sync() noexcept {
        const int error = file_.sync();
        state_->pending.end(error == 0);
        return error;
    }
    int store_at(std::uint64_t at, std::span<const std::byte> bytes) noexcept {
        const io_result r = file_.write(at, bytes);
        return r.complete(bytes.size()) ? 0 : r.error != 0 ? r.error : EIO;
    }
    int write_header(const header& h) noexcept {
        return store_at(h.generation % 2 * 4096, std::as_bytes(std::span(&h, 1)));
    }

    /// Seals what the table names now, in addition to what is sealed already. 0 or ENOMEM.
    int seal() noexcept {
        try {
            state_->sealed.resize(state_->next - 1);
        } catch (const std::bad_alloc&) {
            return ENOMEM;
        }
        for (const entry& e : state_->current) {
            if (e.slot != 0) {
                state_->sealed[e.slot - 1] = true;
            }
        }
        return 0;
    }

    int write_commit() noexcept {
        header h;
        h.page_bytes = page_;
        h.pages = pages_;
        h.generation = state_->generation + 1;
        const auto table = std::as_bytes(std::span(state_->current));
        h.table_sum = detail::sum_of(table);
        h.sum = h.own_sum();
        int error = begin_sync();
        error = error != 0 ? error : store_at(table_at(h.generation), table);
        // One sync for slots and table: until there is a header, nothing depends on their order.
        error = error != 0 ? error : end_sync();
        error = error != 0 ? error : seal();
        error = error != 0 ? error : write_header(h);
        error = error != 0 ? error : file_.sync();
        if (error == 0) {
            state_->generation = h.generation;
        }
        return error;
    }

    /// After a commit: only what its table names is sealed, and what was sealed besides is free.
    void free_what_is_not_named() noexcept {
        std::vector<bool>& old = state_->sealed;
        for (const entry& e : state_->current) {
            if (e.slot != 0) {
                old[e.slot - 1] = false;
            }
        }
        for (std::uint64_t slot = 1; slot <= old.size(); ++slot) {
            if (old[slot - 1]) {
                old[slot - 1] = false;
                return_slot(slot);
            }
        }
        for (const entry& e : state_->current) {
            if (e.slot != 0) {
                old[e.slot - 1] = true;
            }
        }
    }

    void create() {
        if (const int error = write_commit(); error != 0) {
            throw std::system_error(error, std::generic_category(), "varve: " + file_.name());
        }
    }

    void attach(opening how) {
        header newest;
        std::vector<entry> table(state_->current.size());
        for (unsigned which = 0; which < 2; ++which) {
            header h;
            if (!file_.read(which * 4096, std::as_writable_bytes(std::span(&h, 1))).complete(sizeof h) ||
                h.magic != header{}.magic || h.sum != h.own_sum()) {
                continue;
            }
            if (h.page_bytes != page_ || h.pages != pages_) {
                throw std::runtime_error("varve: " + file_.name() + " was made for " + std::to_string(h.pages) +
                                         " pages of " + std::to_string(h.page_bytes) + " bytes");
            }
            const auto bytes = std::as_writable_bytes(std::span(table));
            if (h.generation % 2 != which || h.generation < newest.generation ||
                !file_.read(table_at(h.generation), bytes).complete(bytes.size()) ||
                detail::sum_of(bytes) != h.table_sum) {
                continue;
            }
            newest = h;
            state_->current = table;
        }
        if (newest.generation == 0) {
            if (how == opening::attach_or_create && blank()) {
                // Whoever created it did not get as far as the first header.
                create();
                return;
            }
            throw std::runtime_error("varve: " + file_.name() + " holds no whole commit of a paged region");
        }
        state_->generation = newest.generation;
        find_free_slots();
        int error = write_header(newest);
        error = error != 0 ? error : file_.sync();
        if (error != 0) {
            throw std::system_error(error, std::generic_category(), "varve: " + file_.name());
        }
    }

    [[nodiscard]] bool blank() noexcept {
        std::array<std::byte, 8192> headers{};
        (void)file_.read(0, headers);
        return std::all_of(headers.begin(), headers.end(), [](std::byte b) { return b == std::byte{0}; });
    }

    void find_free_slots() {
        const std::uint64_t data = slot_at(1);
        const std::uint64_t end = file_.size();
        const std::uint64_t slots = end <= data ? 0 : (end - data) / page_;
        state_->sealed.resize(slots);
        for (const entry& e : state_->current) {
            if (e.slot > slots) {
                throw std::runtime_error("varve: " + file_.name() + " was cut off: it has " + std::to_string(slots) +
                                         " slots and refers to number " + std::to_string(e.slot));
            }
            if (e.slot != 0 && state_->sealed[e.slot - 1]) {
                throw std::runtime_error("varve: " + file_.name() + " refers to a slot twice");
            }
            if (e.slot != 0) {
                state_->sealed[e.slot - 1] = true;
            }
        }
        state_->next = slots + 1;
        for (std::uint64_t slot = slots; slot > 0; --slot) {
            if (!state_->sealed[slot - 1]) {
                state_->free.push_back(slot);
            }
        }
    }

    M file_;
    std::size_t page_;
    std::size_t pages_;
    std::unique_ptr<state> state_;
};

/// Snapshots in a file, which is locked while it is attached.
class snapshot_store : public basic_snapshot_store<locked_file> {
public:
    /// As basic_snapshot_store; throws std::system_error with EBUSY if another store has the file.
    snapshot_store(const std::filesystem::path& path, byte_count capacity, byte_count page,
                   opening how = opening::attach_or_create)
        : basic_snapshot_store(locked_file(path, how), capacity, page, how) {}
};
static_assert(store<snapshot_store> && detail::committing<snapshot_store> && detail::recovering<snapshot_store>);

}  // namespace varve::pager
