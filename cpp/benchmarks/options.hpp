// The command line of the benchmarks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "variant.hpp"

namespace bench {

struct options {
    std::string structure = "btree";
    std::string placement = "auto";
    double local_percent = 50;
    double zipf = 0.8;
    double update_ratio = 0.05;
    /// What was given as lists, for a sweep: every combination, the value of `local` changing least often.
    std::vector<double> all_local{50};
    std::vector<double> all_zipf{0.8};
    std::vector<double> all_updates{0.05};
    std::uint64_t elements = 13'421'773;
    std::uint64_t operations = 10'000;
    varve::replacement replacement = varve::replacement::clock;
    std::vector<varve::replacement> all_replacements{varve::replacement::clock};
    pager_kind pager = pager_kind::simulated;
    /// Rest before and after the queries, milliseconds: a recorder's intervals tell them apart then.
    unsigned rest_ms = 0;
    /// Scans fetch their pages before they walk.
    bool fetch_ahead = false;
    bool json = false;

    /// Local memory split as the study does it, in whole pages of 4 KiB.
    [[nodiscard]] varve::byte_count total_local() const;
    [[nodiscard]] varve::byte_count purely_local() const;
    [[nodiscard]] varve::page_count buffer() const;
    [[nodiscard]] bool has_local_part() const;
};

/// Nothing where the program should end with `exit_code`: help was asked for, or the arguments are wrong and that has
/// been said on standard error.
[[nodiscard]] std::optional<options> parse(int count, char** arguments, std::string_view what_it_does, int& exit_code);

/// An empty variant with the memory that the options give it.
[[nodiscard]] std::unique_ptr<variant> make(const options& chosen);

/// Inserts all elements.
void construct(variant& store, const options& chosen, generator& random);

}  // namespace bench
