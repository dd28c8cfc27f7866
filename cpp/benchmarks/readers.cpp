// varve-readers: look-ups a second by 1, 2, 4 and 8 threads beside a writer: with left_right, with a lock that readers
// share, and with nothing, where nobody writes. The ways take turns.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstring>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "report.hpp"
#include "varve/containers/btree_map.hpp"
#include "varve/containers/left_right.hpp"
#include "workload.hpp"

namespace {

using map = varve::btree_map<std::uint64_t, std::uint64_t>;

class by_left_right {
public:
    explicit by_left_right(const map& content) : copies_(content) {}
    [[nodiscard]] bool contains(std::uint64_t key) const {
        return copies_.read([key](const map& m) { return m.contains(key); });
    }
    void change(std::uint64_t key, std::uint64_t value) {
        copies_.write([=](map& m) { m.insert_or_assign(key, value); });
    }

private:
    varve::left_right<map> copies_;
};

class by_shared_lock {
public:
    explicit by_shared_lock(const map& content) : map_(content) {}
    [[nodiscard]] bool contains(std::uint64_t key) const {
        const std::shared_lock guard(lock_);
        return map_.contains(key);
    }
    void change(std::uint64_t key, std::uint64_t value) {
        const std::lock_guard guard(lock_);
        map_.insert_or_assign(key, value);
    }

private:
    map map_;
    mutable std::shared_mutex lock_;
};

class unprotected {
public:
    explicit unprotected(const map& content) : map_(content) {}
    [[nodiscard]] bool contains(std::uint64_t key) const { return map_.contains(key); }
    static void change(std::uint64_t, std::uint64_t) {}

private:
    map map_;
};

struct rates {
    double reads = 0;   ///< a second, of all readers
    double writes = 0;  ///< a second
};

template <class Way>
rates run(Way& way, std::size_t elements, unsigned readers, bool writing) {
    std::atomic<bool> go{false};
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> reads{0};
    std::uint64_t writes = 0;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < readers; ++t) {
        threads.emplace_back([&, t] {
            std::uint64_t n = 0;
            std::uint64_t found = 0;
            std::uint64_t x = t + 1;
            while (!go.load()) {
                std::this_thread::yield();
            }
            for (; !stop.load(std::memory_order_relaxed); ++n) {
                x = x * 6364136223846793005u + 1442695040888963407u;
                found += way.contains(bench::key_of((x >> 33) % elements)) ? 1 : 0;
            }
            reads += found == n ? n : 0;
        });
    }
    threads.emplace_back([&] {
        std::uint64_t x = 99;
        while (!stop.load(std::memory_order_relaxed)) {
            if (writing && go.load()) {
                x = x * 6364136223846793005u + 1442695040888963407u;
                way.change(bench::key_of((x >> 33) % elements), x);
                ++writes;
            }
            std::this_thread::sleep_for(std::chrono::microseconds(50));  // a writer that does something else too
        }
    });
    go.store(true);
    const auto start = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stop.store(true);
    for (std::thread& t : threads) {
        t.join();
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return {static_cast<double>(reads.load()) / seconds, static_cast<double>(writes) / seconds};
}

bool number(const char* text, std::size_t& value) {
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
    return error == std::errc() && *end == '\0' && value > 0;
}

}  // namespace

int main(int count, char** arguments) {
    std::size_t elements = 1'000'000;
    std::size_t rounds = 5;
    bool json = false;
    for (int i = 1; i < count; ++i) {
        const std::string_view name = arguments[i];
        if (name == "--json") {
            json = true;
        } else if (i + 1 == count || !((name == "--elements" && number(arguments[i + 1], elements)) ||
                                       (name == "--rounds" && number(arguments[i + 1], rounds)))) {
            std::cerr << "usage: varve-readers [--elements N] [--rounds N] [--json]\n"
                         "Look-ups a second beside a writer, best and worst of N rounds.\n";
            return name == "--help" ? 0 : 2;
        } else {
            ++i;
        }
    }
    map content;
    for (std::uint64_t i = 0; i < elements; ++i) {
        content.emplace(bench::key_of(i), i);
    }
    by_left_right left_right(content);
    by_shared_lock shared_lock(content);
    unprotected alone(content);
    for (const unsigned readers : {1u, 2u, 4u, 8u}) {
        std::vector<rates> results[3];
        for (std::size_t round = 0; round < rounds; ++round) {
            for (std::size_t i = 0; i < 3; ++i) {
                const std::size_t way = (i + round) % 3;
                results[way].push_back(way == 0   ? run(left_right, elements, readers, true)
                                       : way == 1 ? run(shared_lock, elements, readers, true)
                                                  : run(alone, elements, readers, false));
            }
        }
        const char* names[] = {"left_right", "shared_lock", "no_writer"};
        for (std::size_t way = 0; way < 3; ++way) {
            const auto less = [](const rates& a, const rates& b) { return a.reads < b.reads; };
            const auto [worst, best] = std::minmax_element(results[way].begin(), results[way].end(), less);
            bench::report out("varve-readers/1", json);
            out.add("way", names[way]);
            out.add("elements", std::uint64_t{elements});
            out.add("readers", std::uint64_t{readers});
            out.add("reads_per_second", best->reads);
            out.add("worst_reads_per_second", worst->reads);
            out.add("writes_per_second", best->writes);
            out.add("over_no_writer",
                    best->reads / std::max_element(results[2].begin(), results[2].end(), less)->reads);
            out.print();
        }
    }
    return 0;
}
