// An ordered map whose top is in local memory and whose other nodes are laid out page by page.
#include <iostream>
#include <string>
#include <varve/varve.hpp>

int main() {
    using namespace varve::literals;
    using element = std::pair<const int, std::string>;
    using allocator = varve::collective_allocator<element>;
    using map = varve::btree_map<int, std::string, 16, std::less<int>, allocator, varve::placement::local_dfs>;

    // 64 KiB that are never paged out, and up to 1 GiB that may be.
    const allocator memory({64_KiB, 1_GiB});
    map cities(memory);
    for (int i = 0; i < 20'000; ++i) {
        cities.emplace(i * 7919 % 20'000, "city " + std::to_string(i));
    }

    const auto show = [&](const char* when) {
        const varve::link_count links = cities.count_links();
        std::cout << when << ": " << links.local << " links in local memory, " << links.in_page << " inside a page, "
                  << links.cross_page << " across pages\n";
    };
    show("as inserted");
    // In small steps, so that the program can go on in between.
    while (!cities.reblock_step(500)) {
        cities.insert_or_assign(42, "meanwhile");
    }
    show("re-blocked ");
    std::cout << cities.lower_bound(41)->second << ", " << cities.at(42) << '\n';
}
