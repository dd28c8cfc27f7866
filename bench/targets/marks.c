/* Works in phases that it names, or not: marks MODE PHASES WORK, where MODE is named or plain */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <varve/mark.h>

static volatile uint64_t sink;

static __attribute__((noinline)) uint64_t steps(uint64_t state, long work)
{
	for (long j = 0; j < work; j++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
	}
	return state;
}

static __attribute__((noinline)) uint64_t named(uint64_t state, long work)
{
	varve_begin("phase");
	state = steps(state, work);
	varve_end("phase");
	return state;
}

int main(int argc, char **argv)
{
	int has_names = argc > 1 && !strcmp(argv[1], "named");
	long phases = argc > 2 ? atol(argv[2]) : 1000, work = argc > 3 ? atol(argv[3]) : 0;
	uint64_t (*volatile phase)(uint64_t, long) = has_names ? named : steps;
	uint64_t state = 88172645463325252;
	struct timespec from, to;

	clock_gettime(CLOCK_MONOTONIC, &from);
	for (long i = 0; i < phases; i++)
		state = phase(state, work);
	clock_gettime(CLOCK_MONOTONIC, &to);
	sink = state;
	printf("marks: %.9f s\n", to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) / 1e9);
	return 0;
}
