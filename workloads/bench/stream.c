/* stream [MIB] [PASSES]: sequential triads over three arrays of MIB/3 each; prints a checksum. */
#include "bench.h"

int main(int count, char **arguments)
{
    uint64_t mib = argument_u64(count, arguments, 1, 192), passes = argument_u64(count, arguments, 2, 40);
    size_t n = (mib << 20) / 3 / sizeof(uint64_t);
    uint64_t *a = allocate(n * sizeof *a), *b = allocate(n * sizeof *b), *c = allocate(n * sizeof *c);
    for (size_t i = 0; i < n; i++) {
        a[i] = i;
        b[i] = 2 * i + 1;
        c[i] = 0;
    }
    for (uint64_t pass = 0; pass < passes; pass++) {
        for (size_t i = 0; i < n; i++)
            c[i] = a[i] + 3 * b[i];
        for (size_t i = 0; i < n; i++)
            a[i] = b[i] ^ (c[i] >> 1);
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum = sum * 31 + a[i] + c[i];
    printf("stream %llu MiB, %llu passes: %016llx\n", (unsigned long long)mib, (unsigned long long)passes,
           (unsigned long long)sum);
    free(a);
    free(b);
    free(c);
    return 0;
}
