// A map larger than the memory that it may use: its nodes live on pages that are kept compressed while they are not in
// use, its top in memory that is never paged out.
#include <iostream>
#include <string>
#include <system_error>
#include <varve/pager/space.hpp>
#include <varve/varve.hpp>
#if __has_include(<lz4.h>)
#include <varve/pager/stores/compressed.hpp>
#else
#include <varve/pager/stores/memory.hpp>
#endif

int main() try {
    using namespace varve::literals;
    namespace pager = varve::pager;
    using space = pager::paged_space;
    using element = std::pair<const int, std::string>;
    using allocator = varve::collective_allocator<element, space>;
    using map = varve::btree_map<int, std::string, 16, std::less<int>, allocator, varve::placement::automatic>;

    // Addresses for 256 MiB of data, 1 MiB of memory for pages in use, 128 KiB for the top of the map. A file_store, a
    // tcp_store or a store of your own goes in the same place.
    pager::options options;
    options.local = 1_MiB;
    const varve::byte_count size = 256_MiB;
#if __has_include(<lz4.h>)
    const auto far = std::make_shared<space>(size, pager::compressed_store(size, options.page), options);
#else
    const auto far = std::make_shared<space>(size, pager::memory_store(size), options);
#endif
    const allocator memory(std::make_shared<varve::heap<space>>(128_KiB, far));

    map cities(memory);
    for (int i = 0; i < 100'000; ++i) {
        cities.emplace(i, "city " + std::to_string(i));
    }
    cities.reblock();

    far->page_out();
    const std::uint64_t before = far->read_statistics().page_reads;
    std::cout << cities.at(4711) << " cost " << far->read_statistics().page_reads - before << " pages\n";
    std::uint64_t letters = 0;
    for (const auto& [number, name] : cities) {
        letters += name.size();
    }
    const pager::statistics s = far->read_statistics();
    std::cout << letters << " letters in " << memory.memory().swappable().pages_in_use().value << " pages, at most "
              << s.peak_resident_pages << " of them in memory; " << s.page_reads << " read, " << s.page_writes
              << " written\n";
} catch (const std::system_error& e) {
    std::cerr << "error: " << e.what() << "\nhint: where userfaultfd is not permitted, use varve::plain_space\n";
    return 1;
}
