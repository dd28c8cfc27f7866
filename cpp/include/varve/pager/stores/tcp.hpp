// A store on another machine, over TCP; `peer.hpp` is the other side.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "varve/pager/store.hpp"
#include "varve/pager/stores/medium.hpp"
#include "varve/pager/stores/wire.hpp"

namespace varve::pager {

/// How long to wait for a peer, and how often to ask it again.
struct persistence {
    wire::patience stall{1000};           ///< a transfer that stands still for so long has failed
    unsigned tries = 4;                   ///< attempts at each operation, each over a new connection
    std::chrono::milliseconds pause{20};  ///< before the second attempt; doubles with each, up to 1 s
};

/// Pages at a `paging_peer`. An operation that fails in all its tries fails with ETIMEDOUT, ECONNRESET or whatever the
/// last try met; the next operation connects again. Repeating is safe: see wire::request::sequence.
/// A peer that does not have the pages any more, because it was started again without them or serves another client by
/// now, is told by its instance and generation: then this and every later operation fails with EIO. Should it answer
/// all the same with anything but what was last written to a block, or read from it, that read fails with EIO: a sum of
/// each is kept here, and no store of a peer's is believed.
class tcp_store {
public:
    /// A sync covers all that the peer acknowledged, and the peer judges its own store.
    static constexpr bool recovers_sync = true;

    /// Connects to `host`:`port`. Throws std::system_error if nobody answers, if the peer holds less than `capacity`,
    /// or (EBUSY) if it serves another client.
    tcp_store(const std::string& host, std::uint16_t port, byte_count capacity, persistence p = {})
        : state_(std::make_unique<state>(capacity)) {
        state_->how = p;
        state_->generation = detail::random_number();
        resolve(host, port);
        wire::answer reply;
        const int error = greet(reply);
        if (error == EBUSY) {
            throw std::system_error(
                error, std::generic_category(),
                "varve: paging peer " + host + ":" + std::to_string(port) + " serves another client");
        }
        if (error != 0) {
            throw std::system_error(error, std::generic_category(),
                                    "varve: paging peer " + host + ":" + std::to_string(port));
        }
        if (reply.length < capacity.value) {
            throw std::system_error(ENOSPC, std::generic_category(), "varve: paging peer is too small");
        }
        state_->instance = reply.instance;
        state_->sequence.store(reply.sequence + 1);
    }

    io_result read(store_offset at, std::span<std::byte> in) noexcept {
        wire::request q = about(wire::operation::read);
        q.offset = to_number(at);
        q.length = in.size();
        wire::answer reply;
        if (!state_->sums.within(q.offset, q.length)) {
            return {0, EINVAL};
        }
        if (const int error = exchange(q, {}, in, reply); error != 0) {
            return {0, error};
        }
        const auto came = static_cast<std::size_t>(reply.length);
        const std::size_t good = state_->sums.accept(q.offset, in.first(came));
        return {good, good == came ? 0 : EIO};
    }

    io_result write(store_offset at, std::span<const std::byte> out) noexcept {
        if (!state_->sums.within(to_number(at), out.size())) {
            return {0, ENOSPC};
        }
        wire::answer reply;
        const int error = exchange(change(wire::operation::write, at, out.size()), out, {}, reply);
        const io_result r{error == 0 ? static_cast<std::size_t>(reply.length) : 0, error};
        state_->sums.wrote(to_number(at), out, r.complete(out.size()));
        return r;
    }

    /// All requests go out before the first answer is awaited.
    void write_batch(std::span<write_request> requests) noexcept {
        // So much is on its way at most: a peer that answers while nobody reads must not fill both sides' buffers.
        constexpr std::size_t window = 32;
        while (!requests.empty()) {
            const std::span<write_request> now = requests.first(std::min(window, requests.size()));
            if (std::all_of(now.begin(), now.end(), [this](const write_request& r) {
                    return state_->sums.within(to_number(r.offset), r.data.size());
                })) {
                pipeline(now);
            }
            for (write_request& r : now) {
                if (!r.result.complete(r.data.size())) {
                    r.result = write(r.offset, r.data);
                } else {
                    state_->sums.wrote(to_number(r.offset), r.data, true);
                }
            }
            requests = requests.subspan(now.size());
        }
    }

    int discard(store_offset at, byte_count n) noexcept {
        if (!state_->sums.within(to_number(at), n.value)) {
            return EINVAL;
        }
        wire::answer reply;
        const int error = exchange(change(wire::operation::discard, at, n.value), {}, {}, reply);
        state_->sums.discarded(to_number(at), n.value, error == 0);
        return error;
    }

    int sync() noexcept {
        wire::answer reply;
        return exchange(about(wire::operation::sync), {}, {}, reply);
    }

private:
    struct state {
        explicit state(byte_count capacity) : sums(capacity) {}
        persistence how;
        detail::block_sums sums;
        sockaddr_storage address{};
        socklen_t address_length = 0;
        std::uint64_t instance = 0;
        std::uint64_t generation = 0;
        std::atomic<bool> lost{false};  ///< the peer has another instance or generation
        std::atomic<std::uint64_t> sequence{1};
        std::mutex lock;
        std::vector<kernel::descriptor> idle;
    };

    void resolve(const std::string& host, std::uint16_t port) {
        addrinfo hints{};
        hints.ai_socktype = SOCK_STREAM;
        addrinfo* found = nullptr;
        if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0) {
            throw std::system_error(EADDRNOTAVAIL, std::generic_category(),
                                    "varve: " + host + ": " + ::gai_strerror(error));
        }
        std::memcpy(&state_->address, found->ai_addr, found->ai_addrlen);
        state_->address_length = found->ai_addrlen;
        ::freeaddrinfo(found);
    }

    /// A client that ended a moment ago may still look connected to the peer: that is asked again too.
    int greet(wire::answer& reply) noexcept {
        auto pause = state_->how.pause;
        for (unsigned attempt = 1;; ++attempt) {
            const int error = exchange(about(wire::operation::hello), {}, {}, reply);
            if (error != EBUSY || attempt >= state_->how.tries) {
                return error;
            }
            std::this_thread::sleep_for(pause);
            pause = longer(pause);
        }
    }
    static std::chrono::milliseconds longer(std::chrono::milliseconds pause) noexcept {
        return std::min<std::chrono::milliseconds>(pause * 2, std::chrono::seconds(1));
    }

    [[nodiscard]] wire::request about(wire::operation what) const noexcept {
        wire::request q;
        q.what = what;
        q.instance = state_->instance;
        q.generation = state_->generation;
        return q;
    }
    [[nodiscard]] wire::request change(wire::operation what, store_offset at, std::size_t n) noexcept {
        wire::request q = about(what);
        q.offset = to_number(at);
        q.length = n;
        q.sequence = state_->sequence.fetch_add(1);
        return q;
    }

    kernel::descriptor connect(int& error) const noexcept {
        kernel::descriptor socket(::socket(state_->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        const int on = 1;
        ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        error = 0;
        if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&state_->address), state_->address_length) != 0) {
            if (errno != EINPROGRESS) {
                error = errno;
                return {};
            }
            pollfd wait{socket.get(), POLLOUT, 0};
            socklen_t size = sizeof error;
            if (::poll(&wait, 1, state_->how.stall.value) != 1) {
                error = ETIMEDOUT;
            } else if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
                error = errno;
            }
        }
        return error == 0 ? std::move(socket) : kernel::descriptor();
    }

    kernel::descriptor borrow(bool fresh, int& error) noexcept {
        error = 0;
        if (!fresh) {
            const std::lock_guard guard(state_->lock);
            if (!state_->idle.empty()) {
                kernel::descriptor socket = std::move(state_->idle.back());
                state_->idle.pop_back();
                return socket;
            }
        }
        return connect(error);
    }
    void give_back(kernel::descriptor socket) noexcept {
        const std::lock_guard guard(state_->lock);
        try {
            state_->idle.push_back(std::move(socket));
        } catch (const std::bad_alloc&) {
            // Then it is closed.
        }
    }

    /// One request and its answer, with all its tries. 0, or what the last try met, or what the peer says.
    int exchange(const wire::request& q, std::span<const std::byte> out, std::span<std::byte> in,
                 wire::answer& reply) noexcept {
        int error = 0;
        auto pause = state_->how.pause;
        for (unsigned attempt = 0; attempt < std::max(1u, state_->how.tries); ++attempt) {
            if (state_->lost.load()) {
                return EIO;
            }
            if (attempt != 0) {
                std::this_thread::sleep_for(pause);
                pause = longer(pause);
            }
            kernel::descriptor socket = borrow(attempt != 0, error);
            if (error == 0) {
                error = send(socket, q, out);
            }
            if (error == 0) {
                error = receive(socket, in, reply);
            }
            if (error == 0) {
                give_back(std::move(socket));
                return reply.error;
            }
        }
        return error;
    }

    int send(const kernel::descriptor& socket, const wire::request& q, std::span<const std::byte> out) const noexcept {
        const int error = wire::send_all(socket.get(), wire::bytes_of(q), state_->how.stall);
        return error != 0 ? error : wire::send_all(socket.get(), out, state_->how.stall);
    }

    /// An answer brings data exactly if `in` is not empty: as many bytes as it says.
    int receive(const kernel::descriptor& socket, std::span<std::byte> in, wire::answer& reply) const noexcept {
        if (const int error = wire::receive_all(socket.get(), wire::room_of(reply), state_->how.stall); error != 0) {
            return error;
        }
        if (reply.mark != wire::magic || (!in.empty() && reply.length > in.size())) {
            return EPROTO;
        }
        // Also where the peer did not look: before the greeting is over the instance is not known.
        if (reply.error == ESTALE || (state_->instance != 0 && reply.instance != state_->instance)) {
            state_->lost.store(true);
            reply.error = EIO;
        }
        if (in.empty() || reply.error != 0) {
            return 0;
        }
        return wire::receive_all(socket.get(), in.first(static_cast<std::size_t>(reply.length)), state_->how.stall);
    }

    /// One try for all of them over one connection; what fails is left incomplete.
    void pipeline(std::span<write_request> requests) noexcept {
        int error = 0;
        kernel::descriptor socket = borrow(false, error);
        std::size_t sent = 0;
        for (; sent < requests.size() && error == 0; ++sent) {
            const write_request& r = requests[sent];
            error = send(socket, change(wire::operation::write, r.offset, r.data.size()), r.data);
        }
        for (std::size_t i = 0; i < sent && error == 0; ++i) {
            wire::answer reply;
            error = receive(socket, {}, reply);
            if (error == 0) {
                requests[i].result = {static_cast<std::size_t>(reply.length), reply.error};
            }
        }
        if (error == 0) {
            give_back(std::move(socket));
        }
    }

    std::unique_ptr<state> state_;
};
static_assert(store<tcp_store> && detail::batching<tcp_store> && detail::discarding<tcp_store>);

}  // namespace varve::pager
