/* What the fixed-work kernels share: deterministic numbers and argument parsing. */
#ifndef VARVE_BENCH_H
#define VARVE_BENCH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64: the same sequence on every machine. */
static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The argument at `index`, or `otherwise`; ends the program on anything but a positive number. */
static inline uint64_t argument_u64(int count, char **arguments, int index, uint64_t otherwise)
{
    if (count <= index)
        return otherwise;
    char *end;
    uint64_t value = strtoull(arguments[index], &end, 0);
    if (*end || value == 0) {
        fprintf(stderr, "%s: `%s` is not a positive number\n", arguments[0], arguments[index]);
        exit(2);
    }
    return value;
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

#endif
