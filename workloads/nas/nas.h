/*
 * What the five benchmark programs share. They are written for Varve and only resemble the NAS
 * Parallel Benchmarks' kernels in how they access memory. Each takes
 *   PROGRAM [--size S|M|L] [--seconds N] [--threads N]
 * does a fixed amount of work (`seconds` scales it: the number of seconds it took on a 2-core VM at
 * size M with two threads), prints its figures and `verified`, or `NOT verified` and exits with 1.
 * Stdout is the same on every run with the same arguments; the time goes to stderr.
 */
#ifndef VARVE_NAS_H
#define VARVE_NAS_H

#include <omp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sums are kept per block and added in order, so that results do not depend on the threads. */
enum { BLOCKS = 64 };

struct options {
    char size; /* S, M, L */
    double seconds;
    int threads;
    double started;
};

static inline struct options parse_options(int count, char **arguments)
{
    struct options options = { .size = 'M', .seconds = 3, .threads = 2 };
    for (int i = 1; i < count; i += 2) {
        const char *value = i + 1 < count ? arguments[i + 1] : "";
        char *end = NULL;
        bool good = false;
        if (strcmp(arguments[i], "--size") == 0) {
            options.size = value[0];
            good = value[0] && strchr("SML", value[0]) && !value[1];
        } else if (strcmp(arguments[i], "--seconds") == 0) {
            options.seconds = strtod(value, &end);
            good = *value && !*end && options.seconds > 0;
        } else if (strcmp(arguments[i], "--threads") == 0) {
            options.threads = (int)strtol(value, &end, 10);
            good = *value && !*end && options.threads > 0;
        }
        if (!good) {
            fprintf(stderr, "usage: %s [--size S|M|L] [--seconds N] [--threads N]\n", arguments[0]);
            exit(2);
        }
    }
    omp_set_num_threads(options.threads);
    options.started = omp_get_wtime();
    return options;
}

static inline size_t pick(const struct options *options, size_t small, size_t medium, size_t large)
{
    return options->size == 'S' ? small : options->size == 'M' ? medium : large;
}

/* How many rounds of work to do, given how many took a second. At least one. */
static inline size_t rounds(const struct options *options, double per_second)
{
    double wanted = options->seconds * per_second;
    return wanted < 1 ? 1 : (size_t)wanted;
}

static inline void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}

static inline uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A number in [0, 1) that depends on `index` only. */
static inline double unit(uint64_t index)
{
    return (double)(mix(index) >> 11) * 0x1p-53;
}

static inline int finish(const struct options *options, const char *name, bool good)
{
    fprintf(stderr, "%s: %.2f s\n", name, omp_get_wtime() - options->started);
    printf("%s size %c: %s\n", name, options->size, good ? "verified" : "NOT verified");
    return good ? 0 : 1;
}

#endif
