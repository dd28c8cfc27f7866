#include <unistd.h>
#include <varve/pager/simulator.hpp>
#include <varve/pager/space.hpp>
#include <varve/pager/stores/file.hpp>
#include <varve/pager/stores/memory.hpp>
#include <varve/pager/stores/peer.hpp>
#include <varve/pager/stores/snapshot.hpp>
#include <varve/pager/stores/tcp.hpp>
#include <varve/varve.hpp>
#if __has_include(<lz4.h>)
#include <varve/pager/stores/compressed.hpp>
#endif

#include <filesystem>
#include <string>

namespace {

using namespace varve::literals;
using space = varve::pager::paged_space;
using element = std::pair<const int, int>;
using allocator = varve::collective_allocator<element, space>;

constexpr varve::byte_count size = 16_MiB;

/// A map of about 3 MiB on a space with 256 KiB of memory.
bool map_on(varve::pager::any_store store) {
    varve::pager::options o;
    o.local = 256_KiB;
    const allocator memory(
        std::make_shared<varve::heap<space>>(64_KiB, std::make_shared<space>(size, std::move(store), o)));
    varve::btree_map<int, int, 16, std::less<int>, allocator, varve::placement::automatic> map(memory);
    for (int i = 0; i < 100'000; ++i) {
        map.emplace(i, -i);
    }
    map.reblock();
    return map.at(77'777) == -77'777 && memory.memory().space().read_statistics().page_writes > 0;
}

}  // namespace

int main() {
    using varve::pager::any_store;
    bool right = map_on(any_store(varve::pager::memory_store(size)));
#if __has_include(<lz4.h>)
    right = right && map_on(any_store(varve::pager::compressed_store(size, 4_KiB)));
#endif
    const std::filesystem::path file =
        std::filesystem::temp_directory_path() / ("varve-consumer-" + std::to_string(::getpid()));
    right = right && map_on(any_store(varve::pager::file_store(file, size)));
#ifdef VARVE_PAGER_HAS_URING
    right = right && map_on(any_store(varve::pager::uring_store(file, size)));
#endif
    std::filesystem::remove(file);
    return right ? 0 : 1;
}
