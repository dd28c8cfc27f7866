// varve-maps: the ordered maps on plain memory, beside others of the same fan-out. All maps get the same keys in the
// same order, and take turns: what disturbs the machine for a while disturbs all of them.
#include <algorithm>
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
};

using key = std::uint64_t;
using element = std::pair<const key, std::uint64_t>;
using memory = counting_allocator<element>;
/// What fits a node of 256 bytes, the size of Abseil's.
constexpr std::size_t fanout = 16;

using varve_btree = varve::btree_map<key, std::uint64_t, fanout, std::less<key>, memory>;
using varve_skip_list = varve::skip_list_map<key, std::uint64_t, std::less<key>, memory>;
using standard_map = std::map<key, std::uint64_t, std::less<key>, memory>;

/// Best times of one map, in nanoseconds per operation. The best of several rounds is the one that was disturbed least.
struct times {
    double insert = 1e300;
    double append = 1e300;
    double find = 1e300;
    double scan = 1e300;
    double erase = 1e300;
    double bytes_per_element = 0;
};

struct input {
    std::vector<key> random;
    std::vector<key> ascending;
    std::vector<key> asked;
};

volatile key sink;

template <class Act>
void best(double& of, std::size_t operations, Act act) {
    const bench::stopwatch watch;
    act();
    of = std::min(of, static_cast<double>(watch.nanoseconds()) / static_cast<double>(operations));
}

template <class Map>
void round_of(times& t, const input& in) {
    const std::size_t n = in.random.size();
    const std::size_t before = held_bytes;
    {
        Map m;
        best(t.append, n, [&] {
            for (const key k : in.ascending) {
                m.emplace(k, k);
            }
        });
    }
    Map m;
    best(t.insert, n, [&] {
        for (const key k : in.random) {
            m.emplace(k, k);
        }
    });
    t.bytes_per_element = static_cast<double>(held_bytes - before) / static_cast<double>(n);
    key sum = 0;
    best(t.find, n, [&] {
        for (const key k : in.asked) {
            sum += m.find(k)->second;
        }
    });
    best(t.scan, n, [&] {
        for (const auto& [k, v] : m) {
            sum += v;
        }
    });
    sink = sum;
    best(t.erase, n, [&] {
        for (const key k : in.asked) {
            m.erase(k);
        }
    });
}

void print(std::string_view name, const times& t, const times* peer, std::size_t n, bool json) {
    bench::report out("varve-maps/1", json);
    out.add("map", name);
    out.add("elements", std::uint64_t{n});
    out.add("insert_ns", t.insert);
    out.add("append_ns", t.append);
    out.add("find_ns", t.find);
    out.add("scan_ns", t.scan);
    out.add("erase_ns", t.erase);
    out.add("bytes_per_element", t.bytes_per_element);
    if (peer != nullptr) {
        out.add("insert_over_abseil", t.insert / peer->insert);
        out.add("append_over_abseil", t.append / peer->append);
        out.add("find_over_abseil", t.find / peer->find);
        out.add("scan_over_abseil", t.scan / peer->scan);
        out.add("erase_over_abseil", t.erase / peer->erase);
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

}  // namespace

int main(int count, char** arguments) {
    std::size_t n = 1'000'000;
    std::size_t rounds = 7;
    bool json = false;
    for (int i = 1; i < count; ++i) {
        const std::string_view name = arguments[i];
        if (name == "--json") {
            json = true;
        } else if (i + 1 == count || !((name == "--elements" && number(arguments[i + 1], n)) ||
                                       (name == "--rounds" && number(arguments[i + 1], rounds)))) {
            std::cerr << "usage: varve-maps [--elements N] [--rounds N] [--json]\n"
                         "Times the ordered maps on plain memory: best of N rounds, in ns per operation.\n";
            return name == "--help" ? 0 : 2;
        } else {
            ++i;
        }
    }
    input in;
    for (std::uint64_t i = 0; i < n; ++i) {
        in.random.push_back(bench::key_of(i));
    }
    in.ascending = in.asked = in.random;
    std::sort(in.ascending.begin(), in.ascending.end());
    bench::generator random;
    std::shuffle(in.asked.begin(), in.asked.end(), random);
    times tree;
    times list;
    times standard;
    [[maybe_unused]] times abseil;
    const times* peer = nullptr;
    for (; rounds > 0; --rounds) {
        round_of<varve_btree>(tree, in);
#ifdef VARVE_BENCH_ABSEIL
        round_of<absl::btree_map<key, std::uint64_t, std::less<key>, memory>>(abseil, in);
        peer = &abseil;
#endif
        round_of<varve_skip_list>(list, in);
        round_of<standard_map>(standard, in);
    }
    print("varve::btree_map<16>", tree, peer, n, json);
    print("varve::skip_list_map", list, peer, n, json);
    print("std::map", standard, peer, n, json);
    if (peer != nullptr) {
        print("absl::btree_map", *peer, nullptr, n, json);
    }
    return 0;
}
