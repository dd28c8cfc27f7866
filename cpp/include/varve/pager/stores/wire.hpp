// What a paging peer and its clients say to each other: fixed headers, little-endian, then the data of a write request
// or of a read's answer. Requests may be sent ahead; answers come in the same order.
//
// Every request names the content that it is about and who asks:
// - `instance`: drawn by the peer for its content, and told in its answer to `hello`. A peer that was started again
//   without what its clients wrote has another one, so no request of theirs is answered from it.
// - `generation`: drawn by the client for its attachment. A peer serves one at a time, from its `hello` until another's
//   is accepted, which is when no connection of the first is left. From then on requests of the first are refused.
// Both are refused with ESTALE; a `hello` while another client is connected with EBUSY.
#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

#include "varve/pager/kernel.hpp"

namespace varve::pager::wire {

static_assert(std::endian::native == std::endian::little,
              "the wire format is the memory format of little-endian machines");

inline constexpr std::uint32_t magic = 0x32505656;  // "VVP2"
inline constexpr std::uint32_t largest = std::uint32_t{4} << 20;

enum class operation : std::uint32_t { hello = 1, read = 2, write = 3, discard = 4, sync = 5 };

struct request {
    std::uint32_t mark = magic;
    operation what = operation::hello;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    /// Of writes and discards: grows with each. A peer leaves out what is older than what a page already holds, so that
    /// a request which arrives late, after its repetition, does no harm.
    std::uint64_t sequence = 0;
    std::uint64_t instance = 0;
    std::uint64_t generation = 0;
};

struct answer {
    std::uint32_t mark = magic;
    std::int32_t error = 0;      ///< an errno value
    std::uint64_t length = 0;    ///< bytes moved; of hello: the capacity
    std::uint64_t sequence = 0;  ///< of hello: the highest that the peer has seen
    std::uint64_t instance = 0;  ///< the peer's
};

/// Milliseconds that a transfer may stand still.
struct patience {
    int value = 1000;
};

/// Sends everything. 0 or an errno value: ETIMEDOUT when nothing moves for `limit`.
inline int send_all(int socket, std::span<const std::byte> data, patience limit) noexcept {
    while (!data.empty()) {
        const ssize_t n = ::send(socket, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            data = data.subspan(static_cast<std::size_t>(n));
        } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            pollfd wait{socket, POLLOUT, 0};
            if (const int ready = ::poll(&wait, 1, limit.value); ready == 0) {
                return ETIMEDOUT;
            }
        } else if (n < 0 && errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

/// Receives exactly that much. 0 or an errno value: ECONNRESET when the peer is gone.
inline int receive_all(int socket, std::span<std::byte> data, patience limit) noexcept {
    while (!data.empty()) {
        const ssize_t n = ::recv(socket, data.data(), data.size(), MSG_DONTWAIT);
        if (n > 0) {
            data = data.subspan(static_cast<std::size_t>(n));
        } else if (n == 0) {
            return ECONNRESET;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            pollfd wait{socket, POLLIN, 0};
            if (const int ready = ::poll(&wait, 1, limit.value); ready == 0) {
                return ETIMEDOUT;
            }
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) noexcept {
    return std::as_bytes(std::span<const T, 1>(&value, 1));
}
template <class T>
std::span<std::byte> room_of(T& value) noexcept {
    return std::as_writable_bytes(std::span<T, 1>(&value, 1));
}

}  // namespace varve::pager::wire
