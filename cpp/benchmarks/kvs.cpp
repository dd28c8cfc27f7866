// varve-kvs: page traffic of a key-value store that has less local memory than data.
#include <time.h>

#include <chrono>
#include <thread>

#include "build.hpp"
#include "stopwatch.hpp"

namespace {

void rest(const bench::options& chosen) {
    std::this_thread::sleep_for(std::chrono::milliseconds(chosen.rest_ms));
}

/// CLOCK_MONOTONIC, as in traces.
std::uint64_t monotonic_ns() {
    timespec t{};
    ::clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

/// Queries leave the structure as it is and start with everything paged out, so a store serves several runs.
void query(const bench::built_store& built, const bench::options& chosen) {
    bench::generator random = built.random;
    bench::variant& store = *built.store;
    bench::rank_distribution rank(chosen.elements, chosen.zipf);
    std::bernoulli_distribution is_update(chosen.update_ratio);
    std::uniform_int_distribution<std::size_t> length(1, 100);
    std::uint64_t checksum = 0;
    if (chosen.fetch_ahead) {
        store.fetch_ahead();
    }
    std::uint64_t scans = 0;
    store.start_counting(chosen.buffer(), chosen.replacement);
    const std::uint64_t paged_out = monotonic_ns();
    rest(chosen);
    const std::uint64_t began = monotonic_ns();
    const bench::stopwatch querying;
    for (std::uint64_t i = 0; i < chosen.operations; ++i) {
        const bench::key_type key = bench::key_of(rank(random));
        if (is_update(random)) {
            store.update(key, bench::random_value(random));
        } else {
            ++scans;
            checksum += store.scan(key, length(random));
        }
    }
    const std::uint64_t query_ns = querying.nanoseconds();
    const std::uint64_t ended = monotonic_ns();
    const std::optional<bench::paging> real = store.real_paging();
    const varve::page_traffic traffic = store.traffic();
    rest(chosen);
    const std::uint64_t rested = monotonic_ns();

    bench::report out("varve-kvs/1", chosen.json);
    out.add("structure", chosen.structure);
    out.add("placement", chosen.placement);
    out.add("elements", chosen.elements);
    out.add("operations", chosen.operations);
    out.add("local_percent", chosen.local_percent);
    out.add("zipf", chosen.zipf);
    out.add("update_ratio", chosen.update_ratio);
    out.add("pager", real ? "real" : "simulated");
    out.add("replacement", real ? "refault" : chosen.replacement == varve::replacement::clock ? "clock" : "fifo");
    out.add("local_bytes", std::uint64_t{chosen.purely_local().value});
    out.add("buffer_pages", std::uint64_t{chosen.buffer().value});
    out.add("page_reads", traffic.reads);
    out.add("page_writes", traffic.writes);
    out.add("dirty_pages_left", traffic.dirty);
    out.add("scans", scans);
    if (real) {
        out.add("fetch_ahead", std::uint64_t{chosen.fetch_ahead});
        out.add("faults", real->faults);
        out.add("write_traps", real->write_traps);
        out.add("paged_start", std::uint64_t{reinterpret_cast<std::uintptr_t>(real->start)});
        out.add("paged_end", std::uint64_t{reinterpret_cast<std::uintptr_t>(real->end)});
        out.add("paged_out_ns", paged_out);
        out.add("query_began_ns", began);
        out.add("query_ended_ns", ended);
        out.add("rested_ns", rested);
    }
    bench::add_construction(out, built);
    out.add("query_ns", query_ns);
    out.add("checksum", checksum);
    out.print();
}

}  // namespace

int main(int count, char** arguments) try {
    int exit_code = 0;
    auto chosen = bench::parse(
        count, arguments, "Builds a key-value store, pages it out, and counts the pages that queries read.", exit_code);
    if (!chosen) {
        return exit_code;
    }
    bench::built_store built;
    for (const double local : chosen->all_local) {
        chosen->local_percent = local;
        if (built.store == nullptr || chosen->has_local_part() || chosen->pager == bench::pager_kind::real) {
            built.store.reset();
            built = bench::build(*chosen);
        }
        for (const double zipf : chosen->all_zipf) {
            for (const double updates : chosen->all_updates) {
                chosen->zipf = zipf;
                chosen->update_ratio = updates;
                for (const varve::replacement policy : chosen->all_replacements) {
                    chosen->replacement = policy;
                    query(built, *chosen);
                }
            }
        }
    }
    return 0;
} catch (const std::exception& e) {
    std::cerr << "error: " << e.what()
              << "\nhint: fewer --elements need less memory; --pager simulated needs no privilege\n";
    return 1;
}
