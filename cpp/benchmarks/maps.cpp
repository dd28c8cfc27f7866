// varve-maps: the ordered maps on plain memory, beside others of the same node size. Each measurement runs in a process
// of its own, whose heap is empty, contiguous and already backed by memory, so that none depends on what another left
// behind; all get the same keys in the same order, and the order of the maps changes from round to round.
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <map>
#include <vector>

#include "report.hpp"
#include "stopwatch.hpp"
#include "varve/containers/btree_map.hpp"
#include "varve/containers/skip_list_map.hpp"
#include "workload.hpp"
#ifdef VARVE_BENCH_ABSEIL
#include <absl/container/btree_map.h>
#endif
#ifdef VARVE_BENCH_TLX
#include <tlx/container/btree_map.hpp>
#endif

namespace {

/// Bytes that all counting allocators hold now.
std::size_t held_bytes = 0;

template <class T>
struct counting_allocator {
    using value_type = T;
    counting_allocator() = default;
    template <class U>
    counting_allocator(const counting_allocator<U>&) {}
    T* allocate(std::size_t n) {
        held_bytes += n * sizeof(T);
        return std::allocator<T>().allocate(n);
    }
    void deallocate(T* p, std::size_t n) {
        held_bytes -= n * sizeof(T);
        std::allocator<T>().deallocate(p, n);
    }
    friend bool operator==(const counting_allocator&, const counting_allocator&) { return true; }
    friend bool operator!=(const counting_allocator&, const counting_allocator&) { return false; }
};

using key = std::uint64_t;
using memory = counting_allocator<std::pair<const key, std::uint64_t>>;

enum operation { append, insert, hit, miss, scan, erase, operations };
constexpr std::array<std::string_view, operations> operation_names{"append", "insert", "hit", "miss", "scan", "erase"};

struct times {
    std::array<double, operations> ns{};  ///< per operation
    double bytes_per_element = 0;
};

struct input {
    std::vector<key> random;
    std::vector<key> ascending;
    std::vector<key> asked;
    std::vector<key> absent;
};

volatile key sink;

template <class Act>
double per_operation(std::size_t count, Act act) {
    const bench::stopwatch watch;
    act();
    return static_cast<double>(watch.nanoseconds()) / static_cast<double>(count);
}

template <class Map>
void measure_appending(times& t, const input& in) {
    Map m;
    t.ns[append] = per_operation(in.ascending.size(), [&] {
        for (const key k : in.ascending) {
            m.insert({k, k});
        }
    });
    sink = m.size();
}

template <class Map>
void measure(times& t, const input& in) {
    const std::size_t n = in.random.size();
    Map m;
    t.ns[insert] = per_operation(n, [&] {
        for (const key k : in.random) {
            m.insert({k, k});
        }
    });
    t.bytes_per_element = static_cast<double>(held_bytes) / static_cast<double>(n);
    key sum = 0;
    t.ns[hit] = per_operation(n, [&] {
        for (const key k : in.asked) {
            sum += m.find(k)->second;
        }
    });
    t.ns[miss] = per_operation(n, [&] {
        for (const key k : in.absent) {
            sum += m.find(k) == m.end() ? 1 : 0;
        }
    });
    t.ns[scan] = per_operation(n, [&] {
        for (const auto& [k, v] : m) {
            sum += v;
        }
    });
    t.ns[erase] = per_operation(n, [&] {
        for (const key k : in.asked) {
            m.erase(k);
        }
    });
    sink = sum + m.size();
}

/// Puts so many bytes of backed memory at the heap's disposal, and keeps the heap from giving them back.
void warm_heap(std::size_t bytes) {
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
    std::vector<void*> pieces;
    for (; bytes > 0; bytes -= std::min<std::size_t>(bytes, 1 << 20)) {
        pieces.push_back(std::memset(std::malloc(1 << 20), 1, 1 << 20));
    }
    for (void* p : pieces) {
        std::free(p);
    }
}

using measurement = void (*)(times&, const input&);

struct contestant {
    std::string_view name;
    std::array<measurement, 2> parts;
    std::vector<times> rounds{};
};

template <class Map>
contestant entry(std::string_view name) {
    return {name, {measure_appending<Map>, measure<Map>}};
}

/// Runs a part in a process of its own. False if that failed.
bool measure_apart(measurement part, times& t, const input& in) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) {
        return false;
    }
    const pid_t child = fork();
    if (child == 0) {
        warm_heap(in.random.size() * 80);
        part(t, in);
        _exit(write(ends[1], &t, sizeof(t)) == ssize_t{sizeof(t)} ? 0 : 1);
    }
    close(ends[1]);
    const bool whole = read(ends[0], &t, sizeof(t)) == ssize_t{sizeof(t)};
    close(ends[0]);
    int status = 1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0 && whole;
}

struct range {
    double best;
    double worst;
};
range range_of(const contestant& c, operation what) {
    range r{1e300, 0};
    for (const times& t : c.rounds) {
        r = {std::min(r.best, t.ns[what]), std::max(r.worst, t.ns[what])};
    }
    return r;
}

/// Times are best of all rounds, with the worst beside; ratios are those of the best.
void print(const contestant& c, const std::vector<contestant>& all, std::size_t n, bool json) {
    bench::report out("varve-maps/2", json);
    out.add("map", c.name);
    out.add("elements", std::uint64_t{n});
    out.add("rounds", std::uint64_t{c.rounds.size()});
    out.add("bytes_per_element", c.rounds.front().bytes_per_element);
    for (std::size_t i = 0; i < operations; ++i) {
        const auto what = static_cast<operation>(i);
        const range mine = range_of(c, what);
        const std::string name(operation_names[i]);
        out.add(name + "_ns", mine.best);
        out.add(name + "_worst_ns", mine.worst);
        for (const contestant& other : all) {
            if (other.name == "absl::btree_map" || other.name == "std::map") {
                out.add(name + (other.name == "std::map" ? "_over_std" : "_over_abseil"),
                        mine.best / range_of(other, what).best);
            }
        }
    }
    out.print();
    if (!json) {
        std::cout << '\n';
    }
}

bool number(const char* text, std::size_t& value) {
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
    return error == std::errc() && *end == '\0' && value > 0;
}

input make_input(std::size_t n) {
    input in;
    for (std::uint64_t i = 0; i < n; ++i) {
        in.random.push_back(bench::key_of(i));
        in.absent.push_back(bench::key_of(n + i));
    }
    in.ascending = in.asked = in.random;
    std::sort(in.ascending.begin(), in.ascending.end());
    bench::generator random;
    std::shuffle(in.asked.begin(), in.asked.end(), random);
    return in;
}

}  // namespace

int main(int count, char** arguments) {
    std::size_t n = 1'000'000;
    std::size_t rounds = 5;
    bool json = false;
    std::string_view only;
    for (int i = 1; i < count; ++i) {
        const std::string_view name = arguments[i];
        if (name == "--json") {
            json = true;
        } else if (name == "--only" && i + 1 < count) {
            only = arguments[++i];
        } else if (i + 1 == count || !((name == "--elements" && number(arguments[i + 1], n)) ||
                                       (name == "--rounds" && number(arguments[i + 1], rounds)))) {
            std::cerr << "usage: varve-maps [--elements N] [--rounds N] [--only MAP] [--json]\n"
                         "Times the ordered maps on plain memory: best and worst of N rounds, in ns per operation.\n";
            return name == "--help" ? 0 : 2;
        } else {
            ++i;
        }
    }
    using less = std::less<key>;
    // A node of 256 bytes, as Abseil's and tlx's.
    std::vector<contestant> all{
        entry<varve::btree_map<key, std::uint64_t, 16, less, memory>>("varve::btree_map<16>"),
        entry<varve::skip_list_map<key, std::uint64_t, less, memory>>("varve::skip_list_map"),
        entry<std::map<key, std::uint64_t, less, memory>>("std::map"),
#ifdef VARVE_BENCH_ABSEIL
        entry<absl::btree_map<key, std::uint64_t, less, memory>>("absl::btree_map"),
#endif
#ifdef VARVE_BENCH_TLX
        entry<tlx::btree_map<key, std::uint64_t, less, tlx::btree_default_traits<key, std::pair<key, std::uint64_t>>,
                             memory>>("tlx::btree_map"),
#endif
    };
    if (!only.empty()) {
        std::erase_if(all, [&](const contestant& c) { return c.name.find(only) == std::string_view::npos; });
    }
    const input in = make_input(n);
    for (std::size_t round = 0; round < rounds; ++round) {
        for (std::size_t i = 0; i < all.size(); ++i) {
            contestant& c = all[(i + round) % all.size()];
            times t;
            for (const measurement part : c.parts) {
                if (!measure_apart(part, t, in)) {
                    std::cerr << "varve-maps: a measurement of " << c.name
                              << " ended without a result\n"
                                 "hint: it may have run out of memory; try fewer --elements\n";
                    return 1;
                }
            }
            c.rounds.push_back(t);
        }
    }
    for (const contestant& c : all) {
        print(c, all, n, json);
    }
    return 0;
}
