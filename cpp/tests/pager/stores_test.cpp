// Each store by itself: sizes, zeros, the peer's bad days.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "support.hpp"
#include "varve/pager/stores/compressed.hpp"
#include "varve/pager/stores/file.hpp"
#include "varve/pager/stores/peer.hpp"
#include "varve/pager/stores/snapshot.hpp"
#include "varve/pager/stores/tcp.hpp"

namespace {

using namespace varve;
using pager::store_offset;

constexpr std::size_t page = 4096;
using content = std::vector<std::byte>;

content filled(int value, std::size_t n = page) {
    return content(n, static_cast<std::byte>(value));
}
content noise(unsigned seed) {
    std::mt19937 random(seed);
    content c(page);
    for (std::byte& b : c) {
        b = static_cast<std::byte>(random());
    }
    return c;
}
template <class S>
content read(S& s, std::uint64_t at, std::size_t n = page) {
    content c(n, std::byte{0xee});
    EXPECT_TRUE(s.read(store_offset{at}, c).complete(n));
    return c;
}

template <class S>
void basics(S& s, std::size_t capacity) {
    EXPECT_EQ(read(s, 3 * page), filled(0));
    EXPECT_TRUE(s.write(store_offset{3 * page}, noise(1)).complete(page));
    EXPECT_TRUE(s.write(store_offset{4 * page}, filled(9)).complete(page));
    EXPECT_EQ(read(s, 3 * page), noise(1));
    content both = noise(1);
    const content nine = filled(9);
    both.insert(both.end(), nine.begin(), nine.end());
    EXPECT_EQ(read(s, 3 * page, 2 * page), both);
    EXPECT_TRUE(s.write(store_offset{3 * page}, filled(2)).complete(page));
    EXPECT_EQ(read(s, 3 * page), filled(2));
    pager::any_store any(std::move(s));
    EXPECT_EQ(any.discard(store_offset{3 * page}, {page}), 0);
    EXPECT_EQ(read(any, 3 * page), filled(0));
    EXPECT_EQ(read(any, 4 * page), filled(9));
    std::vector<content> data;
    std::vector<pager::write_request> requests;
    for (unsigned i = 0; i < 100; ++i) {
        data.push_back(noise(i));
    }
    for (std::size_t i = 0; i < 100; ++i) {
        requests.push_back({store_offset{(i * 37 % 100) * page}, data[i], {}});
    }
    any.write_batch(requests);
    for (std::size_t i = 0; i < 100; ++i) {
        EXPECT_TRUE(requests[i].result.complete(page));
        EXPECT_EQ(read(any, (i * 37 % 100) * page), data[i]);
    }
    EXPECT_EQ(any.sync(), 0);
    content beyond(page);
    EXPECT_FALSE(any.write(store_offset{capacity}, beyond).complete(page) &&
                 any.read(store_offset{capacity + page * 100000}, beyond).complete(page));
}

TEST(stores, memory) {
    pager::memory_store s({128 * page});
    basics(s, 128 * page);
}
TEST(stores, sparse) {
    pager::sparse_store s({128 * page});
    basics(s, 2 << 20);
}
TEST(stores, sparse_takes_what_is_written) {
    pager::sparse_store s({std::size_t{1} << 40});
    EXPECT_EQ(read(s, std::uint64_t{1} << 39), filled(0));
    EXPECT_EQ(s.committed().value, 0u);
    EXPECT_TRUE(s.write(store_offset{std::uint64_t{1} << 39}, filled(1)).complete(page));
    EXPECT_EQ(read(s, std::uint64_t{1} << 39), filled(1));
    EXPECT_EQ(s.committed().value, std::size_t{2} << 20);
}
TEST(stores, compressed) {
    pager::compressed_store s({128 * page}, {page});
    basics(s, 128 * page);
}
TEST(stores, compressed_pages_shrink) {
    pager::compressed_store s({64 * page}, {page});
    EXPECT_TRUE(s.write(store_offset{0}, filled(0)).complete(page));
    EXPECT_EQ(s.stored().value, 0u);
    EXPECT_TRUE(s.write(store_offset{0}, filled(7)).complete(page));
    EXPECT_GT(s.stored().value, 0u);
    EXPECT_LT(s.stored().value, page / 16);
    EXPECT_TRUE(s.write(store_offset{page}, noise(4)).complete(page));
    EXPECT_GE(s.stored().value, page);
    EXPECT_EQ(s.discard(store_offset{0}, {2 * page}), 0);
    EXPECT_EQ(s.stored().value, 0u);
}
TEST(stores, file) {
    const test::temporary_folder folder;
    pager::file_store s(folder.file("f"), {128 * page});
    basics(s, 128 * page);
    EXPECT_THROW(pager::file_store("/nonexistent/f", {page}), std::system_error);
}
TEST(stores, snapshot) {
    const test::temporary_folder folder;
    pager::snapshot_store s(folder.file("f"), {128 * page}, {page});
    basics(s, 128 * page);
}
TEST(stores, uring) {
    const test::temporary_folder folder;
    pager::uring_store s(folder.file("f"), {128 * page});
    basics(s, 128 * page);
}

struct peer_world {
    explicit peer_world(std::size_t pages = 128)
        : peer(pager::any_store(pager::sparse_store({pages * page})), {pages * page}, 0, true) {}
    pager::paging_peer peer;
};
pager::persistence hasty() {
    pager::persistence p;
    p.stall = {200};
    p.tries = 3;
    p.pause = std::chrono::milliseconds(1);
    return p;
}

TEST(stores, tcp) {
    peer_world w;
    pager::tcp_store s("127.0.0.1", w.peer.port(), {128 * page});
    basics(s, 128 * page);
}

TEST(tcp, refuses_a_peer_that_is_too_small_or_absent) {
    std::uint16_t port = 0;
    {
        peer_world w;
        port = w.peer.port();
        EXPECT_THROW(pager::tcp_store("127.0.0.1", port, {129 * page}), std::system_error);
    }
    EXPECT_THROW(pager::tcp_store("127.0.0.1", port, {page}, hasty()), std::system_error);
    EXPECT_THROW(pager::tcp_store("no such host", 1, {page}), std::system_error);
}

TEST(tcp, broken_connections_are_made_again) {
    peer_world w;
    pager::options o;
    o.local = {16 * page};
    // Connections may break as often as the scheduler likes.
    pager::persistence stubborn;
    stubborn.tries = 1000000;
    stubborn.pause = std::chrono::milliseconds(0);
    pager::paged_space space({128 * page}, pager::tcp_store("127.0.0.1", w.peer.port(), {128 * page}, stubborn), o);
    std::atomic<bool> stop{false};
    std::thread trouble([&] {
        while (!stop) {
            w.peer.drop_connections();
            ::usleep(2000);
        }
    });
    for (std::uint64_t round = 0; round < 5; ++round) {
        for (std::size_t p = 0; p < 128; ++p) {
            if (round != 0) {
                ASSERT_EQ(test::word(space, p), (round - 1) * 1000 + p);
            }
            test::word(space, p) = round * 1000 + p;
        }
    }
    stop = true;
    trouble.join();
    EXPECT_EQ(space.read_statistics().read_failures, 0u);
}

/// Answers the greeting and then nothing.
class mute_peer {
public:
    mute_peer() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in here{};
        here.sin_family = AF_INET;
        here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof here;
        if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&here), size) != 0 ||
            ::listen(listener_.get(), 64) != 0 ||
            ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&here), &size) != 0) {
            std::abort();
        }
        port = ntohs(here.sin_port);
        thread_ = std::thread([this] {
            std::vector<pager::kernel::descriptor> open;
            for (;;) {
                pager::kernel::descriptor socket(::accept(listener_.get(), nullptr, nullptr));
                if (!socket.open()) {
                    return;
                }
                ++connections;
                if (connections == 1) {
                    pager::wire::request q;
                    pager::wire::answer a;
                    a.length = 1 << 30;
                    if (pager::wire::receive_all(socket.get(), pager::wire::room_of(q), {1000}) == 0) {
                        (void)pager::wire::send_all(socket.get(), pager::wire::bytes_of(a), {1000});
                    }
                }
                open.push_back(std::move(socket));
            }
        });
    }
    ~mute_peer() {
        ::shutdown(listener_.get(), SHUT_RDWR);
        thread_.join();
    }
    std::uint16_t port = 0;
    std::atomic<int> connections{0};

private:
    pager::kernel::descriptor listener_;
    std::thread thread_;
};

TEST(tcp, a_peer_that_stalls_is_given_up_after_all_tries_and_the_access_fails) {
    test::fault_catcher::install();
    mute_peer peer;
    pager::options o;
    o.local = {16 * page};
    pager::paged_space space({128 * page}, pager::tcp_store("127.0.0.1", peer.port, {128 * page}, hasty()), o);
    EXPECT_EQ(test::fault_catcher::run([&] { (void)*static_cast<volatile std::uint64_t*>(&test::word(space, 5)); }),
              SIGBUS);
    EXPECT_EQ(space.read_statistics().read_failures, 1u);
    // The greeting's connection served the first try, the other two made their own.
    EXPECT_EQ(peer.connections.load(), 3);
}

TEST(tcp, a_write_that_arrives_late_does_not_undo_a_newer_one) {
    peer_world w;
    pager::tcp_store s("127.0.0.1", w.peer.port(), {128 * page});
    EXPECT_TRUE(s.write(store_offset{0}, filled(1)).complete(page));
    EXPECT_TRUE(s.write(store_offset{0}, filled(2)).complete(page));
    // The first one again, as if a network had held it back.
    pager::kernel::descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in there{};
    there.sin_family = AF_INET;
    there.sin_port = htons(w.peer.port());
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&there), sizeof there), 0);
    pager::wire::request q;
    q.what = pager::wire::operation::write;
    q.length = page;
    q.sequence = 1;
    pager::wire::answer a;
    ASSERT_EQ(pager::wire::send_all(socket.get(), pager::wire::bytes_of(q), {1000}), 0);
    ASSERT_EQ(pager::wire::send_all(socket.get(), filled(1), {1000}), 0);
    ASSERT_EQ(pager::wire::receive_all(socket.get(), pager::wire::room_of(a), {1000}), 0);
    EXPECT_EQ(a.error, 0);
    EXPECT_EQ(read(s, 0), filled(2));
    // A client that attaches later is newer than all of that.
    pager::tcp_store later("127.0.0.1", w.peer.port(), {128 * page});
    EXPECT_TRUE(later.write(store_offset{0}, filled(3)).complete(page));
    EXPECT_EQ(read(s, 0), filled(3));
}

TEST(tcp, the_peer_survives_nonsense) {
    peer_world w;
    std::mt19937 random(1);
    for (int i = 0; i < 50; ++i) {
        pager::kernel::descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in there{};
        there.sin_family = AF_INET;
        there.sin_port = htons(w.peer.port());
        there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&there), sizeof there), 0);
        pager::wire::request q;
        q.what = static_cast<pager::wire::operation>(random() % 8);
        q.offset = std::uint64_t{random()} << (random() % 33);
        q.length = std::uint64_t{random()} << (random() % 33);
        q.mark = random() % 4 == 0 ? 0x12345678u : pager::wire::magic;
        (void)pager::wire::send_all(socket.get(), pager::wire::bytes_of(q), {100});
    }
    pager::tcp_store s("127.0.0.1", w.peer.port(), {128 * page});
    EXPECT_EQ(read(s, 0), filled(0));
}

}  // namespace
