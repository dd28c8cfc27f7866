/*
 * Known mixes of accesses, for samples: `sampled CASE`. In each case the accesses that are compared cost the
 * same, so that shares of time are shares of accesses: either all lie far within the first cache, or each part of
 * a memory far larger than the caches is visited as often as any other, whichever array it belongs to: of two arrays
 * of one size, the one that is visited less often is in the caches less often, and each of its accesses takes longer.
 * Loops are in assembly where the compiler might turn one access into another.
 * Each case takes as much of the processor's time on every machine, so that as many samples meet it.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECONDS 2.0 /* of a case's work */
#define PART (1u << 21) /* words: 16 MiB */
#define FAR (1u << 24)	/* words: 128 MiB */
#define NEAR 512	/* words: 4 KiB */
#define LINKS (1u << 19) /* words: 4 MiB */

static uint64_t hot[9 * PART] __attribute__((aligned(4096)));
static uint64_t cold[PART] __attribute__((aligned(4096)));
static uint64_t near_hot[NEAR] __attribute__((aligned(4096)));
static uint64_t near_cold[NEAR] __attribute__((aligned(4096)));
static uint64_t walked[3 * NEAR] __attribute__((aligned(4096)));
static uint64_t strolled[NEAR] __attribute__((aligned(4096)));
static char from[1 << 20] __attribute__((aligned(4096)));
static char to[1 << 20] __attribute__((aligned(4096)));
static uint64_t *links[LINKS] __attribute__((aligned(4096)));
static uint32_t lanes[8] __attribute__((aligned(32)));

static uint64_t next(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

/* Seconds of the processor's time that the calling thread has taken */
static double taken(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

static void fill(uint64_t *array, uint64_t words)
{
	for (uint64_t i = 0; i < words; i += 512)
		array[i] = i;
}

/* Random reads of ten parts, of which nine are one array: far beyond the caches */
static __attribute__((noinline)) uint64_t mix(long count)
{
	static uint64_t s = 88172645463325252ull;
	const uint64_t *parts[10] = { [9] = cold };
	uint64_t sum = 0;

	for (int i = 0; i < 9; i++)
		parts[i] = hot + i * PART;
	asm volatile("" : : "r"(parts) : "memory");
	for (long i = 0; i < count; i++) {
		uint64_t r = next(&s), at = (r >> 8) & (PART - 1), part = (r >> 40) % 10;
		/* From a table: a branch that is guessed wrong would make the rarer reads slower */
		const uint64_t *array = parts[part];

		asm volatile("addq (%1,%2,8), %0" : "+r"(sum) : "r"(array), "r"(at) : "cc", "memory");
	}
	return sum;
}

/* The same within the first cache: each read waits for the one before */
static __attribute__((noinline)) uint64_t chain(long count)
{
	uint64_t at = 0, other = 0;

#define STEP(array) \
	"movq (%2,%0,8), %1\n\tmovq (" array ",%1,8), %0\n\t"
	for (long i = 0; i < count; i++)
		asm volatile(STEP("%2") STEP("%2") STEP("%2") STEP("%2") STEP("%3")
			     : "+&r"(at), "+&r"(other)
			     : "r"(near_hot), "r"(near_cold)
			     : "memory");
	return at;
}

/*
 * Strides of a line and a word through four parts, by chance, of which three are one array: within the first cache, each
 * read waiting for the one before
 */
static __attribute__((noinline)) uint64_t stride(long count)
{
	static uint64_t s = 88172645463325252ull;
	const uint64_t *parts[4] = { walked, walked + NEAR, walked + 2 * NEAR, strolled };
	uint64_t at = 0, read;

	asm volatile("" : : "r"(parts) : "memory");
	for (long i = 0; i < count; i++) {
		const uint64_t *array = parts[next(&s) >> 40 & 3];

		for (int j = 0; j < 64; j++) {
			at = (at + 9) & (NEAR - 1);
			asm volatile("movq (%2,%0,8), %1\n\taddq %1, %0"
				     : "+r"(at), "=&r"(read) : "r"(array) : "cc", "memory");
		}
	}
	return at;
}

/* A list of all elements of `links` in the order of chance, which ends where it began */
static void link(void)
{
	uint64_t s = 88172645463325252ull;

	/* Sattolo's way of making a permutation of one cycle */
	for (uint64_t i = 0; i < LINKS; i++)
		links[i] = (uint64_t *)&links[i];
	for (uint64_t i = LINKS - 1; i > 0; i--) {
		uint64_t other = (next(&s) >> 8) % i, *kept = links[i];

		links[i] = links[other];
		links[other] = kept;
	}
}

/* Each step replaces the pointer that it followed, and counts itself on the stack */
static __attribute__((noipa)) uint64_t list(long count)
{
	uint64_t *at = (uint64_t *)links, steps = 0;

	for (long i = 0; i < count; i++)
		asm volatile("movq (%0), %0\n\tincq %1" : "+r"(at), "+m"(steps) : : "cc", "memory");
	return steps;
}

/* The same with the pointer on the stack, as in code that is not optimised */
static __attribute__((noipa)) uint64_t spilled(long count)
{
	uint64_t *at = (uint64_t *)links, read;

	for (long i = 0; i < count; i++)
		asm volatile("movq %1, %0\n\tmovq (%0), %0\n\tmovq %0, %1" : "=&r"(read), "+m"(at) : : "memory");
	return (uint64_t)at;
}

/* One write for nine reads, at random, all of one array */
static __attribute__((noinline)) uint64_t readmostly(long count)
{
	static uint64_t s = 88172645463325252ull;
	uint64_t sum = 0;

	for (long i = 0; i < count; i++) {
		uint64_t r = next(&s), at = (r >> 8) & (FAR - 1);

		if ((r >> 40) % 10)
			asm volatile("addq (%1,%2,8), %0" : "+r"(sum) : "r"(hot), "r"(at) : "cc", "memory");
		else
			asm volatile("incq (%0,%1,8)" : : "r"(hot), "r"(at) : "cc", "memory");
	}
	return sum;
}

/* Each thread reads an array of its own */
static void *reader(void *array)
{
	uint64_t s = 88172645463325252ull, sum = 0;

	for (double begun = taken(); taken() < begun + SECONDS;)
		for (long i = 0; i < 1000000; i++) {
			uint64_t at = (next(&s) >> 8) & (PART - 1);

			asm volatile("addq (%1,%2,8), %0" : "+r"(sum) : "r"(array), "r"(at) : "cc", "memory");
		}
	return (void *)sum;
}

static void threads(void)
{
	pthread_t other;

	pthread_create(&other, 0, reader, cold);
	reader(hot);
	pthread_join(other, 0);
}

static __attribute__((noinline)) void copy(long count)
{
	for (long i = 0; i < count; i++) {
		void *a = to, *b = from;
		size_t n = sizeof(from);

		asm volatile("rep movsb" : "+D"(a), "+S"(b), "+c"(n) : : "memory");
	}
}

static __attribute__((noinline)) void push(long count)
{
	for (long i = 0; i < count; i++)
		asm volatile("lea -1024(%%rsp), %%rsp\n\t"
			     "push %%rax\n\tpush %%rax\n\tpop %%rcx\n\tpush %%rcx\n\tpop %%rcx\n\tpop %%rcx\n\t"
			     "lea 1024(%%rsp), %%rsp" : : : "rcx", "memory");
}

__attribute__((target("avx2"), noinline)) static void gather(long count)
{
	static uint64_t s = 88172645463325252ull;

	for (long i = 0; i < count; i++) {
		for (int j = 0; j < 8; j++)
			lanes[j] = (next(&s) >> 8) & (FAR - 1);
		asm volatile("vmovdqa (%0), %%ymm1\n\t"
			     "vpcmpeqd %%ymm2, %%ymm2, %%ymm2\n\t"
			     "vpgatherdd %%ymm2, (%1,%%ymm1,8), %%ymm0\n\t"
			     "vpaddd %%ymm0, %%ymm0, %%ymm0"
			     : : "r"(lanes), "r"(hot) : "xmm0", "xmm1", "xmm2", "memory");
	}
}

int main(int count, char **words)
{
	const char *name = count > 1 ? words[1] : "";
	uint64_t s = 1;

	for (int i = 0; i < NEAR; i++) {
		near_hot[i] = next(&s) % NEAR;
		near_cold[i] = next(&s) % NEAR;
	}
	fill(hot, 9 * PART);
	fill(cold, PART);
	/* Written, or all would be the one page of zeros */
	memset(walked, 0, sizeof(walked));
	memset(strolled, 0, sizeof(strolled));
	memset(from, 1, sizeof(from));
	memset(to, 1, sizeof(to));
	if (!strcmp(name, "threads")) {
		threads();
		return 0;
	}
	if (!strcmp(name, "gather") && !__builtin_cpu_supports("avx2")) {
		fprintf(stderr, "this processor has no AVX2\n");
		return 77;
	}
	link();
	for (double begun = taken(); taken() < begun + SECONDS;) {
		if (!strcmp(name, "mix"))
			mix(1000000);
		else if (!strcmp(name, "chain"))
			chain(1000000);
		else if (!strcmp(name, "stride"))
			stride(100000);
		else if (!strcmp(name, "list"))
			list(100000);
		else if (!strcmp(name, "spilled"))
			spilled(100000);
		else if (!strcmp(name, "readmostly"))
			readmostly(1000000);
		else if (!strcmp(name, "copy"))
			copy(1000);
		else if (!strcmp(name, "push"))
			push(10000000);
		else if (!strcmp(name, "gather"))
			gather(100000);
		else
			return 2;
	}
	return 0;
}
