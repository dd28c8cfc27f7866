#include "build.hpp"

#include <time.h>

#include <fstream>
#include <string>

#include "stopwatch.hpp"

namespace bench {

namespace {

/// A field of /proc/self/status in bytes: VmHWM is the most memory that the process had, VmRSS what it has.
varve::byte_count memory_of_process(std::string_view field) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with(field)) {
            return {std::stoull(line.substr(field.size() + 1)) * 1024};
        }
    }
    return {0};
}

/// From here on VmHWM is the peak since now. Not where a recorder looks on: it cannot tell this from one that clears
/// the accessed bits, and would count a loss.
void forget_peak(const options& chosen) {
    if (chosen.rest_ms == 0) {
        std::ofstream("/proc/self/clear_refs") << "5";
    }
}

std::uint64_t processor_ns() {
    timespec t{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

}  // namespace

built_store build(const options& chosen) {
    forget_peak(chosen);
    built_store built{make(chosen), {}, {}, 0, 0, 0, 0, {}, {}, {}, {}};
    const stopwatch building;
    const std::uint64_t processor_before = processor_ns();
    construct(*built.store, chosen, built.random);
    built.construct_ns = building.nanoseconds();
    const std::uint64_t processor_built = processor_ns();
    built.construct_processor_ns = processor_built - processor_before;
    built.peak_built = memory_of_process("VmHWM:");
    built.held_built = memory_of_process("VmRSS:");
    forget_peak(chosen);
    const stopwatch reblocking;
    built.store->reblock();
    built.reblock_ns = reblocking.nanoseconds();
    built.reblock_processor_ns = processor_ns() - processor_built;
    built.peak_reblocked = memory_of_process("VmHWM:");
    built.held_reblocked = memory_of_process("VmRSS:");
    built.links = built.store->links();
    return built;
}

void add_construction(report& out, const built_store& built) {
    const footprint memory = built.store->memory();
    out.add("local_links", std::uint64_t{built.links.local});
    out.add("in_page_links", std::uint64_t{built.links.in_page});
    out.add("cross_page_links", std::uint64_t{built.links.cross_page});
    out.add("local_bytes_used", std::uint64_t{memory.local.value});
    out.add("swappable_bytes_used", std::uint64_t{memory.swappable.value});
    out.add("construct_ns", built.construct_ns);
    out.add("construct_processor_ns", built.construct_processor_ns);
    out.add("reblock_ns", built.reblock_ns);
    out.add("reblock_processor_ns", built.reblock_processor_ns);
    out.add("peak_bytes_built", std::uint64_t{built.peak_built.value});
    out.add("held_bytes_built", std::uint64_t{built.held_built.value});
    out.add("peak_bytes_reblocked", std::uint64_t{built.peak_reblocked.value});
    out.add("held_bytes_reblocked", std::uint64_t{built.held_reblocked.value});
}

}  // namespace bench
