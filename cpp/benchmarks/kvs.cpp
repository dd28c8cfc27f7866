// varve-kvs: page traffic of a key-value store that has less local memory than data.
#include "build.hpp"
#include "stopwatch.hpp"

namespace {

/// Queries leave the structure as it is and start with everything paged out, so a store serves several runs.
void query(const bench::built_store& built, const bench::options& chosen) {
    bench::generator random = built.random;
    bench::variant& store = *built.store;
    bench::rank_distribution rank(chosen.elements, chosen.zipf);
    std::bernoulli_distribution is_update(chosen.update_ratio);
    std::uniform_int_distribution<std::size_t> length(1, 100);
    std::uint64_t checksum = 0;
    store.start_counting(chosen.buffer(), chosen.replacement);
    const bench::stopwatch querying;
    for (std::uint64_t i = 0; i < chosen.operations; ++i) {
        const bench::key_type key = bench::key_of(rank(random));
        if (is_update(random)) {
            store.update(key, bench::random_value(random));
        } else {
            checksum += store.scan(key, length(random));
        }
    }
    const std::uint64_t query_ns = querying.nanoseconds();
    const varve::page_traffic traffic = store.traffic();

    bench::report out("varve-kvs/1", chosen.json);
    out.add("structure", chosen.structure);
    out.add("placement", chosen.placement);
    out.add("elements", chosen.elements);
    out.add("operations", chosen.operations);
    out.add("local_percent", chosen.local_percent);
    out.add("zipf", chosen.zipf);
    out.add("update_ratio", chosen.update_ratio);
    out.add("replacement", chosen.replacement == varve::replacement::clock ? "clock" : "fifo");
    out.add("local_bytes", std::uint64_t{chosen.purely_local().value});
    out.add("buffer_pages", std::uint64_t{chosen.buffer().value});
    out.add("page_reads", traffic.reads);
    out.add("page_writes", traffic.writes);
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
        if (built.store == nullptr || chosen->has_local_part()) {
            built.store.reset();
            built = bench::build(*chosen);
        }
        for (const double zipf : chosen->all_zipf) {
            for (const double updates : chosen->all_updates) {
                chosen->zipf = zipf;
                chosen->update_ratio = updates;
                query(built, *chosen);
            }
        }
    }
    return 0;
} catch (const std::exception& e) {
    std::cerr << "error: " << e.what() << "\nhint: fewer --elements need less memory\n";
    return 1;
}
