/*
 * Many threads that all wait for pages at once: crowd THREADS ROUNDS|until FILE
 *
 * In each round every thread adds to a page of its own and reads one of its neighbour's. Meanwhile the first thread
 * unmaps, moves and gives back memory, so that changes of mappings wait to be heard among the accesses.
 * FILE gets "begun" when all threads run, and "kept" or what was wrong at the end. FILE.rounds grows by a byte in each
 * round. With "until" it goes on until there is FILE.over.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096

static long threads, done;
/* The last round is known before the barrier at which it begins. */
static atomic_long rounds;
static char over[PATH_MAX];
static int progress;
static volatile long *pages;
static pthread_barrier_t barrier;
static atomic_long wrong;

static volatile long *page(long i)
{
	return pages + i % threads * (PAGE / sizeof(long));
}

static void *work(void *me)
{
	long i = (long)me;

	for (long r = 0; r < rounds; r++) {
		pthread_barrier_wait(&barrier);
		long seen = *page(i + 1);
		if (seen != 0 && seen != (i + 1) % threads + r && seen != (i + 1) % threads + r + 1)
			atomic_fetch_add(&wrong, 1);
		*page(i) = *page(i) == 0 ? i + 1 : *page(i) + 1;
	}
	pthread_barrier_wait(&barrier);
	return NULL;
}

static void *churn(void *nothing)
{
	char *fixed = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)nothing;
	for (long r = 0; r < rounds; r++) {
		if (access(over, F_OK) == 0)
			rounds = r + 1;
		memset(fixed, (int)r + 1, 64 * PAGE);
		char *moved = mremap(fixed, 64 * PAGE, 80 * PAGE, MREMAP_MAYMOVE);
		if (moved == MAP_FAILED || moved[63 * PAGE] != (char)(r + 1))
			atomic_fetch_add(&wrong, 1);
		pthread_barrier_wait(&barrier);
		madvise(moved, 16 * PAGE, MADV_DONTNEED);
		if (moved[0] != 0 || moved[20 * PAGE] != (char)(r + 1))
			atomic_fetch_add(&wrong, 1);
		munmap(moved + 64 * PAGE, 16 * PAGE);
		fixed = moved;
		done = r + 1;
		if (write(progress, "", 1) != 1)
			atomic_fetch_add(&wrong, 1);
	}
	pthread_barrier_wait(&barrier);
	return NULL;
}

static void say(const char *path, const char *word)
{
	FILE *f = fopen(path, "w");
	if (f) {
		fprintf(f, "%s\n", word);
		fclose(f);
	}
}

int main(int argc, char **argv)
{
	pthread_attr_t small;
	pthread_t *all;
	long sum = 0;

	if (argc != 4)
		return 2;
	threads = atol(argv[1]);
	rounds = strcmp(argv[2], "until") ? atol(argv[2]) : LONG_MAX;
	snprintf(over, sizeof(over), "%s.rounds", argv[3]);
	progress = open(over, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
	snprintf(over, sizeof(over), "%s.over", argv[3]);
	pages = mmap(NULL, threads * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	all = calloc(threads + 1, sizeof(*all));
	pthread_barrier_init(&barrier, NULL, threads + 1);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (long i = 0; i < threads; i++) {
		if (pthread_create(&all[i], &small, work, (void *)i))
			return 3;
	}
	if (pthread_create(&all[threads], &small, churn, NULL))
		return 3;
	say(argv[3], "begun");
	for (long i = 0; i <= threads; i++)
		pthread_join(all[i], NULL);
	for (long i = 0; i < threads; i++)
		sum += *page(i) == i + done;
	if (sum == threads && wrong == 0)
		say(argv[3], "kept");
	else
		say(argv[3], "lost");
	printf("%ld of %ld, %ld wrong\n", sum, threads, (long)wrong);
	return sum == threads && wrong == 0 ? 0 : 1;
}
