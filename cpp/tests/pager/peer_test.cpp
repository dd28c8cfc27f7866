// The peer's bad days: it is away, it stalls, it breaks off, it has lost the pages, it is asked nonsense.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <optional>
#include <random>
#include <thread>

#include "support.hpp"
#include "varve/pager/stores/file.hpp"
#include "varve/pager/stores/peer.hpp"
#include "varve/pager/stores/tcp.hpp"

namespace {

using namespace varve;
using pager::store_offset;

constexpr std::size_t page = 4096;
using content = std::vector<std::byte>;

content filled(int value, std::size_t n = page) {
    return content(n, static_cast<std::byte>(value));
}
content read(pager::tcp_store& s, std::uint64_t at) {
    content c(page, std::byte{0xee});
    EXPECT_TRUE(s.read(store_offset{at}, c).complete(page));
    return c;
}

struct peer_world {
    explicit peer_world(std::size_t pages = 128)
        : peer(pager::any_store(pager::sparse_store({pages * page})), {pages * page}, 0, true) {}
    pager::paging_peer peer;
};
/// Gives up a peer that refuses or breaks off after a few tries, but none for being slow: the machine may have much
/// else to do.
pager::persistence hasty() {
    pager::persistence p;
    p.stall = test::patient().stall;
    p.tries = 3;
    p.pause = std::chrono::milliseconds(1);
    return p;
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
    // They break once for each access that got through, and so never so often that none does.
    constexpr unsigned rounds = 5;
    std::atomic<unsigned> accesses{0};
    std::thread trouble([&] {
        for (unsigned seen = 0; seen < rounds * 128; seen = accesses.load()) {
            w.peer.drop_connections();
            accesses.wait(seen);
        }
    });
    for (std::uint64_t round = 0; round < rounds; ++round) {
        for (std::size_t p = 0; p < 128; ++p) {
            if (round != 0) {
                EXPECT_EQ(test::word(space, p), (round - 1) * 1000 + p);
            }
            test::word(space, p) = round * 1000 + p;
            ++accesses;
            accesses.notify_one();
        }
    }
    trouble.join();
    EXPECT_EQ(space.read_statistics().read_failures, 0u);
}

/// Answers greetings until it is told to be silent, and nothing else.
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
                if (!silent) {
                    pager::wire::request q;
                    pager::wire::answer a;
                    a.length = 1 << 30;
                    if (pager::wire::receive_all(socket.get(), pager::wire::room_of(q), test::patient().stall) == 0) {
                        (void)pager::wire::send_all(socket.get(), pager::wire::bytes_of(a), test::patient().stall);
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
    std::atomic<bool> silent{false};

private:
    pager::kernel::descriptor listener_;
    std::thread thread_;
};

TEST(tcp, a_peer_that_stalls_is_given_up_after_all_tries_and_the_access_fails) {
    test::fault_catcher::install();
    mute_peer peer;
    // Short, because the test waits for all of them.
    pager::persistence brief = hasty();
    brief.stall = {200};
    std::optional<pager::tcp_store> store;
    while (!store) {
        try {
            store.emplace("127.0.0.1", peer.port, byte_count{128 * page}, brief);
        } catch (const std::system_error&) {
            // On a busy machine an answer may take longer than that.
        }
    }
    peer.silent = true;
    const int before = peer.connections.load();
    pager::options o;
    o.local = {16 * page};
    pager::paged_space space({128 * page}, std::move(*store), o);
    EXPECT_EQ(test::fault_catcher::run([&] { (void)*static_cast<volatile std::uint64_t*>(&test::word(space, 5)); }),
              SIGBUS);
    EXPECT_EQ(space.read_statistics().read_failures, 1u);
    // The greeting's connection served the first try, the other two made their own: the kernel makes them for the peer,
    // which may come to count them later.
    while (peer.connections.load() < before + 2) {
        std::this_thread::yield();
    }
    EXPECT_EQ(peer.connections.load(), before + 2);
}

/// Speaks to a peer word by word.
class conversation {
public:
    explicit conversation(std::uint16_t port, std::uint64_t generation) : generation_(generation) {
        socket_ = pager::kernel::descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in there{};
        there.sin_family = AF_INET;
        there.sin_port = htons(port);
        there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&there), sizeof there), 0);
    }
    pager::wire::answer ask(pager::wire::operation what, std::uint64_t sequence = 0, int value = 0) {
        pager::wire::request q;
        q.what = what;
        q.sequence = sequence;
        q.instance = instance;
        q.generation = generation_;
        const bool writes = what == pager::wire::operation::write;
        const bool reads = what == pager::wire::operation::read;
        q.length = writes || reads ? page : 0;
        pager::wire::answer a;
        EXPECT_EQ(pager::wire::send_all(socket_.get(), pager::wire::bytes_of(q), test::patient().stall), 0);
        EXPECT_EQ(pager::wire::send_all(socket_.get(), writes ? filled(value) : content(), test::patient().stall), 0);
        EXPECT_EQ(pager::wire::receive_all(socket_.get(), pager::wire::room_of(a), test::patient().stall), 0);
        if (reads && a.error == 0) {
            got.resize(a.length);
            EXPECT_EQ(pager::wire::receive_all(socket_.get(), got, test::patient().stall), 0);
        }
        instance = what == pager::wire::operation::hello ? a.instance : instance;
        return a;
    }
    std::uint64_t instance = 0;
    content got;

private:
    std::uint64_t generation_;
    pager::kernel::descriptor socket_;
};

TEST(tcp, a_write_that_arrives_late_does_not_undo_a_newer_one) {
    using pager::wire::operation;
    peer_world w;
    {
        conversation client(w.peer.port(), 77);
        EXPECT_EQ(client.ask(operation::hello).error, 0);
        EXPECT_EQ(client.ask(operation::write, 1, 1).error, 0);
        EXPECT_EQ(client.ask(operation::write, 2, 2).error, 0);
        // The first one again, as if a network had held it back.
        EXPECT_EQ(client.ask(operation::write, 1, 1).error, 0);
        EXPECT_EQ(client.ask(operation::read).error, 0);
        EXPECT_EQ(client.got, filled(2));
    }
    // A client that attaches later is newer than all of that.
    pager::tcp_store later("127.0.0.1", w.peer.port(), {128 * page}, test::patient());
    EXPECT_TRUE(later.write(store_offset{0}, filled(3)).complete(page));
    EXPECT_EQ(read(later, 0), filled(3));
}

TEST(tcp, a_peer_serves_one_client_at_a_time) {
    using pager::wire::operation;
    peer_world w;
    conversation first(w.peer.port(), 77);
    EXPECT_EQ(first.ask(operation::hello).error, 0);
    try {
        pager::tcp_store second("127.0.0.1", w.peer.port(), {128 * page}, hasty());
        ADD_FAILURE() << "two clients have the same pages";
    } catch (const std::system_error& error) {
        EXPECT_EQ(error.code().value(), EBUSY);
    }
    EXPECT_EQ(first.ask(operation::write, 1, 1).error, 0);
    // The network breaks, and another client comes before the first is back.
    w.peer.drop_connections();
    pager::tcp_store second("127.0.0.1", w.peer.port(), {128 * page}, test::patient());
    EXPECT_EQ(read(second, 0), filled(1));
    conversation back(w.peer.port(), 77);
    back.instance = first.instance;
    EXPECT_EQ(back.ask(operation::write, 2, 2).error, ESTALE);
    EXPECT_EQ(back.ask(operation::read).error, ESTALE);
    EXPECT_EQ(back.ask(operation::sync).error, ESTALE);
    EXPECT_EQ(read(second, 0), filled(1));
}

/// A space of 128 pages, 16 of them in memory, whose peer ends and is started again on the same port.
struct bereaved {
    explicit bereaved(std::uint16_t port)
        : space({128 * page}, pager::tcp_store("127.0.0.1", port, {128 * page}, hasty()), local()) {
        for (std::size_t p = 0; p < 128; ++p) {
            test::word(space, p) = p + 1000;
        }
    }
    static pager::options local() {
        test::fault_catcher::install();
        pager::options o;
        o.local = {16 * page};
        return o;
    }
    struct seen {
        std::size_t right = 0, wrong = 0, failed = 0;
    };
    seen look() {
        seen s;
        for (std::size_t p = 0; p < 128; ++p) {
            std::uint64_t value = 0;
            if (test::fault_catcher::run(
                    [&] { value = *static_cast<volatile std::uint64_t*>(&test::word(space, p)); }) != 0) {
                ++s.failed;
            } else {
                ++(value == p + 1000 ? s.right : s.wrong);
            }
        }
        return s;
    }
    pager::paged_space space;
};

pager::any_store kept_in(const std::filesystem::path& path) {
    return path.empty() ? pager::any_store(pager::sparse_store({128 * page}))
                        : pager::any_store(pager::file_store(path, {128 * page}));
}

TEST(tcp, a_peer_that_lost_the_pages_fails_the_accesses) {
    auto peer = std::make_unique<pager::paging_peer>(kept_in({}), byte_count{128 * page}, std::uint16_t{0}, true);
    const std::uint16_t port = peer->port();
    bereaved b(port);
    b.space.flush();
    peer.reset();
    peer = std::make_unique<pager::paging_peer>(kept_in({}), byte_count{128 * page}, port, true);
    for (int round = 0; round < 2; ++round) {
        const bereaved::seen s = b.look();
        EXPECT_EQ(s.wrong, 0u);
        EXPECT_GE(s.failed, 128u - 16u);
        EXPECT_GT(s.right, 0u) << "what is in memory is still there";
        EXPECT_THROW(b.space.flush(), std::system_error);
    }
    // The peer itself is well, and takes the next client.
    pager::tcp_store next("127.0.0.1", port, {128 * page}, test::patient());
    EXPECT_EQ(read(next, 0), filled(0));
}

TEST(tcp, a_peer_that_kept_the_pages_goes_on) {
    const test::temporary_folder folder;
    const auto file = folder.file("pages");
    auto peer = std::make_unique<pager::paging_peer>(kept_in(file), byte_count{128 * page}, std::uint16_t{0}, true);
    if (kept_in(folder.file("probe")).identity() == 0) {
        GTEST_SKIP() << "this file system does not tell when a file was made";
    }
    const std::uint16_t port = peer->port();
    bereaved b(port);
    peer.reset();
    peer = std::make_unique<pager::paging_peer>(kept_in(file), byte_count{128 * page}, port, true);
    EXPECT_EQ(b.look().right, 128u);
    b.space.flush();
    // Another file in its place is other content.
    peer.reset();
    std::filesystem::rename(file, folder.file("old"));
    peer = std::make_unique<pager::paging_peer>(kept_in(file), byte_count{128 * page}, port, true);
    const bereaved::seen s = b.look();
    EXPECT_EQ(s.wrong, 0u);
    EXPECT_GE(s.failed, 128u - 16u);
}

/// While the peer is away its file becomes all zeros, in the same inode.
TEST(tcp, a_peer_whose_file_lost_the_pages_while_it_was_away_fails_the_accesses) {
    const test::temporary_folder folder;
    const auto file = folder.file("pages");
    for (const bool lengthened : {false, true}) {
        std::filesystem::remove(file);
        auto peer = std::make_unique<pager::paging_peer>(kept_in(file), byte_count{128 * page}, std::uint16_t{0}, true);
        const std::uint16_t port = peer->port();
        bereaved b(port);
        b.space.flush();
        peer.reset();
        std::filesystem::resize_file(file, 0);
        if (lengthened) {
            std::filesystem::resize_file(file, 128 * page);
        }
        peer = std::make_unique<pager::paging_peer>(kept_in(file), byte_count{128 * page}, port, true);
        const bereaved::seen s = b.look();
        EXPECT_EQ(s.wrong, 0u) << lengthened;
        EXPECT_GE(s.failed, 128u - 16u) << lengthened;
        EXPECT_GT(s.right, 0u) << "what is in memory is still there";
    }
}

/// Instance and generation are right, and so is everything but the content.
TEST(tcp, a_page_that_a_peer_changed_is_refused) {
    struct held {
        pager::io_result read(store_offset at, std::span<std::byte> in) noexcept { return inner->read(at, in); }
        pager::io_result write(store_offset at, std::span<const std::byte> out) noexcept {
            return inner->write(at, out);
        }
        int sync() noexcept { return 0; }
        std::shared_ptr<pager::sparse_store> inner;
    };
    const auto inner = std::make_shared<pager::sparse_store>(byte_count{128 * page});
    const pager::paging_peer peer(pager::any_store(held{inner}), byte_count{128 * page}, std::uint16_t{0}, true);
    pager::tcp_store s("127.0.0.1", peer.port(), {128 * page}, test::patient());
    content c = filled(1);
    EXPECT_TRUE(s.write(store_offset{0}, c).complete(page));
    std::vector<pager::write_request> batch{{store_offset{page}, c}, {store_offset{2 * page}, c}};
    s.write_batch(batch);
    EXPECT_EQ(read(s, 3 * page), filled(0));
    EXPECT_EQ(s.discard(store_offset{4 * page}, {page}), 0);
    for (std::size_t p = 0; p < 5; ++p) {
        c = filled(7);
        EXPECT_TRUE(inner->write(store_offset{p * page}, c).complete(page));
        EXPECT_EQ(s.read(store_offset{p * page}, c).error, EIO) << "page " << p;
        EXPECT_TRUE(s.write(store_offset{p * page}, c).complete(page));
        EXPECT_EQ(read(s, p * page), c);
    }
}

/// A peer in a process of its own, on `port` or any. The port that it got is written to `told`.
pid_t peer_process(std::uint16_t port, std::uint16_t& told) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    ::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
        const pager::paging_peer peer(kept_in({}), byte_count{128 * page}, port, true);
        const std::uint16_t mine = peer.port();
        (void)!::write(ends[1], &mine, sizeof mine);
        for (;;) {
            ::pause();
        }
    }
    EXPECT_EQ(::read(ends[0], &told, sizeof told), static_cast<ssize_t>(sizeof told));
    ::close(ends[0]);
    ::close(ends[1]);
    return child;
}

TEST(tcp, a_peer_that_is_killed_while_it_is_used_never_answers_zeros) {
    std::uint16_t port = 0;
    pid_t child = peer_process(0, port);
    {
        bereaved b(port);
        for (int life = 0; life < 3; ++life) {
            ::kill(child, SIGKILL);
            ::waitpid(child, nullptr, 0);
            child = peer_process(port, port);
            EXPECT_EQ(b.look().wrong, 0u);
        }
        EXPECT_THROW(b.space.flush(), std::system_error);
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
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
    pager::tcp_store s("127.0.0.1", w.peer.port(), {128 * page}, test::patient());
    EXPECT_EQ(read(s, 0), filled(0));
}

}  // namespace
