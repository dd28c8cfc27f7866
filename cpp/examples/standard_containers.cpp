// Standard containers on chosen parts of a memory.
#include <iostream>
#include <map>
#include <numeric>
#include <varve/varve.hpp>
#include <vector>

int main() {
    using namespace varve::literals;
    const varve::collective_allocator<int> memory({1_MiB, 1_GiB});

    // A vector that is never paged out.
    std::vector<int, varve::sub_allocator<int>> hot(1000, 1, memory.sub(varve::purely_local));

    // A small map that lies on one page altogether: reading all of it costs one page at most.
    using element = std::pair<const int, int>;
    std::map<int, int, std::less<>, varve::sub_allocator<element>> together(memory.sub(varve::fresh_page));
    for (int i = 0; i < 40; ++i) {
        together.emplace(i, i * i);
    }
    std::cout << "the map takes " << together.get_allocator().how_full().used.value << " bytes of its page\n";

    // What belongs to the map joins it there, while there is room.
    auto same_page = memory.sub(varve::owner_of{&*together.begin()});
    if (int* note = same_page.try_allocate(1)) {
        std::cout << "the note is on the same page: " << std::boolalpha << memory.same_page(note, &*together.begin())
                  << '\n';
        same_page.deallocate(note, 1);
    }

    // Polymorphic containers, with the part chosen at run time.
    varve::part_resource<> resource(memory.sub(varve::swappable_plain));
    std::pmr::vector<int> cold(hot.begin(), hot.end(), &resource);
    std::cout << "sum " << std::accumulate(cold.begin(), cold.end(), 0) << '\n';
}
