/* random [MIB] [MILLIONS]: reads and writes of uniformly random words; prints a checksum. */
#include "bench.h"

int main(int count, char **arguments)
{
    uint64_t mib = argument_u64(count, arguments, 1, 256), millions = argument_u64(count, arguments, 2, 60);
    size_t n = (mib << 20) / sizeof(uint64_t);
    uint64_t *table = allocate(n * sizeof *table);
    for (size_t i = 0; i < n; i++)
        table[i] = i;
    uint64_t state = 42, sum = 0;
    for (uint64_t i = 0; i < millions * 1000000; i++) {
        /* A multiplication instead of a remainder: the memory access is what should cost. */
        size_t at = (size_t)(((unsigned __int128)next_random(&state) * n) >> 64);
        sum += table[at];
        table[at] ^= sum;
    }
    printf("random %llu MiB, %llu million accesses: %016llx\n", (unsigned long long)mib,
           (unsigned long long)millions, (unsigned long long)sum);
    free(table);
    return 0;
}
