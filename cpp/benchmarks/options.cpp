#include "options.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iostream>

namespace bench {

namespace {

constexpr std::size_t page_bytes = 4096;

template <class T>
bool number(std::string_view text, T& value, T low, T high) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value >= low && value <= high;
}

/// Numbers separated by commas; the first becomes the value of a single run.
bool numbers(std::string_view text, std::vector<double>& all, double& first, double low, double high) {
    all.clear();
    for (;;) {
        const std::size_t comma = text.find(',');
        double value = 0;
        if (!number(text.substr(0, comma), value, low, high)) {
            return false;
        }
        all.push_back(value);
        if (comma == std::string_view::npos) {
            first = all.front();
            return true;
        }
        text.remove_prefix(comma + 1);
    }
}

void usage(std::string_view program, std::string_view what_it_does) {
    std::cout
        << "usage: " << program << " [options]\n"
        << what_it_does
        << "\n"
           "  --structure btree|skiplist\n"
           "  --placement P       btree: hint local local+dfs dfs local+veb veb auto\n"
           "                      skiplist: hint local local+page page auto\n"
           "  --local PERCENT     local memory in percent of the data (default 50)\n"
           "  --zipf A            skew of the keys asked for (default 0.8)\n"
           "  --update U          share of updates among the operations (default 0.05)\n"
           "                      the last three take lists (varve-kvs): 5,10,25 sweeps\n"
           "  --elements N        elements of 160 bytes (default 13421773)\n"
           "  --operations N      operations (default 10000)\n"
           "  --replacement R     clock (default), fifo with UMap's watermarks, or clock,fifo (varve-kvs)\n"
           "  --pager P           simulated (default): a model counts pages; real: userfaultfd, a store in\n"
           "                      memory, and the pager's own replacement\n"
           "  --rest MS           rest before and after the queries, so that a recorder tells them apart; peaks are\n"
           "                      then since the start\n"
           "  --fetch-ahead       scans fetch their pages before they walk (trees, real pager)\n"
           "  --json              one JSON object instead of lines\n";
}

/// One place per option; false if there is no such option or its value is wrong.
bool apply(options& o, std::string_view name, std::string_view value) {
    if (name == "--structure") {
        o.structure = value;
        return value == "btree" || value == "skiplist";
    }
    if (name == "--placement") {
        o.placement = value;
        return true;
    }
    if (name == "--local") {
        return numbers(value, o.all_local, o.local_percent, 0.0, 100'000.0);
    }
    if (name == "--zipf") {
        return numbers(value, o.all_zipf, o.zipf, 0.01, 10.0);
    }
    if (name == "--update") {
        return numbers(value, o.all_updates, o.update_ratio, 0.0, 1.0);
    }
    if (name == "--elements") {
        return number<std::uint64_t>(value, o.elements, 1, std::uint64_t{1} << 34);
    }
    if (name == "--operations") {
        return number<std::uint64_t>(value, o.operations, 0, std::uint64_t{1} << 40);
    }
    if (name == "--replacement") {
        using enum varve::replacement;
        o.all_replacements =
            value == "clock,fifo" ? std::vector{clock, fifo} : std::vector{value == "fifo" ? fifo : clock};
        o.replacement = o.all_replacements.front();
        return value == "fifo" || value == "clock" || value == "clock,fifo";
    }
    if (name == "--pager") {
        o.pager = value == "real" ? pager_kind::real : pager_kind::simulated;
        return value == "real" || value == "simulated";
    }
    if (name == "--rest") {
        return number(value, o.rest_ms, 0u, 3'600'000u);
    }
    return false;
}

}  // namespace

std::vector<variant_name> variants() {
    return {{"btree", "hint", false},         {"btree", "local", true},     {"btree", "local+dfs", true},
            {"btree", "dfs", false},          {"btree", "local+veb", true}, {"btree", "veb", false},
            {"btree", "auto", true},          {"skiplist", "hint", false},  {"skiplist", "local", true},
            {"skiplist", "local+page", true}, {"skiplist", "page", false},  {"skiplist", "auto", true}};
}

bool options::has_local_part() const {
    const auto all = variants();
    return std::any_of(all.begin(), all.end(), [this](const variant_name& v) {
        return v.structure == structure && v.placement == placement && v.has_local_part;
    });
}

varve::byte_count options::total_local() const {
    return {static_cast<std::size_t>(static_cast<double>(element_bytes * elements) * local_percent / 100.0)};
}
varve::page_count options::buffer() const {
    const std::size_t pages = total_local().value / page_bytes;
    return {has_local_part() ? pages / 2 : pages};
}
varve::byte_count options::purely_local() const {
    return {has_local_part() ? total_local().value - buffer().value * page_bytes : 0};
}

std::optional<options> parse(int count, char** arguments, std::string_view what_it_does, int& exit_code) {
    options o;
    exit_code = 0;
    for (int i = 1; i < count; ++i) {
        const std::string_view name = arguments[i];
        if (name == "--help" || name == "-h") {
            usage(arguments[0], what_it_does);
            return std::nullopt;
        }
        if (name == "--json") {
            o.json = true;
            continue;
        }
        if (name == "--fetch-ahead") {
            o.fetch_ahead = true;
            continue;
        }
        if (i + 1 == count || !apply(o, name, arguments[i + 1])) {
            std::cerr << "error: cannot understand " << name << (i + 1 < count ? " " : "")
                      << (i + 1 < count ? arguments[i + 1] : "") << "\nhint: " << arguments[0] << " --help\n";
            exit_code = 2;
            return std::nullopt;
        }
        ++i;
    }
    const auto all = variants();
    if (std::none_of(all.begin(), all.end(), [&o](const variant_name& v) {
            return v.structure == o.structure && v.placement == o.placement;
        })) {
        std::cerr << "error: a " << o.structure << " has no placement " << o.placement << "\nhint: " << arguments[0]
                  << " --help\n";
        exit_code = 2;
        return std::nullopt;
    }
    return o;
}

std::unique_ptr<variant> make(const options& chosen) {
    // Addresses only: a kibibyte per element and some for the smallest runs.
    const budgets sizes{chosen.purely_local(), {chosen.elements * 1024 + (std::size_t{64} << 20)}, chosen.buffer()};
    const bool tree = chosen.structure == "btree";
    if (chosen.pager == pager_kind::real) {
        return tree ? make_tree<pager_kind::real>(chosen.placement, sizes)
                    : make_list<pager_kind::real>(chosen.placement, sizes);
    }
    return tree ? make_tree<pager_kind::simulated>(chosen.placement, sizes)
                : make_list<pager_kind::simulated>(chosen.placement, sizes);
}

void construct(variant& store, const options& chosen, generator& random) {
    for (std::uint64_t i = chosen.elements; i-- > 0;) {
        store.insert(key_of(i), random_value(random));
    }
}

}  // namespace bench
