/* One instruction that reads eight pages: an AVX2 gather; scalar loads where the CPU has none. */
#include "oracle.h"
#include <immintrin.h>

enum { LANES = 8, GROUPS = 128, STRIDE = 3, PAGES = LANES * GROUPS * STRIDE };

__attribute__((target("avx2"))) static void gather(const char *arena)
{
    const __m256i steps = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    const __m256i offsets = _mm256_mullo_epi32(steps, _mm256_set1_epi32(STRIDE * PAGE / 4));
    for (size_t g = 0; g < GROUPS; g++) {
        const int *base = (const int *)(arena + g * LANES * STRIDE * PAGE);
        __m256i value = _mm256_i32gather_epi32(base, offsets, 4);
        __asm__ volatile("" : : "x"(value));
    }
}

int main(void)
{
    oracle_init("gather");
    char *arena = resident_arena("arena", PAGES);
    rest("idle");
    bool avx2 = __builtin_cpu_supports("avx2");
    if (!avx2)
        oracle_skip("No AVX2: the gather is done with scalar loads.");
    struct oracle_phase *phase = oracle_begin(avx2 ? "gather" : "scalar");
    oracle_set_strided(phase, 'r', arena, LANES * GROUPS, STRIDE);
    while (oracle_again(phase)) {
        if (avx2)
            gather(arena);
        else
            read_pages(arena, LANES * GROUPS, STRIDE);
        oracle_looped(phase);
    }
    oracle_end(phase);
    puts("gather done");
    return 0;
}
