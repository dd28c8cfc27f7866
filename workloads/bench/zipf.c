/* zipf [MIB] [MILLIONS]: accesses to pages with Zipf-distributed popularity (s = 1); prints a checksum. */
#include "bench.h"

enum { WORDS_PER_PAGE = 512 };

int main(int count, char **arguments)
{
    uint64_t mib = argument_u64(count, arguments, 1, 256), millions = argument_u64(count, arguments, 2, 40);
    size_t pages = (size_t)mib << 8;
    uint64_t *table = allocate(pages * 4096);
    uint32_t *place = allocate(pages * sizeof *place);
    double *cumulative = allocate(pages * sizeof *cumulative);
    uint64_t state = 7;
    double total = 0;
    for (size_t i = 0; i < pages; i++) {
        total += 1.0 / (double)(i + 1);
        cumulative[i] = total;
        place[i] = (uint32_t)i;
        table[i * WORDS_PER_PAGE] = i;
    }
    /* Popular pages lie anywhere, not at the start. */
    for (size_t i = pages - 1; i > 0; i--) {
        size_t j = next_random(&state) % (i + 1);
        uint32_t other = place[j];
        place[j] = place[i];
        place[i] = other;
    }
    uint64_t sum = 0;
    for (uint64_t i = 0; i < millions * 1000000; i++) {
        uint64_t random = next_random(&state);
        double wanted = (double)(random >> 11) * 0x1p-53 * total;
        size_t low = 0, high = pages - 1;
        while (low < high) {
            size_t middle = (low + high) / 2;
            if (cumulative[middle] < wanted)
                low = middle + 1;
            else
                high = middle;
        }
        size_t word = (size_t)place[low] * WORDS_PER_PAGE;
        sum += table[word];
        table[word] ^= sum;
    }
    printf("zipf %llu MiB, %llu million accesses: %016llx\n", (unsigned long long)mib,
           (unsigned long long)millions, (unsigned long long)sum);
    free(table);
    free(place);
    free(cumulative);
    return 0;
}
