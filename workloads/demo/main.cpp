/*
 * demo [SECONDS]: what `make demo` records. Four threads simulate heat in a plate, one step every
 * 20 ms, for 8 s by default. Much about it could be better, so that a report has something to say: one
 * thread does all first touches, an archive is never used again after its birth, a table is scanned by
 * every thread, the matrix idles for half of the run, and events are allocated and freed all the time.
 * The output depends on the arguments only.
 */
#include "solver.h"

#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr unsigned THREADS = 4;
constexpr auto STEP = std::chrono::milliseconds(20);

[[gnu::used]] char greeting_cards[3 << 20]; // static and never touched: costs address space, not memory
unsigned char lookup[1 << 20];

void fill_lookup()
{
    for (std::size_t i = 0; i < sizeof lookup; i++)
        lookup[i] = static_cast<unsigned char>(i * i >> 3);
}

unsigned long use_lookup(unsigned number)
{
    unsigned long sum = 0;
    for (std::size_t i = 0; i < sizeof lookup / 4; i += 64)
        sum += lookup[(i + number * 131) % sizeof lookup];
    return sum;
}

} // namespace

int main(int count, char **arguments)
{
    double seconds = count > 1 ? std::atof(arguments[1]) : 8;
    if (!(seconds > 0)) {
        std::fprintf(stderr, "demo: give a number of seconds\n");
        return 2;
    }
    auto steps = static_cast<unsigned>(seconds * 50);
    Solver solver(THREADS);
    solver.setup();
    fill_lookup();

    std::barrier together(THREADS);
    std::vector<double> churned(THREADS * 8);
    std::vector<unsigned long> looked(THREADS * 8);
    auto start = std::chrono::steady_clock::now();
    auto work = [&](unsigned thread) {
        for (unsigned number = 0; number < steps; number++) {
            std::this_thread::sleep_until(start + number * STEP);
            solver.step(thread, number);
            churned[thread * 8] += solver.churn(thread, number);
            if (thread == 1)
                looked[thread * 8] += use_lookup(number);
            together.arrive_and_wait();
            if (number >= steps / 2 && number % 4 == 0)
                solver.refine(thread);
            together.arrive_and_wait();
        }
    };
    std::vector<std::thread> workers;
    for (unsigned t = 0; t < THREADS; t++)
        workers.emplace_back(work, t);
    for (auto &worker : workers)
        worker.join();

    double sum = solver.checksum();
    unsigned long seen = 0;
    for (unsigned t = 0; t < THREADS; t++) {
        sum += churned[t * 8] * 1e-3;
        seen += looked[t * 8];
    }
    std::printf("demo: %u steps on %u threads, checksum %.9f, %lu, %zu cards\n", steps, THREADS, sum, seen,
                sizeof greeting_cards);
    return 0;
}
