/* Allocates and frees, with `WORK` steps of other work to each pair: blocks THREADS PAIRS WORK */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SLOTS 512

static long pairs, work;
static volatile uint64_t sink;
/* The compiler knows what malloc and free do, and would leave them out. */
static void *(*volatile allocate)(size_t) = malloc;
static void (*volatile release)(void *) = free;

static void *run(void *seed)
{
	uint64_t state = (uintptr_t)seed * 0x9e3779b97f4a7c15 + 1, sum = 0;
	char *blocks[SLOTS] = { 0 };

	for (long i = 0; i < pairs; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		int at = state % SLOTS;

		release(blocks[at]);
		blocks[at] = allocate(16 + (state >> 20) % 500);
		blocks[at][0] = 1;
		for (long j = 0; j < work; j++)
			sum = sum * 31 + j;
	}
	for (int i = 0; i < SLOTS; i++)
		release(blocks[i]);
	sink += sum;
	return NULL;
}

int main(int argc, char **argv)
{
	long threads = argc > 1 ? atol(argv[1]) : 1;
	pthread_t all[256];
	struct timespec from, to;

	pairs = (argc > 2 ? atol(argv[2]) : 1000000) / threads;
	work = argc > 3 ? atol(argv[3]) : 0;
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (long i = 1; i < threads && i < 256; i++)
		pthread_create(&all[i], NULL, run, (void *)(i + 1));
	run((void *)1);
	for (long i = 1; i < threads && i < 256; i++)
		pthread_join(all[i], NULL);
	clock_gettime(CLOCK_MONOTONIC, &to);
	printf("blocks: %.6f s\n", to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) / 1e9);
	return 0;
}
