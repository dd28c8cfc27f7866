#include <varve/varve.hpp>

int main() {
    using namespace varve::literals;
    using element = std::pair<const int, int>;
    const varve::collective_allocator<element> memory({64_KiB, 64_MiB});
    varve::btree_map<int, int, 3, std::less<int>, varve::collective_allocator<element>, varve::placement::automatic>
        map(memory);
    for (int i = 0; i < 1000; ++i) {
        map.emplace(i, i);
    }
    map.reblock();
    return map.size() == 1000 && map.at(7) == 7 ? 0 : 1;
}
