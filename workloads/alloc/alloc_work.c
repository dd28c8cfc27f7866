/*
 * Programs that allocate, by name; each prints how many operations it made, which is what a recorder must count.
 *
 *   churn THREADS SIZE ROUNDS   each thread frees and allocates blocks of SIZE/2 to SIZE at random among 256 of its own; where ROUNDS is 0,
 *                               until its input ends
 *   pipe SIZE ROUNDS            one thread allocates batches, another frees them
 *   relay SIZE ROUNDS           the same by turns: neither has to wait for a lock that the other one holds
 *   grow BYTES SIZE             allocates so many bytes and writes to them, and ends
 *   phases BYTES SIZE           the same, frees all but the last block, and works on for a second of its CPU time
 *   maps BYTES SIZE             maps so many bytes itself, SIZE at a time, uses them, and works on for a second of its CPU time
 *   extend BYTES SIZE           lengthens a block by SIZE at a time up to so many bytes, three times, and works on likewise
 *   hold BYTES SIZE             the same as grow, says so, and waits for the end of its input
 *   plugins LIBRARY ROUNDS      loads a library, has it allocate a block, unloads it and frees the block, so many times
 *   leak ROUNDS READS           each round loses 1,000 blocks of 300 bytes, or where READS is 1 keeps them and reads them all again, and
 *                               frees 1,000 of 1,000 bytes at once; 20 ms a round
 *   pins BYTES APART            allocates so many bytes in blocks of 256 that it frees, and to 15 of them one of 64 that it keeps, where APART is 1
 *                               before the others; says how many free bytes the pages of those have, and works on for a second of its CPU time and
 *                               until its input ends
 *   replace BYTES SIZE ROUNDS   allocates so many bytes in blocks of SIZE, frees every third, and ROUNDS times frees one at random and allocates
 *                               another
 *   seldom ROUNDS               frees a block of 100 bytes and allocates another so many times, with half a millisecond of CPU time of other work between
 *   counters THREADS PASSED     each thread allocates counters, where PASSED is 1 after it has freed others that the first thread had
 *                               allocated, and counts until the process has had three seconds of CPU time
 *   peaks HOW                   allocates 32 MiB and then what makes the peak with it: another block of 64 MiB ("large"), or 40 of 500 bytes
 *                               ("small"); frees all, the first one after it was made smaller ("shrunk", with the small ones)
 *   threads COUNT               so many threads after each other and at once, each allocating a little, freed by another one
 */
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 256

static unsigned long allocated, freed;
static size_t size;
static long rounds;
static volatile unsigned long sink;

static uint64_t next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* What a program does with its memory beside allocating it */
static void work(char *p, size_t bytes)
{
	unsigned long sum = 0;

	memset(p, 1, bytes);
	for (size_t i = 0; i < bytes; i += 8)
		sum += (unsigned char)p[i] * i;
	for (int i = 0; i < 600; i++)
		sum = sum * 31 + i;
	sink += sum;
}

/* Whether standard input has ended, looked at once in 256 calls of a thread's */
static int is_over(long round)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };

	return round % 256 == 0 && poll(&input, 1, 0) > 0;
}

static void *churn(void *seed)
{
	uint64_t state = (uintptr_t)seed * 0x9e3779b97f4a7c15 + 1;
	char *blocks[SLOTS] = { 0 };
	unsigned long made = 0;

	for (long i = 0; rounds ? i < rounds : !is_over(i); i++) {
		int at = next(&state) % SLOTS;
		size_t bytes = size / 2 + next(&state) % (size / 2 + 1);

		free(blocks[at]);
		blocks[at] = malloc(bytes);
		work(blocks[at], bytes);
		made++;
	}
	for (int i = 0; i < SLOTS; i++)
		free(blocks[i]);
	__sync_fetch_and_add(&allocated, made);
	__sync_fetch_and_add(&freed, made + SLOTS);
	return NULL;
}

#define BATCH 1000
static char *batches[2][BATCH];
static pthread_barrier_t barrier;
static int by_turns;

static void pass_on(void)
{
	if (by_turns)
		pthread_barrier_wait(&barrier);
}

static void *consumer(void *unused)
{
	(void)unused;
	for (long i = 0; i < rounds; i++) {
		pthread_barrier_wait(&barrier);
		for (int j = 0; j < BATCH; j++)
			free(batches[i % 2][j]);
		freed += BATCH;
		pass_on();
	}
	return NULL;
}

static void pipe_through(void)
{
	pthread_t other;

	pthread_barrier_init(&barrier, NULL, 2);
	pthread_create(&other, NULL, consumer, NULL);
	for (long i = 0; i < rounds; i++) {
		for (int j = 0; j < BATCH; j++) {
			batches[i % 2][j] = malloc(size);
			work(batches[i % 2][j], size);
		}
		allocated += BATCH;
		pthread_barrier_wait(&barrier);
		pass_on();
	}
	pthread_join(other, NULL);
}

static void busy(double seconds)
{
	struct timespec from, now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
	do {
		for (int i = 0; i < 10000; i++)
			sink = sink * 31 + i;
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	} while (now.tv_sec - from.tv_sec + (now.tv_nsec - from.tv_nsec) / 1e9 < seconds);
}

/* Whether nobody will write to the standard input any more */
static int is_input_over(void)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };

	return poll(&input, 1, 0) != 0;
}

static void seldom(void)
{
	char *block = NULL;

	for (long i = 0; i < rounds; i++) {
		free(block);
		block = malloc(100);
		work(block, 100);
		busy(0.0005);
		allocated++;
		freed++;
	}
}

static void grow(size_t bytes, int phases)
{
	size_t count = bytes / size;
	char **all = malloc(count * sizeof(*all));

	allocated = 1 + count;
	for (size_t i = 0; i < count; i++) {
		all[i] = malloc(size);
		work(all[i], size);
	}
	if (!phases)
		return;
	for (size_t i = 0; i + 1 < count; i++)
		free(all[i]);
	freed = count - 1;
	busy(1.0);
}

/* Beside a little that it allocates */
static void maps(size_t bytes)
{
	for (size_t have = 0; have < bytes; have += size) {
		char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		char *beside = malloc(1000);

		if (p == MAP_FAILED)
			exit(2);
		work(p, size);
		work(beside, 1000);
		free(beside);
		allocated++;
		freed++;
	}
	busy(1.0);
}

static void extend(size_t bytes)
{
	for (int i = 0; i < 3; i++) {
		char *p = malloc(size);

		for (size_t have = size; have < bytes; have += size) {
			p = realloc(p, have + size);
			work(p + have, size);
		}
		free(p);
		allocated++;
		freed++;
	}
	busy(1.0);
}

static void replace(size_t bytes)
{
	size_t count = bytes / size, live = 0;
	char **all = malloc(count * sizeof(*all));
	uint64_t state = 1;

	for (size_t i = 0; i < count; i++) {
		all[i] = malloc(size);
		work(all[i], size);
	}
	for (size_t i = 0; i < count; i++) {
		if (i % 3)
			all[live++] = all[i];
		else
			free(all[i]);
	}
	for (long i = 0; i < rounds; i++) {
		size_t at = next(&state) % live;

		free(all[at]);
		all[at] = malloc(size);
		work(all[at], size);
	}
	allocated = 1 + count + rounds;
	freed = count - live + rounds;
}

static void *little(void *old)
{
	void *p = malloc(100);

	free(old);
	memset(p, 1, 100);
	return p;
}

static void many_threads(long count)
{
	void *held = NULL;

	for (long done = 0; done < count;) {
		pthread_t group[100];
		pthread_attr_t attributes;
		int n = 0;

		pthread_attr_init(&attributes);
		pthread_attr_setstacksize(&attributes, 64 << 10);
		for (; n < 100 && done < count; n++, done++) {
			void *give = n ? NULL : held;

			if (pthread_create(&group[n], &attributes, little, give))
				exit(2);
		}
		held = NULL;
		for (int i = 0; i < n; i++) {
			void *p;

			pthread_join(group[i], &p);
			if (i == n - 1)
				held = p;
			else
				free(p);
		}
	}
	free(held);
	allocated = count;
	freed = count + count;
}

static int plugins(const char *path)
{
	for (long i = 0; i < rounds; i++) {
		void *library = dlopen(path, RTLD_NOW);
		char *(*make)(void) = library ? (char *(*)(void))dlsym(library, "plugin_make") : NULL;
		char *block = make ? make() : NULL;

		if (!block)
			return 0;
		dlclose(library);
		work(block, 100);
		free(block);
		allocated++;
		freed++;
	}
	return 1;
}

enum { LOST = 1000, LOST_BYTES = 300, BRIEF_BYTES = 1000 };

__attribute__((noinline)) static char *lose(void)
{
	char *p = malloc(LOST_BYTES);

	memset(p, 1, LOST_BYTES);
	allocated++;
	return p;
}

__attribute__((noinline)) static void use_briefly(void)
{
	char *p = malloc(BRIEF_BYTES);

	memset(p, 1, BRIEF_BYTES);
	sink += p[7];
	free(p);
	allocated++;
	freed++;
}

static void leak(int reads)
{
	static char *kept[1000 * LOST];
	long n = 0;

	for (long round = 0; round < rounds && n + LOST <= 1000 * LOST; round++) {
		for (int i = 0; i < LOST; i++) {
			char *p = lose();

			kept[n++] = reads ? p : NULL;
			use_briefly();
		}
		for (long i = 0; reads && i < n; i++)
			sink += kept[i][9];
		usleep(20000);
	}
}

enum { BRIEF = 256, KEPT = 64, BRIEF_TO_ONE = 15, PAGE = 4096 };

__attribute__((noinline)) static char *keep(void)
{
	char *p = malloc(KEPT);

	memset(p, 1, KEPT);
	allocated++;
	return p;
}

/* glibc's chunk of a block of 64 bytes has 80; sparse pages are full to a quarter at most */
static unsigned long pinned(char **kept, size_t count)
{
	uintptr_t page = 0;
	unsigned long live = 0, free_bytes = 0;

	for (size_t i = 0; i <= count; i++) {
		uintptr_t at = i < count ? (uintptr_t)kept[i] : UINTPTR_MAX;

		if (at / PAGE != page) {
			if (live && live <= PAGE / 4)
				free_bytes += PAGE - live;
			live = 0;
			page = at / PAGE;
		}
		if (i < count) {
			uintptr_t here = PAGE - at % PAGE;

			live += here < 80 ? here : 80;
			if (here < 80) {
				if (live <= PAGE / 4)
					free_bytes += PAGE - live;
				live = 80 - here;
				page++;
			}
		}
	}
	return free_bytes;
}

static void pins(size_t bytes, int apart)
{
	size_t count = bytes / BRIEF, keeps = count / BRIEF_TO_ONE;
	char **brief = malloc(count * sizeof(*brief)), **kept = malloc(keeps * sizeof(*kept));
	size_t n = 0;

	allocated += 2 + count;
	if (apart)
		while (n < keeps)
			kept[n++] = keep();
	for (size_t i = 0; i < count; i++) {
		brief[i] = malloc(BRIEF);
		work(brief[i], BRIEF);
		if (n < keeps && i % BRIEF_TO_ONE == 0)
			kept[n++] = keep();
	}
	for (size_t i = 0; i < count; i++)
		free(brief[i]);
	freed += count;
	printf("pinned %lu\n", pinned(kept, n));
	fflush(stdout);
	do
		busy(1.0);
	while (!is_input_over());
	for (size_t i = 0; i < n; i++)
		sink += kept[i][0];
}

enum { COUNTERS = 16, BUSY = 4, MAX_THREADS = 16 };

static pthread_barrier_t together;
static int is_passed;
static void *given[MAX_THREADS][COUNTERS];
static volatile long *counters_of[MAX_THREADS][COUNTERS];

static void *count_up(void *number)
{
	long thread = (long)number;
	volatile long **own = counters_of[thread];
	struct timespec now;

	for (int i = 0; is_passed && i < COUNTERS; i++)
		free(given[thread][i]);
	/* All threads one by one in turn */
	for (int i = 0; i < COUNTERS; i++) {
		pthread_barrier_wait(&together);
		own[i] = malloc(sizeof(long));
		*own[i] = 0;
	}
	pthread_barrier_wait(&together);
	do {
		for (int i = 0; i < 100000; i++)
			++*own[i % BUSY];
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	} while (now.tv_sec < 3);
	pthread_barrier_wait(&together);
	for (int i = 0; i < COUNTERS; i++)
		free((void *)own[i]);
	return NULL;
}

/* Pairs of counters that begin on one line and belong to two threads: no line has more than two of 32 bytes */
static int shared_lines(long all)
{
	int pairs = 0;

	for (long i = 0; i < all; i++)
		for (long j = 0; j < i; j++)
			pairs += i / COUNTERS != j / COUNTERS &&
				 (uintptr_t)counters_of[i / COUNTERS][i % COUNTERS] / 64 == (uintptr_t)counters_of[j / COUNTERS][j % COUNTERS] / 64;
	return pairs;
}

static void counters(long threads)
{
	pthread_t all[MAX_THREADS];

	pthread_barrier_init(&together, NULL, threads);
	for (int i = 0; is_passed && i < COUNTERS; i++)
		for (long j = 0; j < threads; j++)
			given[j][i] = malloc(sizeof(long));
	for (long i = 0; i < threads; i++)
		pthread_create(&all[i], NULL, count_up, (void *)i);
	for (long i = 0; i < threads; i++)
		pthread_join(all[i], NULL);
	printf("shared %d\n", shared_lines(threads * COUNTERS));
	allocated = freed = (is_passed ? 2 : 1) * threads * COUNTERS;
}

/* No last call: that would be a jump, and these are to be in the call stacks */
static __attribute__((noinline)) void *make_first(void)
{
	void *volatile made = malloc(32 << 20);

	return made;
}

static __attribute__((noinline)) void *make_second(void)
{
	void *volatile made = malloc(64 << 20);

	return made;
}

static void peaks(const char *how)
{
	void *volatile small[40] = {0};
	void *volatile first = make_first(), *volatile second = NULL;
	int is_shrunk = !strcmp(how, "shrunk");

	if (!strcmp(how, "large"))
		second = make_second();
	else
		for (int i = 0; i < 40; i++)
			small[i] = malloc(500);
	allocated += strcmp(how, "large") ? 41 : 2;
	if (is_shrunk) {
		first = realloc(first, 100);
		allocated++;
		freed++;
	}
	free(first);
	free(second);
	for (int i = 0; i < 40; i++)
		free(small[i]);
	freed += strcmp(how, "large") ? 41 : 2;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	if (!strcmp(mode, "churn") && argc == 5) {
		long threads = atol(argv[2]);
		pthread_t all[64];

		size = strtoul(argv[3], NULL, 10);
		rounds = atol(argv[4]);
		for (long i = 1; i < threads; i++)
			pthread_create(&all[i], NULL, churn, (void *)(i + 1));
		churn((void *)1);
		for (long i = 1; i < threads; i++)
			pthread_join(all[i], NULL);
	} else if ((!strcmp(mode, "pipe") || !strcmp(mode, "relay")) && argc == 4) {
		by_turns = mode[0] == 'r';
		size = strtoul(argv[2], NULL, 10);
		rounds = atol(argv[3]);
		pipe_through();
	} else if ((!strcmp(mode, "grow") || !strcmp(mode, "phases")) && argc == 4) {
		size = strtoul(argv[3], NULL, 10);
		grow(strtoul(argv[2], NULL, 10), mode[0] == 'p');
	} else if (!strcmp(mode, "maps") && argc == 4) {
		size = strtoul(argv[3], NULL, 10);
		maps(strtoul(argv[2], NULL, 10));
	} else if (!strcmp(mode, "extend") && argc == 4) {
		size = strtoul(argv[3], NULL, 10);
		extend(strtoul(argv[2], NULL, 10));
	} else if (!strcmp(mode, "hold") && argc == 4) {
		char c;

		size = strtoul(argv[3], NULL, 10);
		grow(strtoul(argv[2], NULL, 10), 0);
		fprintf(stderr, "%lu %lu\n", allocated, freed);
		while (read(0, &c, 1) > 0)
			;
		return 0;
	} else if (!strcmp(mode, "plugins") && argc == 4) {
		rounds = atol(argv[3]);
		if (!plugins(argv[2]))
			return 3;
	} else if (!strcmp(mode, "leak") && argc == 4) {
		rounds = atol(argv[2]);
		leak(argv[3][0] == '1');
	} else if (!strcmp(mode, "pins") && argc == 4) {
		pins(strtoul(argv[2], NULL, 10), argv[3][0] == '1');
	} else if (!strcmp(mode, "replace") && argc == 5) {
		size = strtoul(argv[3], NULL, 10);
		rounds = atol(argv[4]);
		replace(strtoul(argv[2], NULL, 10));
	} else if (!strcmp(mode, "seldom") && argc == 3) {
		rounds = atol(argv[2]);
		seldom();
	} else if (!strcmp(mode, "counters") && argc == 4 && atol(argv[2]) <= MAX_THREADS) {
		is_passed = argv[3][0] == '1';
		counters(atol(argv[2]));
	} else if (!strcmp(mode, "peaks") && argc == 3) {
		peaks(argv[2]);
	} else if (!strcmp(mode, "threads") && argc == 3) {
		many_threads(atol(argv[2]));
	} else {
		fprintf(stderr, "usage: alloc_work churn|pipe|relay|grow|phases|maps|extend|hold|plugins|leak|pins|replace|seldom|counters|peaks|threads ...\n");
		return 2;
	}
	fprintf(stderr, "%lu %lu\n", allocated, freed);
	return 0;
}
