// Bytes become operations on a tree, a list and std::map, on a memory that the first bytes make as scarce as they like.
#include <cstdint>
#include <cstdlib>
#include <map>

#include "varve/varve.hpp"

namespace {

using element = std::pair<const std::uint16_t, std::uint32_t>;
using allocator = varve::collective_allocator<element>;
using model = std::map<std::uint16_t, std::uint32_t>;

void require(bool truth) {
    if (!truth) {
        std::abort();
    }
}

/// The same change to both; running out of memory must change neither.
template <class Map>
void apply(Map& map, model& expected, std::uint8_t operation, std::uint16_t key, std::uint32_t value) {
    try {
        switch (operation % 8) {
            case 0:
            case 1:
            case 2: {
                const auto [at, fresh] = map.emplace(key, value);
                require(fresh == !expected.contains(key) && at->first == key);
                expected.emplace(key, value);
                break;
            }
            case 3:
                require(map.erase(key) == expected.erase(key));
                break;
            case 4: {
                const auto at = map.lower_bound(key);
                const auto wanted = expected.lower_bound(key);
                require((at == map.end()) == (wanted == expected.end()));
                if (at != map.end()) {
                    require(at->first == wanted->first);
                    const auto next = map.erase(at);
                    const auto wanted_next = expected.erase(wanted);
                    require((next == map.end()) == (wanted_next == expected.end()));
                }
                break;
            }
            case 5:
                map.reblock_step(value % 64);
                break;
            case 6:
                map.insert_or_assign(key, value);
                expected.insert_or_assign(key, value);
                break;
            default:
                require(map.contains(key) == expected.contains(key));
        }
    } catch (const std::bad_alloc&) {
    }
}

template <class Map>
void check(const Map& map, const model& expected) {
    require(map.size() == expected.size());
    require(std::equal(map.begin(), map.end(), expected.begin(), expected.end()));
    require(std::equal(map.rbegin(), map.rend(), expected.rbegin(), expected.rend()));
}

template <class Map>
void run(const std::uint8_t* data, std::size_t size) {
    const allocator memory(
        varve::heap_sizes{{std::size_t{4096} * (data[0] % 8)}, {std::size_t{4096} * (1 + data[1] % 64)}});
    Map map(memory);
    model expected;
    for (std::size_t i = 2; i + 4 <= size; i += 4) {
        const auto key = static_cast<std::uint16_t>(data[i + 1] | data[i + 2] % 16 << 8);
        apply(map, expected, data[i], key, data[i + 3]);
    }
    check(map, expected);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    namespace policy = varve::placement;
    using less = std::less<std::uint16_t>;
    if (size < 3) {
        return 0;
    }
    switch (data[2] % 4) {
        case 0:
            run<varve::btree_map<std::uint16_t, std::uint32_t, 3, less, allocator, policy::local_dfs>>(data, size);
            break;
        case 1:
            run<varve::btree_map<std::uint16_t, std::uint32_t, 4, less, allocator, policy::veb>>(data, size);
            break;
        case 2:
            run<varve::btree_map<std::uint16_t, std::uint32_t, 20, less, allocator, policy::local_veb>>(data, size);
            break;
        default:
            run<varve::skip_list_map<std::uint16_t, std::uint32_t, less, allocator, policy::local_page>>(data, size);
    }
    return 0;
}
