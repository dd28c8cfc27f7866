/* is: bucket sort of integer keys: scattered writes over a large array. The result must be sorted. */
#include "nas.h"

enum { BUCKETS = 1024, MAX_THREADS = 64 };

static void sort_once(const uint32_t *keys, uint32_t *sorted, size_t n, uint32_t range, int threads)
{
    static size_t counts[MAX_THREADS][BUCKETS];
    uint32_t width = range / BUCKETS;
    size_t starts[BUCKETS + 1] = { 0 };
#pragma omp parallel for schedule(static, 1)
    for (int t = 0; t < threads; t++) {
        memset(counts[t], 0, sizeof counts[t]);
        for (size_t i = n * t / threads; i < n * (t + 1) / threads; i++)
            counts[t][keys[i] / width]++;
    }
    size_t at = 0;
    for (size_t b = 0; b < BUCKETS; b++) {
        starts[b] = at;
        for (int t = 0; t < threads; t++) {
            size_t mine = counts[t][b];
            counts[t][b] = at;
            at += mine;
        }
    }
    starts[BUCKETS] = n;
#pragma omp parallel for schedule(static, 1)
    for (int t = 0; t < threads; t++)
        for (size_t i = n * t / threads; i < n * (t + 1) / threads; i++)
            sorted[counts[t][keys[i] / width]++] = keys[i];
    /* Within a bucket: count each key. */
#pragma omp parallel
    {
        uint32_t *tally = allocate(width * sizeof *tally);
#pragma omp for schedule(static)
        for (size_t b = 0; b < BUCKETS; b++) {
            uint32_t low = (uint32_t)b * width;
            memset(tally, 0, width * sizeof *tally);
            for (size_t i = starts[b]; i < starts[b + 1]; i++)
                tally[sorted[i] - low]++;
            size_t out = starts[b];
            for (uint32_t k = 0; k < width; k++)
                for (uint32_t c = 0; c < tally[k]; c++)
                    sorted[out++] = low + k;
        }
        free(tally);
    }
}

int main(int count, char **arguments)
{
    struct options options = parse_options(count, arguments);
    if (options.threads > MAX_THREADS) {
        fprintf(stderr, "is: at most %d threads\n", MAX_THREADS);
        return 2;
    }
    size_t n = pick(&options, (size_t)1 << 18, (size_t)1 << 23, (size_t)1 << 25);
    uint32_t range = 1u << 19;
    uint32_t *keys = allocate(n * sizeof *keys), *sorted = allocate(n * sizeof *sorted);
    uint64_t before = 0, after = 0;
    size_t times = rounds(&options, 15 * (double)(1 << 23) / (double)n), wrong = 0;
    for (size_t round = 0; round < times; round++) {
#pragma omp parallel for schedule(static) reduction(+ : before)
        for (size_t i = 0; i < n; i++) {
            keys[i] = (uint32_t)(mix(i * 3 + round) % range);
            before += keys[i];
        }
        sort_once(keys, sorted, n, range, options.threads);
#pragma omp parallel for schedule(static) reduction(+ : after, wrong)
        for (size_t i = 0; i < n; i++) {
            after += sorted[i];
            wrong += i > 0 && sorted[i - 1] > sorted[i];
        }
    }
    printf("is: %zu keys, %zu rounds, sum %llu, out of order %zu\n", n, times, (unsigned long long)after, wrong);
    int code = finish(&options, "is", wrong == 0 && before == after);
    free(keys); free(sorted);
    return code;
}
