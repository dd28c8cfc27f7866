// varve-links: where the links of a structure lead after a bulk of insertions.
#include <sys/resource.h>

#include "options.hpp"
#include "report.hpp"
#include "stopwatch.hpp"

int main(int count, char** arguments) try {
    int exit_code = 0;
    const auto chosen = bench::parse(
        count, arguments, "Builds a structure and counts its links: purely local, in-page, cross-page.", exit_code);
    if (!chosen) {
        return exit_code;
    }
    const auto store = bench::make(*chosen);
    bench::generator random;
    const bench::stopwatch building;
    bench::construct(*store, *chosen, random);
    const std::uint64_t construct_ns = building.nanoseconds();
    rusage before{};
    getrusage(RUSAGE_SELF, &before);
    const bench::stopwatch reblocking;
    store->reblock();
    const std::uint64_t reblock_ns = reblocking.nanoseconds();
    rusage after{};
    getrusage(RUSAGE_SELF, &after);
    const varve::link_count links = store->links();
    const bench::footprint memory = store->memory();

    bench::report out("varve-links/1", chosen->json);
    out.add("structure", chosen->structure);
    out.add("placement", chosen->placement);
    out.add("elements", chosen->elements);
    out.add("local_bytes", std::uint64_t{chosen->purely_local().value});
    out.add("local_links", std::uint64_t{links.local});
    out.add("in_page_links", std::uint64_t{links.in_page});
    out.add("cross_page_links", std::uint64_t{links.cross_page});
    out.add("local_bytes_used", std::uint64_t{memory.local.value});
    out.add("swappable_bytes_used", std::uint64_t{memory.swappable.value});
    out.add("construct_ns", construct_ns);
    out.add("reblock_ns", reblock_ns);
    out.add("peak_bytes_built", static_cast<std::uint64_t>(before.ru_maxrss) * 1024);
    out.add("peak_bytes_reblocked", static_cast<std::uint64_t>(after.ru_maxrss) * 1024);
    out.print();
    return 0;
} catch (const std::exception& e) {
    std::cerr << "error: " << e.what() << "\nhint: fewer --elements need less memory\n";
    return 1;
}
