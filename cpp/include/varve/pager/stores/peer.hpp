// The other side of tcp_store: serves any store to clients over TCP.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "varve/pager/store.hpp"
#include "varve/pager/stores/medium.hpp"
#include "varve/pager/stores/wire.hpp"

namespace varve::pager {

/// Listens on an address and serves each connection in a thread of its own. It serves one client at a time, and another
/// when no connection of the first is left (wire.hpp). A client outlives a peer only if the content does: a peer that
/// is started again over the same file goes on where it was, one over memory fails everything that the client asks for.
/// There is no authentication and no encryption: keep it on a network that you trust.
class paging_peer {
public:
    /// Port 0 chooses a free one. Throws std::system_error.
    paging_peer(any_store content, byte_count capacity, std::uint16_t port, bool loopback_only)
        : content_(std::move(content)),
          instance_(content_.identity() != 0 ? content_.identity() : detail::random_number()),
          capacity_(capacity),
          newest_(std::make_unique<std::atomic<std::uint64_t>[]>(capacity.value / unit + 1)),
          listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        const int on = 1;
        ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        sockaddr_in here{};
        here.sin_family = AF_INET;
        here.sin_port = htons(port);
        here.sin_addr.s_addr = htonl(loopback_only ? INADDR_LOOPBACK : INADDR_ANY);
        socklen_t size = sizeof here;
        if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&here), size) != 0 ||
            ::listen(listener_.get(), 64) != 0 ||
            ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&here), &size) != 0) {
            throw std::system_error(errno, std::generic_category(), "varve: paging peer");
        }
        port_ = ntohs(here.sin_port);
        acceptor_ = std::thread([this] { accept_all(); });
    }
    paging_peer(const paging_peer&) = delete;
    paging_peer& operator=(const paging_peer&) = delete;
    ~paging_peer() {
        stopping_.store(true);
        ::shutdown(listener_.get(), SHUT_RDWR);
        acceptor_.join();
        drop_connections();
    }

    [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

    /// Breaks all connections that exist, as a network would.
    void drop_connections() noexcept {
        std::vector<connection> gone;
        {
            const std::lock_guard guard(lock_);
            gone.swap(connections_);
        }
        for (connection& c : gone) {
            ::shutdown(c.socket->get(), SHUT_RDWR);
        }
        for (connection& c : gone) {
            c.thread.join();
        }
    }

private:
    static constexpr std::size_t unit = 4096;
    static constexpr wire::patience no_hurry{-1};
    struct connection {
        std::shared_ptr<kernel::descriptor> socket;
        std::shared_ptr<std::atomic<bool>> ended;
        std::thread thread;
    };

    void accept_all() noexcept {
        while (!stopping_.load()) {
            auto socket =
                std::make_shared<kernel::descriptor>(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
            if (!socket->open()) {
                if (stopping_.load() || (errno != EINTR && errno != ECONNABORTED)) {
                    return;
                }
                continue;
            }
            const int on = 1;
            ::setsockopt(socket->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            notice_loss(socket->get());
            auto ended = std::make_shared<std::atomic<bool>>(false);
            const std::lock_guard guard(lock_);
            std::erase_if(connections_, [](connection& c) {
                if (!c.ended->load()) {
                    return false;
                }
                c.thread.join();
                return true;
            });
            connections_.push_back({socket, ended, std::thread([this, socket, ended] {
                                        serve(socket->get());
                                        ended->store(true);
                                    })});
        }
    }

    /// A client whose machine went away without a word must not keep others out for ever.
    static void notice_loss(int socket) noexcept {
        const int on = 1;
        const int seconds = 5;
        const int probes = 3;
        ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
        ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
        ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    }

    /// Of one connection: which attachment it belongs to, 0 before its first good request. While a connection of an
    /// attachment lives, no other is accepted; so what is admitted stays so.
    class admission {
    public:
        explicit admission(paging_peer& peer) noexcept : peer_(peer) {}
        admission(const admission&) = delete;
        admission& operator=(const admission&) = delete;
        ~admission() {
            if (generation_ != 0) {
                const std::lock_guard guard(peer_.admitting_);
                --peer_.admitted_;
            }
        }
        /// 0, ESTALE or EBUSY.
        int admit(const wire::request& q) noexcept {
            const bool hello = q.what == wire::operation::hello;
            if (q.generation == 0 || (!hello && q.instance != peer_.instance_)) {
                return ESTALE;
            }
            if (generation_ == q.generation) {
                return 0;
            }
            const std::lock_guard guard(peer_.admitting_);
            if (generation_ != 0) {
                return ESTALE;
            }
            if (peer_.generation_ != q.generation) {
                // Who comes back to a peer that was started again over the same content does not say hello.
                if (!hello && peer_.generation_ != 0) {
                    return ESTALE;
                }
                if (peer_.admitted_ != 0) {
                    return EBUSY;
                }
                peer_.generation_ = q.generation;
            }
            generation_ = q.generation;
            ++peer_.admitted_;
            return 0;
        }

    private:
        paging_peer& peer_;
        std::uint64_t generation_ = 0;
    };

    void serve(int socket) noexcept {
        admission client(*this);
        std::vector<std::byte> buffer;
        wire::request q;
        while (wire::receive_all(socket, wire::room_of(q), no_hurry) == 0) {
            if (q.mark != wire::magic || (q.what != wire::operation::discard && q.length > wire::largest)) {
                break;
            }
            const bool moves_data = q.what == wire::operation::read || q.what == wire::operation::write;
            buffer.resize(moves_data ? static_cast<std::size_t>(q.length) : 0);
            if (q.what == wire::operation::write && wire::receive_all(socket, buffer, no_hurry) != 0) {
                break;
            }
            wire::answer reply;
            reply.error = client.admit(q);
            if (reply.error == 0) {
                reply = handle(q, buffer);
                // That word is the protocol's own: here it is only the store's trouble.
                reply.error = reply.error == ESTALE ? EIO : reply.error;
            }
            reply.instance = instance_;
            if (wire::send_all(socket, wire::bytes_of(reply), no_hurry) != 0) {
                break;
            }
            if (q.what == wire::operation::read && reply.error == 0 &&
                wire::send_all(socket, std::span<const std::byte>(buffer).first(static_cast<std::size_t>(reply.length)),
                               no_hurry) != 0) {
                break;
            }
        }
        ::shutdown(socket, SHUT_RDWR);
    }

    wire::answer handle(const wire::request& q, std::span<std::byte> buffer) noexcept {
        wire::answer reply;
        if (q.what == wire::operation::hello) {
            reply.length = capacity_.value;
            reply.sequence = highest_.load();
            return reply;
        }
        if (q.what == wire::operation::sync) {
            reply.error = content_.sync();
            return reply;
        }
        if (q.offset > capacity_.value || q.length > capacity_.value - q.offset || q.offset % unit != 0 ||
            q.length % unit != 0) {
            reply.error = EINVAL;
            return reply;
        }
        if (q.what == wire::operation::read) {
            const std::lock_guard guard(stripe(q.offset));
            const io_result r = content_.read(store_offset{q.offset}, buffer);
            reply.error = r.error;
            reply.length = r.bytes;
            return reply;
        }
        for (std::uint64_t seen = highest_.load();
             seen < q.sequence && !highest_.compare_exchange_weak(seen, q.sequence);) {
        }
        const std::lock_guard guard(stripe(q.offset));
        reply.length = q.length;
        if (superseded(q)) {
            return reply;
        }
        if (q.what == wire::operation::write) {
            const io_result r = content_.write(store_offset{q.offset}, buffer);
            reply.error = r.error;
            reply.length = r.bytes;
        } else if (q.what == wire::operation::discard) {
            reply.error = content_.discard(store_offset{q.offset}, {static_cast<std::size_t>(q.length)});
        } else {
            reply.error = EOPNOTSUPP;
        }
        return reply;
    }

    /// Whether the range holds something newer than `q`. Otherwise it is `q`'s from now on.
    bool superseded(const wire::request& q) noexcept {
        const std::size_t first = q.offset / unit;
        for (std::size_t i = 0; i < q.length / unit; ++i) {
            if (newest_[first + i].load() > q.sequence) {
                return true;
            }
        }
        for (std::size_t i = 0; i < q.length / unit; ++i) {
            newest_[first + i].store(q.sequence);
        }
        return false;
    }

    /// Transfers of one page come after each other. A range is at most one page of the client, which aligns to its
    /// size.
    std::mutex& stripe(std::uint64_t offset) noexcept { return stripes_[(offset >> 21) % 16]; }

    any_store content_;
    std::uint64_t instance_;
    std::mutex admitting_;
    std::uint64_t generation_ = 0;  ///< of the attachment that is served; with `admitting_`
    std::size_t admitted_ = 0;      ///< its connections; with `admitting_`
    byte_count capacity_;
    std::unique_ptr<std::atomic<std::uint64_t>[]> newest_;
    std::atomic<std::uint64_t> highest_{0};
    std::array<std::mutex, 16> stripes_;
    kernel::descriptor listener_;
    std::uint16_t port_ = 0;
    std::atomic<bool> stopping_{false};
    std::mutex lock_;
    std::vector<connection> connections_;
    std::thread acceptor_;
};

}  // namespace varve::pager
