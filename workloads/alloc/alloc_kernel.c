/*
 * What the kernel does for a program's allocator, and what the program pays for it later; each prints the truth by its own means.
 *
 *   waits ROUNDS BESIDE    maps and unmaps a block of 1 MiB by malloc and free, so many times, where BESIDE is 1 while another thread holds the lock of
 *                          the mappings (mmap_lock) for milliseconds at a time, and as often as it takes to have slept 0.2 s; says how long malloc and free slept at least and at most: their time without the
 *                          thread's CPU time and without that in which it had no CPU
 *   grows ROUNDS           allocates a block of 100,000 bytes in a thread with an arena of its own, which grows for each, so many times, while another thread
 *                          holds the lock as above; says the same
 *   fresh BYTES            allocates so many bytes in blocks of 1 MiB, touches each page of half of them itself and has the kernel read into the others;
 *                          then as many bytes that it maps itself; says how many page faults the first two were
 *   again BYTES ROUNDS     allocates a block of BYTES, writes to all of it and frees it, ROUNDS times
 *   sides THREADS ROUNDS   the threads in turn allocate 8 blocks of 256 bytes each, so many times; says how many pages have blocks of several threads,
 *                          and waits for the end of its input
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul

static volatile unsigned long sink;

static unsigned long ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000ul + now.tv_nsec;
}

/* How long the thread was ready to run and had no CPU */
static unsigned long delayed(int file)
{
	char text[100];
	ssize_t bytes = pread(file, text, sizeof(text) - 1, 0);
	unsigned long ran, waited;

	text[bytes > 0 ? bytes : 0] = 0;
	return sscanf(text, "%lu %lu", &ran, &waited) == 2 ? waited : 0;
}

static volatile int is_over;

static void *hold(void *unused)
{
	(void)unused;
	while (!is_over) {
		char *p = mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		/* Single pages, which take long */
		madvise(p, 32 * MIB, MADV_NOHUGEPAGE);
		madvise(p, 32 * MIB, 23 /* MADV_POPULATE_WRITE */);
		munmap(p, 32 * MIB);
	}
	return NULL;
}

static unsigned long least, most;

static unsigned long without(unsigned long all, unsigned long part)
{
	return all > part ? all - part : 0;
}

/* The thread may be without a CPU between two of its looks at clocks, too: so both ends are looked at twice */
static void *asleep(int file, void *block, size_t bytes)
{
	unsigned long begin = ns(CLOCK_MONOTONIC), delay = delayed(file), cpu = ns(CLOCK_THREAD_CPUTIME_ID);
	unsigned long from = ns(CLOCK_MONOTONIC), took;

	if (block) {
		free(block);
		block = NULL;
	} else {
		block = malloc(bytes);
	}
	took = ns(CLOCK_MONOTONIC) - from;
	cpu = ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
	delay = delayed(file) - delay;
	least += without(took, cpu + delay);
	most += without(ns(CLOCK_MONOTONIC) - begin, cpu + delay);
	return block;
}

static void waits(long rounds, int beside)
{
	int file = open("/proc/thread-self/schedstat", O_RDONLY);
	pthread_t other;

	mallopt(M_MMAP_THRESHOLD, MIB / 2);
	if (beside)
		pthread_create(&other, NULL, hold, NULL);
	for (long i = 0; i < rounds || (beside && least < 200000000); i++)
		asleep(file, asleep(file, NULL, MIB), MIB);
	is_over = 1;
	if (beside)
		pthread_join(other, NULL);
	printf("slept %lu\nat most %lu\n", least, most);
}

static void *grow(void *rounds)
{
	int file = open("/proc/thread-self/schedstat", O_RDONLY);

	for (long i = 0; i < (long)rounds || least < 200000000; i++)
		asleep(file, NULL, 100000);
	return NULL;
}

static void grows(long rounds)
{
	pthread_t other, grower;

	pthread_create(&other, NULL, hold, NULL);
	pthread_create(&grower, NULL, grow, (void *)rounds);
	pthread_join(grower, NULL);
	is_over = 1;
	pthread_join(other, NULL);
	printf("slept %lu\nat most %lu\n", least, most);
}

static long faults(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return used.ru_minflt;
}

static void touch(char *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += PAGE)
		p[i] = 1;
}

static void fresh(size_t bytes)
{
	size_t count = bytes / MIB;
	char **all = calloc(count, sizeof(*all)), *own;
	int zeroes = open("/dev/zero", O_RDONLY);
	long before;

	mallopt(M_MMAP_THRESHOLD, MIB / 2);
	touch((char *)all, count * sizeof(*all));
	for (size_t i = 0; i < count; i++) {
		all[i] = malloc(MIB);
		madvise((void *)((uintptr_t)all[i] & ~(PAGE - 1)), MIB, MADV_NOHUGEPAGE);
	}
	before = faults();
	for (size_t i = 0; i < count; i++) {
		if (i % 2)
			touch(all[i], MIB);
		else if (read(zeroes, all[i], MIB) != (ssize_t)MIB)
			exit(3);
	}
	printf("touched %ld\n", faults() - before);
	own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(own, bytes, MADV_NOHUGEPAGE);
	touch(own, bytes);
}

static void again(size_t bytes, long times)
{
	/* Single pages, each of which is a page fault */
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	for (long i = 0; i < times; i++) {
		char *p = malloc(bytes);

		memset(p, 1, bytes);
		sink += p[bytes / 2];
		free(p);
	}
}

enum { TURN = 8, BYTES = 256, MAX_THREADS = 16 };

static pthread_barrier_t turns;
static long threads, rounds;
static char **blocks[MAX_THREADS];

static void *allocate(void *number)
{
	long own = (long)number;

	for (long i = 0; i < rounds * threads; i++) {
		for (int j = 0; i % threads == own && j < TURN; j++) {
			char *p = malloc(BYTES);

			memset(p, 1, BYTES);
			blocks[own][i / threads * TURN + j] = p;
		}
		pthread_barrier_wait(&turns);
	}
	return NULL;
}

struct place {
	uintptr_t page;
	long thread;
};

static int by_page(const void *a, const void *b)
{
	const struct place *left = a, *right = b;

	return left->page < right->page ? -1 : left->page > right->page;
}

static void sides(void)
{
	pthread_t all[MAX_THREADS];
	size_t each = rounds * TURN, count = 0, shared = 0;
	struct place *places = mmap(NULL, threads * each * 2 * sizeof(*places), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char c;

	pthread_barrier_init(&turns, NULL, threads);
	for (long i = 0; i < threads; i++)
		blocks[i] = mmap(NULL, each * sizeof(char *), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (long i = 0; i < threads; i++)
		pthread_create(&all[i], NULL, allocate, (void *)i);
	for (long i = 0; i < threads; i++)
		pthread_join(all[i], NULL);
	for (long i = 0; i < threads; i++) {
		for (size_t j = 0; j < each; j++) {
			uintptr_t at = (uintptr_t)blocks[i][j];

			places[count++] = (struct place){ at / PAGE, i };
			places[count++] = (struct place){ (at + BYTES - 1) / PAGE, i };
		}
	}
	qsort(places, count, sizeof(*places), by_page);
	for (size_t i = 0; i < count;) {
		size_t first = i;
		int is_shared = 0;

		for (; i < count && places[i].page == places[first].page; i++)
			is_shared |= places[i].thread != places[first].thread;
		shared += is_shared;
	}
	printf("shared %zu\n", shared);
	fflush(stdout);
	/* As long as they are looked at */
	while (read(0, &c, 1) > 0)
		;
	for (long i = 0; i < threads; i++)
		sink += blocks[i][0][0];
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	if (!strcmp(mode, "waits") && argc == 4) {
		waits(atol(argv[2]), argv[3][0] == '1');
	} else if (!strcmp(mode, "grows") && argc == 3) {
		grows(atol(argv[2]));
	} else if (!strcmp(mode, "fresh") && argc == 3) {
		fresh(strtoul(argv[2], NULL, 10));
	} else if (!strcmp(mode, "again") && argc == 4) {
		again(strtoul(argv[2], NULL, 10), atol(argv[3]));
	} else if (!strcmp(mode, "sides") && argc == 4 && atol(argv[2]) <= MAX_THREADS) {
		threads = atol(argv[2]);
		rounds = atol(argv[3]);
		sides();
	} else {
		fprintf(stderr, "usage: alloc_kernel waits|grows|fresh|again|sides ...\n");
		return 2;
	}
	return 0;
}
