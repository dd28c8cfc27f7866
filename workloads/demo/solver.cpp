#include "solver.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace {

constexpr std::size_t CELLS = SIDE * SIDE;
constexpr std::size_t ARCHIVE_WORDS = 4 << 20;

/* Static data of some size, so that it shows up as objects of its own. */
double boundary[4][64 * 1024];
std::uint32_t histogram[256 * 1024];

} // namespace

Solver::Solver(unsigned threads) : threads(threads), partial(threads * 16)
{
}

Solver::~Solver()
{
    std::free(plate);
    std::free(next_plate);
    delete[] matrix;
    delete[] sources;
    std::free(archive);
}

void Solver::setup()
{
    plate = static_cast<double *>(std::malloc(CELLS * sizeof(double)));
    next_plate = static_cast<double *>(std::calloc(CELLS, sizeof(double)));
    matrix = new double[CELLS * 2];
    sources = new double[SOURCES];
    archive = static_cast<std::uint64_t *>(std::malloc(ARCHIVE_WORDS * sizeof(std::uint64_t)));

    for (std::size_t i = 0; i < CELLS; i++) {
        plate[i] = static_cast<double>(i % SIDE) / SIDE;
        matrix[2 * i] = 0.5 + 0.25 * std::sin(static_cast<double>(i));
        matrix[2 * i + 1] = 1.0 - matrix[2 * i];
    }
    for (std::size_t i = 0; i < SOURCES; i++)
        sources[i] = std::cos(static_cast<double>(i) * 0.001);
    for (std::size_t i = 0; i < ARCHIVE_WORDS; i++)
        archive[i] = i * 0x9e3779b97f4a7c15u;
    for (auto &side : boundary)
        for (std::size_t i = 0; i < 64 * 1024; i++)
            side[i] = static_cast<double>(i & 1023) / 1024;
}

void Solver::step(unsigned thread, unsigned number)
{
    double heat = 0;
    for (std::size_t i = 0; i < SOURCES; i++)
        heat += sources[i];
    heat = heat / SOURCES + boundary[number % 4][(number * 4096) % (64 * 1024)];

    const double *from = number % 2 ? next_plate : plate;
    double *to = number % 2 ? plate : next_plate;
    std::size_t first = 1 + (SIDE - 2) * thread / threads, last = 1 + (SIDE - 2) * (thread + 1) / threads;
    for (std::size_t row = first; row < last; row++) {
        for (std::size_t column = 1; column + 1 < SIDE; column++) {
            std::size_t at = row * SIDE + column;
            double around = from[at - 1] + from[at + 1] + from[at - SIDE] + from[at + SIDE];
            to[at] = 0.2 * (around + from[at]) + 1e-3 * heat;
        }
    }
    if (thread == 0)
        for (std::size_t i = 0; i < 4096; i++)
            histogram[(number * 4096 + i * 7) % (256 * 1024)]++;
}

void Solver::refine(unsigned thread)
{
    double sum = 0;
    std::size_t first = CELLS * thread / threads, last = CELLS * (thread + 1) / threads;
    for (std::size_t i = first; i < last; i++)
        sum += matrix[2 * i] * plate[i] + matrix[2 * i + 1] * next_plate[i];
    partial[thread * 16] += sum;
}

double Solver::churn(unsigned thread, unsigned number)
{
    std::vector<std::unique_ptr<Event>> events;
    for (unsigned i = 0; i < 2000; i++)
        events.push_back(std::make_unique<Event>(
            Event{ number + i * 1e-3, 1.0 / (1 + i + thread), "event " + std::to_string(number * 2000 + i) }));
    std::size_t words = 8192 + (number * 37 + thread * 101) % 65536;
    auto *scratch = static_cast<double *>(std::malloc(words * sizeof(double)));
    double sum = 0;
    for (std::size_t i = 0; i < words; i++)
        scratch[i] = events[i % events.size()]->heat;
    for (std::size_t i = 0; i < words; i += 8)
        sum += scratch[i];
    std::free(scratch);
    return sum;
}

double Solver::checksum() const
{
    double sum = 0;
    for (std::size_t i = 0; i < CELLS; i++)
        sum += plate[i] * 0.5 + next_plate[i];
    for (unsigned t = 0; t < threads; t++)
        sum += partial[t * 16] * 1e-6;
    std::uint64_t counted = 0;
    for (std::size_t i = 0; i < 256 * 1024; i++)
        counted += histogram[i] * (i % 13);
    return sum + static_cast<double>(counted) * 1e-9;
}
