/* Single accesses of 8, 16 and (with AVX2) 32 bytes that lie across a page boundary. */
#include "oracle.h"
#include <immintrin.h>

enum { PAIRS = 200, STRIDE = 4 };

static void read8(const char *arena)
{
    for (size_t i = 0; i < PAIRS; i++)
        (void)*(const volatile uint64_t __attribute__((aligned(1))) *)(arena + i * STRIDE * PAGE + PAGE - 4);
}

static void write8(char *arena)
{
    for (size_t i = 0; i < PAIRS; i++)
        *(volatile uint64_t __attribute__((aligned(1))) *)(arena + i * STRIDE * PAGE + PAGE - 1) = i;
}

static void read16(const char *arena)
{
    for (size_t i = 0; i < PAIRS; i++) {
        __m128i value = _mm_loadu_si128((const __m128i *)(arena + i * STRIDE * PAGE + PAGE - 15));
        __asm__ volatile("" : : "x"(value));
    }
}

__attribute__((target("avx2"))) static void write32(char *arena)
{
    for (size_t i = 0; i < PAIRS; i++) {
        __asm__ volatile("vpcmpeqd %%ymm0, %%ymm0, %%ymm0\n\tvmovdqu %%ymm0, (%0)"
                         : : "r"(arena + i * STRIDE * PAGE + PAGE - 31) : "ymm0", "memory");
    }
}

static void run(const char *name, char kind, char *arena, int which)
{
    struct oracle_phase *phase = oracle_begin(name);
    oracle_set_strided(phase, kind, arena, PAIRS, STRIDE);
    oracle_set_strided(phase, kind, arena + PAGE, PAIRS, STRIDE);
    while (oracle_again(phase)) {
        switch (which) {
        case 0: read8(arena); break;
        case 1: write8(arena); break;
        case 2: read16(arena); break;
        default: write32(arena); break;
        }
        oracle_looped(phase);
    }
    oracle_end(phase);
}

int main(void)
{
    oracle_init("straddle");
    char *arena = resident_arena("arena", PAIRS * STRIDE);
    rest("idle");
    run("read 8 bytes", 'r', arena, 0);
    run("write 8 bytes", 'w', arena, 1);
    run("read 16 bytes", 'r', arena, 2);
    if (__builtin_cpu_supports("avx2"))
        run("write 32 bytes", 'w', arena, 3);
    else
        oracle_skip("No AVX2: the 32-byte store is left out.");
    puts("straddle done");
    return 0;
}
