/* A small simulation of heat in a plate, with a preconditioner, a probe table and events. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

constexpr std::size_t SIDE = 1024;      // cells on an edge of the plate
constexpr std::size_t SOURCES = 400000; // entries of the table that every thread scans

struct Event {
    double time, heat;
    std::string note;
};

class Solver {
public:
    explicit Solver(unsigned threads);
    ~Solver();
    Solver(const Solver &) = delete;
    Solver &operator=(const Solver &) = delete;

    /* Allocates and initialises everything, on the calling thread alone. */
    void setup();
    /* One time step of `thread`'s stripe of the plate. */
    void step(unsigned thread, unsigned number);
    /* Smooths the stripe with the matrix; only the second half of the run does this. */
    void refine(unsigned thread);
    /* Allocates, fills and frees short-lived buffers, as parsing of input would. */
    double churn(unsigned thread, unsigned number);
    double checksum() const;

private:
    unsigned threads;
    double *plate = nullptr;      // read and written by all threads, each its stripe
    double *next_plate = nullptr; // likewise
    double *matrix = nullptr;     // idle until the second half
    double *sources = nullptr;    // scanned by all threads in every step
    std::uint64_t *archive = nullptr; // written at its birth and never again
    std::vector<double> partial;
};
