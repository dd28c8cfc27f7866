// varve-links: where the links of a structure lead after a bulk of insertions.
#include "build.hpp"

int main(int count, char** arguments) try {
    int exit_code = 0;
    const auto chosen = bench::parse(
        count, arguments, "Builds a structure and counts its links: purely local, in-page, cross-page.", exit_code);
    if (!chosen) {
        return exit_code;
    }
    const bench::built_store built = bench::build(*chosen);

    bench::report out("varve-links/1", chosen->json);
    out.add("structure", chosen->structure);
    out.add("placement", chosen->placement);
    out.add("elements", chosen->elements);
    out.add("local_bytes", std::uint64_t{chosen->purely_local().value});
    bench::add_construction(out, built);
    out.print();
    return 0;
} catch (const std::exception& e) {
    std::cerr << "error: " << e.what() << "\nhint: fewer --elements need less memory\n";
    return 1;
}
