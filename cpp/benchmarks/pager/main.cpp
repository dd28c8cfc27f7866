// How long a page fault takes from a memory store, alone, with a second thread, and with pages leaving; and the same of
// UMap, where a build of it is named.
#include <sys/utsname.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "measure.hpp"
#include "peer_umap.hpp"
#include "policies.hpp"
#include "varve/pager/space.hpp"
#include "varve/pager/stores/memory.hpp"

namespace {

using namespace varve;

struct arguments {
    bool json = false;
    bool smoke = false;
    std::string umap;
    std::size_t pages = 65536;
    unsigned rounds = 3;
    std::size_t batch = pager::options{}.batch.value;
    bool evictor = false;
    std::string only;
};

struct figure {
    std::string name;
    std::string path;
    unsigned threads = 1;
    bench::summary result;
};

struct scenario {
    const char* name;
    bool write;
    bool evicts;
};
constexpr scenario scenarios[] = {
    {"read", false, false}, {"read_evicting", false, true}, {"write", true, false}, {"write_evicting", true, true}};
constexpr std::size_t page_bytes = 4096;
#ifdef VARVE_PAGER_RETURNS_BY_ITSELF
constexpr bool fast_return = true;
#else
constexpr bool fast_return = false;
#endif

/// With eviction, an eighth of the pages fits.
std::size_t local_pages(const arguments& a, bool evicts) {
    return evicts ? a.pages / 8 : a.pages + 64;
}

figure measure_pager(const arguments& a, const scenario& s, pager::fault_path path, unsigned threads) {
    pager::memory_store store({a.pages * page_bytes});
    {
        const std::vector<std::byte> content(page_bytes, std::byte{7});
        for (std::size_t page = 0; page < a.pages; ++page) {
            store.write(pager::store_offset{page * page_bytes}, content);
        }
    }
    pager::options o;
    o.local = {local_pages(a, s.evicts) * page_bytes};
    o.path = path;
    o.batch = {a.batch};
    o.evictor = a.evictor;
    pager::paged_space space({a.pages * page_bytes}, std::move(store), o);
    bench::pattern p{space.base(), page_bytes, a.pages, threads, s.write, 1};
    if (s.evicts) {
        // Start from full local memory.
        bench::run(p);
        p.rounds = a.rounds;
    }
    const std::uint64_t before = space.read_statistics().faults;
    const bench::outcome result = bench::run(p);
    const std::uint64_t faults = space.read_statistics().faults - before;
    return {s.name, path == pager::fault_path::in_thread ? "in_thread" : "handlers", threads,
            bench::summarise(result, faults)};
}

std::vector<figure> measure_umap(const arguments& a) {
    std::vector<figure> figures;
    bench::umap_region region(a.umap, a.pages * page_bytes, page_bytes, local_pages(a, true));
    for (const scenario& s : scenarios) {
        if (!s.evicts) {
            continue;
        }
        for (const unsigned threads : {1u, 2u}) {
            bench::pattern p{region.base(), page_bytes, a.pages, threads, s.write, 1};
            bench::run(p);
            const std::uint64_t before = region.reads();
            const bench::outcome result = bench::run(p);
            figures.push_back({s.name, "umap", threads, bench::summarise(result, region.reads() - before)});
        }
    }
    return figures;
}

std::string processor() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        if (line.starts_with("model name")) {
            return line.substr(line.find(':') + 2);
        }
    }
    return "unknown";
}

const figure* find(const std::vector<figure>& figures, const char* name, const char* path, unsigned threads) {
    for (const figure& f : figures) {
        if (f.name == name && f.path == path && f.threads == threads) {
            return &f;
        }
    }
    return nullptr;
}

struct ratio {
    std::string name;
    double value = 0;
};

std::vector<ratio> ratios(const std::vector<figure>& figures) {
    std::vector<ratio> all;
    const auto add = [&](std::string name, const figure* above, const figure* below, auto of) {
        if (above != nullptr && below != nullptr && of(*below) > 0) {
            all.push_back({std::move(name), of(*above) / of(*below)});
        }
    };
    const auto mean = [](const figure& f) { return f.result.mean_us; };
    const auto rate = [](const figure& f) { return f.result.per_second; };
    const auto processor_rate = [](const figure& f) { return f.threads / f.result.processor_us; };
    for (const scenario& s : scenarios) {
        const std::string name = s.name;
        add(name + ".two_threads_throughput", find(figures, s.name, "in_thread", 2),
            find(figures, s.name, "in_thread", 1), rate);
        add(name + ".two_threads_throughput_by_processor_time", find(figures, s.name, "in_thread", 2),
            find(figures, s.name, "in_thread", 1), processor_rate);
        add(name + ".handlers_over_in_thread", find(figures, s.name, "handlers", 1),
            find(figures, s.name, "in_thread", 1), mean);
        add(name + ".umap_over_in_thread", find(figures, s.name, "umap", 1), find(figures, s.name, "in_thread", 1),
            mean);
    }
    return all;
}

void print_json(const arguments& a, const std::vector<figure>& figures,
                const std::vector<bench::policy_row>& policies) {
    utsname machine{};
    ::uname(&machine);
    std::printf(
        "{\"schema\":\"varve-pager-bench/1\",\"smoke\":%s,\"kernel\":\"%s\",\"processor\":\"%s\",\"processors\":%u,"
        "\"compiler\":\"%s\",\"fast_return\":%s,\"pages\":%zu,\"page_bytes\":%zu,\"local_pages_evicting\":%zu,"
        "\"batch\":%zu,"
        "\"figures\":[",
        a.smoke ? "true" : "false", machine.release, processor().c_str(), std::thread::hardware_concurrency(),
        __VERSION__, fast_return ? "true" : "false", a.pages, page_bytes, local_pages(a, true), a.batch);
    const char* separator = "";
    for (const figure& f : figures) {
        std::printf(
            "%s\n{\"name\":\"%s\",\"path\":\"%s\",\"threads\":%u,\"faults\":%llu,\"mean_us\":%.3f,\"p50_us\":%.3f,"
            "\"p99_us\":%.3f,\"p999_us\":%.3f,\"processor_us\":%.3f,\"faults_per_second\":%.0f}",
            separator, f.name.c_str(), f.path.c_str(), f.threads, static_cast<unsigned long long>(f.result.faults),
            f.result.mean_us, f.result.p50_us, f.result.p99_us, f.result.p999_us, f.result.processor_us,
            f.result.per_second);
        separator = ",";
    }
    std::printf("],\n\"ratios\":{");
    separator = "";
    for (const ratio& r : ratios(figures)) {
        std::printf("%s\"%s\":%.3f", separator, r.name.c_str(), r.value);
        separator = ",";
    }
    std::printf("},\n\"policies\":[");
    separator = "";
    for (const bench::policy_row& r : policies) {
        std::printf(
            "%s\n{\"trace\":\"%s\",\"local_percent\":%u,\"sweep\":%llu,\"refault\":%llu,\"lru\":%llu,"
            "\"clock_with_accessed_bits\":%llu}",
            separator, r.trace_name.c_str(), r.local_percent, static_cast<unsigned long long>(r.sweep),
            static_cast<unsigned long long>(r.refault), static_cast<unsigned long long>(r.lru),
            static_cast<unsigned long long>(r.clock));
        separator = ",";
    }
    std::printf("]}\n");
}

void print_table(const std::vector<figure>& figures, const std::vector<bench::policy_row>& policies) {
    std::printf("%-16s %-10s %7s %9s %8s %8s %8s %8s %8s %11s\n", "access", "path", "threads", "faults", "mean us",
                "p50 us", "p99 us", "p99.9 us", "CPU us", "faults/s");
    for (const figure& f : figures) {
        std::printf("%-16s %-10s %7u %9llu %8.2f %8.2f %8.2f %8.2f %8.2f %11.0f\n", f.name.c_str(), f.path.c_str(),
                    f.threads, static_cast<unsigned long long>(f.result.faults), f.result.mean_us, f.result.p50_us,
                    f.result.p99_us, f.result.p999_us, f.result.processor_us, f.result.per_second);
    }
    for (const ratio& r : ratios(figures)) {
        std::printf("%-48s %6.2f\n", r.name.c_str(), r.value);
    }
    std::printf("\n%-16s %6s %10s %10s %10s %22s\n", "page reads", "local", "sweep", "refault", "LRU",
                "clock (accessed bits)");
    for (const bench::policy_row& r : policies) {
        std::printf("%-16s %5u%% %10llu %10llu %10llu %22llu\n", r.trace_name.c_str(), r.local_percent,
                    static_cast<unsigned long long>(r.sweep), static_cast<unsigned long long>(r.refault),
                    static_cast<unsigned long long>(r.lru), static_cast<unsigned long long>(r.clock));
    }
}

int usage(const char* wrong) {
    std::fprintf(stderr,
                 "error: %s\nusage: varve-pager-bench [--json] [--smoke] [--umap LIBUMAP.so] [--pages N] [--rounds N] "
                 "[--batch N] [--evictor] [--only in_thread|handlers]\n",
                 wrong);
    return 2;
}

std::optional<unsigned long> number(const char* text) {
    char* end = nullptr;
    const unsigned long value = std::strtoul(text, &end, 10);
    return *text == '\0' || *end != '\0' || value == 0 ? std::nullopt : std::optional(value);
}

}  // namespace

int main(int count, char** values) try {
    arguments a;
    for (int i = 1; i < count; ++i) {
        const std::string flag = values[i];
        if (flag == "--json") {
            a.json = true;
        } else if (flag == "--smoke") {
            a.smoke = true;
            a.pages = 2048;
            a.rounds = 1;
        } else if (flag == "--evictor") {
            a.evictor = true;
        } else if (i + 1 == count) {
            return usage(("unknown or incomplete option " + flag).c_str());
        } else if (flag == "--umap") {
            a.umap = values[++i];
        } else if (flag == "--only") {
            a.only = values[++i];
        } else if (const auto value = number(values[++i]); !value) {
            return usage(("not a number: " + std::string(values[i])).c_str());
        } else if (flag == "--pages") {
            a.pages = *value;
        } else if (flag == "--rounds") {
            a.rounds = static_cast<unsigned>(*value);
        } else if (flag == "--batch") {
            a.batch = *value;
        } else {
            return usage(("unknown option " + flag).c_str());
        }
    }
    std::vector<figure> figures;
    for (const auto path : {pager::fault_path::in_thread, pager::fault_path::handlers}) {
        if (!a.only.empty() && (a.only == "in_thread") != (path == pager::fault_path::in_thread)) {
            continue;
        }
        for (const scenario& s : scenarios) {
            for (const unsigned threads : {1u, 2u}) {
                figures.push_back(measure_pager(a, s, path, threads));
            }
        }
    }
    if (!a.umap.empty()) {
        for (figure& f : measure_umap(a)) {
            figures.push_back(std::move(f));
        }
    }
    const auto policies = bench::compare_policies(20000, a.smoke ? 100000 : 1000000);
    if (a.json) {
        print_json(a, figures, policies);
    } else {
        print_table(figures, policies);
    }
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
