// varve-pager-mapping: random accesses to a file larger than memory, through the pager and through a mapping of the
// same file with MADV_RANDOM. Each runs in a process of its own under the same memory limit, which counts all that the
// process and its page cache take, and begins with nothing of the file in memory; they take turns. The ways with
// "ahead" in their name say which pages come next, some accesses at a time, as a container can: to the pager by
// `prefetch`, to the kernel by MADV_WILLNEED. What saying it takes counts as part of the access that follows.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "measure.hpp"
#include "memory_limit.hpp"
#include "varve/pager/space.hpp"
#include "varve/pager/stores/file.hpp"

namespace {

using namespace varve;

constexpr std::size_t page_bytes = 4096;
/// Of the limit, what the program itself and the kernel's tables take.
constexpr std::size_t left_to_the_program = std::size_t{16} << 20;

struct arguments {
    std::string file = "varve-pager-mapping.tmp";
    std::size_t mebibytes = 1024;
    std::size_t limit_mebibytes = 256;
    std::size_t accesses = 20000;
    std::size_t rounds = 5;
    std::size_t ahead = 32;
};

struct outcome {
    double accesses_per_second = 0;
    double mean_us = 0, p50_us = 0, p99_us = 0;  ///< of all accesses, those that find their page too
    std::uint64_t sum = 0;
};

using announcement = std::function<void(std::span<const page_index>)>;

/// Uniformly random pages; each thread draws its own. `write_half`: every second access writes. `announce` gets to know
/// the next pages, if it is one.
outcome touch_at_random(std::byte* base, const arguments& a, unsigned threads, bool write_half,
                        const announcement& announce) {
    const std::size_t pages = a.mebibytes * 256;
    std::vector<std::vector<std::uint32_t>> times(threads);
    std::atomic<std::uint64_t> sum{0};
    const auto work = [&](unsigned t, std::size_t count, bool timed) {
        std::mt19937_64 random(t + (timed ? 100 : 1));
        std::uint64_t mine = 0;
        std::vector<page_index> next(a.ahead);
        for (std::size_t i = 0; i < count; ++i) {
            if (i % a.ahead == 0) {
                std::generate(next.begin(), next.end(), [&] { return page_index{random() % pages}; });
            }
            auto* const word =
                reinterpret_cast<volatile std::uint64_t*>(base + to_number(next[i % a.ahead]) * page_bytes);
            const std::uint64_t before = bench::now_ns();
            if (announce && i % a.ahead == 0) {
                announce(next);
            }
            mine += *word & 0xff;
            if (write_half && i % 2 == 0) {
                *word = *word + 0x100;
            }
            if (timed) {
                times[t].push_back(static_cast<std::uint32_t>(bench::now_ns() - before));
            }
        }
        sum += mine;
    };
    const auto all_threads = [&](std::size_t count, bool timed) {
        std::vector<std::thread> running;
        const std::uint64_t start = bench::now_ns();
        for (unsigned t = 0; t < threads; ++t) {
            times[t].reserve(count);
            running.emplace_back(work, t, count, timed);
        }
        for (std::thread& t : running) {
            t.join();
        }
        return bench::now_ns() - start;
    };
    // Memory fills up first.
    for (std::size_t page = 0; page < a.limit_mebibytes * 256; ++page) {
        sum += reinterpret_cast<volatile std::uint64_t*>(base)[page * page_bytes / 8] & 0xff;
    }
    all_threads(a.accesses / 10 / threads, false);
    const std::uint64_t ns = all_threads(a.accesses / threads, true);
    std::vector<std::uint32_t> every;
    for (const auto& part : times) {
        every.insert(every.end(), part.begin(), part.end());
    }
    std::sort(every.begin(), every.end());
    outcome o;
    const auto n = static_cast<double>(every.size());
    o.accesses_per_second = n / static_cast<double>(ns) * 1e9;
    o.mean_us = std::accumulate(every.begin(), every.end(), 0.0) / n / 1e3;
    o.p50_us = every[every.size() / 2] / 1e3;
    o.p99_us = every[every.size() * 99 / 100] / 1e3;
    o.sum = sum;
    return o;
}

outcome through_mapping(const arguments& a, unsigned threads, bool write_half, bool ahead) {
    const pager::kernel::descriptor fd(::open(a.file.c_str(), O_RDWR | O_CLOEXEC));
    const std::size_t bytes = a.mebibytes << 20;
    void* const base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (base == MAP_FAILED || ::madvise(base, bytes, MADV_RANDOM) != 0) {
        throw std::system_error(errno, std::generic_category(), "mapping " + a.file);
    }
    const auto will_need = [base](std::span<const page_index> pages) {
        for (const page_index page : pages) {
            ::madvise(static_cast<std::byte*>(base) + to_number(page) * page_bytes, page_bytes, MADV_WILLNEED);
        }
    };
    const outcome o = touch_at_random(static_cast<std::byte*>(base), a, threads, write_half,
                                      ahead ? announcement(will_need) : announcement());
    ::munmap(base, bytes);
    return o;
}

outcome through_pager(const arguments& a, unsigned threads, bool write_half, pager::kernel_cache cache, bool ring,
                      bool ahead) {
    const byte_count bytes{a.mebibytes << 20};
    pager::options o;
    const std::size_t limit = a.limit_mebibytes << 20;
    // The kernel's copies need room too, where it keeps some.
    o.local = {cache == pager::kernel_cache::none ? limit - left_to_the_program : limit / 2};
    const auto how = pager::opening::attach;
    pager::any_store store = ring ? pager::any_store(pager::uring_store(a.file, bytes, how, cache))
                                  : pager::any_store(pager::file_store(a.file, bytes, how, cache));
    pager::paged_space space(bytes, std::move(store), o);
    const auto fetch = [&space](std::span<const page_index> pages) { space.prefetch(pages); };
    return touch_at_random(space.base(), a, threads, write_half, ahead ? announcement(fetch) : announcement());
}

struct contestant {
    const char* name;
    std::function<outcome(const arguments&, unsigned threads, bool write_half)> run;
    std::vector<outcome> rounds{};
};

/// Writes the file out and has the kernel forget its pages.
void make_cold(const arguments& a) {
    const pager::kernel::descriptor fd(::open(a.file.c_str(), O_RDWR | O_CLOEXEC));
    if (::fdatasync(fd.get()) != 0 || ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) != 0) {
        throw std::system_error(errno, std::generic_category(), a.file);
    }
}

void make_file(const arguments& a) {
    const pager::kernel::descriptor fd(::open(a.file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    std::vector<std::uint64_t> piece(std::size_t{1} << 17);
    for (std::size_t i = 0; i < a.mebibytes; ++i) {
        std::fill(piece.begin(), piece.end(), i);
        if (::write(fd.get(), piece.data(), piece.size() * 8) != static_cast<ssize_t>(piece.size() * 8)) {
            throw std::system_error(errno, std::generic_category(), "writing " + a.file);
        }
    }
}

outcome run_apart(const arguments& a, const contestant& c, unsigned threads, bool write_half) {
    make_cold(a);
    int ends[2];
    if (::pipe(ends) != 0) {
        throw std::system_error(errno, std::generic_category(), "pipe");
    }
    const bench::memory_limit limit(a.limit_mebibytes << 20);
    const pid_t child = ::fork();
    if (child == 0) {
        int status = 1;
        try {
            limit.enter();
            const outcome o = c.run(a, threads, write_half);
            status = ::write(ends[1], &o, sizeof o) == sizeof o ? 0 : 1;
        } catch (const std::exception& error) {
            std::fprintf(stderr, "error: %s: %s\n", c.name, error.what());
        }
        ::_exit(status);
    }
    ::close(ends[1]);
    outcome o;
    const bool whole = ::read(ends[0], &o, sizeof o) == sizeof o;
    ::close(ends[0]);
    int status = 1;
    ::waitpid(child, &status, 0);
    if (!whole || status != 0) {
        throw std::runtime_error(std::string(c.name) + " ended without a result; the limit may be too small for it");
    }
    return o;
}

std::optional<std::size_t> number(const char* text) {
    char* end = nullptr;
    const unsigned long value = std::strtoul(text, &end, 10);
    return *text == '\0' || *end != '\0' || value == 0 ? std::nullopt : std::optional<std::size_t>(value);
}

int usage() {
    std::fprintf(stderr,
                 "usage: varve-pager-mapping [--file PATH] [--mebibytes N] [--limit MEBIBYTES] [--accesses N] "
                 "[--rounds N] [--ahead ACCESSES]\nOne JSON object for each way of access; times are of the round with "
                 "the best rate. "
                 "Needs the right to make control groups.\n");
    return 2;
}

}  // namespace

int main(int count, char** values) try {
    arguments a;
    for (int i = 1; i < count; i += 2) {
        const std::string flag = values[i];
        if (i + 1 == count) {
            return usage();
        }
        const auto value = number(values[i + 1]);
        if (flag == "--file") {
            a.file = values[i + 1];
        } else if (!value) {
            return usage();
        } else if (flag == "--mebibytes") {
            a.mebibytes = *value;
        } else if (flag == "--limit") {
            a.limit_mebibytes = *value;
        } else if (flag == "--accesses") {
            a.accesses = *value;
        } else if (flag == "--rounds") {
            a.rounds = *value;
        } else if (flag == "--ahead") {
            a.ahead = *value;
        } else {
            return usage();
        }
    }
    using pager::kernel_cache;
    make_file(a);
    for (const bool write_half : {false, true}) {
        for (const unsigned threads : {1u, 2u}) {
            const auto mapping = [](bool ahead) {
                return [=](const arguments& in, unsigned n, bool half) { return through_mapping(in, n, half, ahead); };
            };
            const auto through = [](kernel_cache cache, bool ring, bool ahead) {
                return [=](const arguments& in, unsigned n, bool half) {
                    return through_pager(in, n, half, cache, ring, ahead);
                };
            };
            std::vector<contestant> all{{"mapping", mapping(false)},
                                        {"mapping_ahead", mapping(true)},
                                        {"pager_file", through(kernel_cache::kept, false, false)},
                                        {"pager_direct", through(kernel_cache::none, true, false)},
                                        {"pager_ahead", through(kernel_cache::none, true, true)}};
            for (std::size_t round = 0; round < a.rounds; ++round) {
                for (std::size_t i = 0; i < all.size(); ++i) {
                    contestant& c = all[(i + round) % all.size()];
                    c.rounds.push_back(run_apart(a, c, threads, write_half));
                }
            }
            const auto best = [](const contestant& c) {
                return *std::max_element(c.rounds.begin(), c.rounds.end(), [](const outcome& x, const outcome& y) {
                    return x.accesses_per_second < y.accesses_per_second;
                });
            };
            for (const contestant& c : all) {
                const outcome o = best(c);
                double worst = o.accesses_per_second;
                for (const outcome& r : c.rounds) {
                    worst = std::min(worst, r.accesses_per_second);
                }
                std::printf(
                    "{\"schema\":\"varve-pager-mapping/2\",\"way\":\"%s\",\"writes\":\"%s\",\"threads\":%u,"
                    "\"accesses_per_second\":%.0f,\"worst_accesses_per_second\":%.0f,\"mean_us\":%.2f,"
                    "\"p50_us\":%.2f,\"p99_us\":%.2f,\"time_over_mapping\":%.3f}\n",
                    c.name, write_half ? "half" : "none", threads, o.accesses_per_second, worst, o.mean_us, o.p50_us,
                    o.p99_us, best(all.front()).accesses_per_second / o.accesses_per_second);
                std::fflush(stdout);
            }
        }
    }
    ::unlink(a.file.c_str());
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
