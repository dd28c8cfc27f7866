/*
 * A child that gives much memory back as soon as it is there: giver PIECES FILE
 *
 * Fills 64 MiB and PIECES pairs of pages and forks a child, which gives back one page of each pair, unmaps those of the
 * first half, and looks at all that it should have. FILE gets "kept", or how many pages the child found wrong.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGES 16384
#define WORDS 512

static long *map(long pages)
{
	void *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		exit(3);
	return memory;
}

static long give_and_look(long *all, long *pairs, long count)
{
	long wrong = 0;

	for (long i = 0; i < count; i++) {
		if (i < count / 2)
			munmap(pairs + 2 * i * WORDS, 4096);
		else
			madvise(pairs + 2 * i * WORDS, 4096, MADV_DONTNEED);
	}
	for (long p = 0; p < PAGES; p++)
		wrong += all[p * WORDS] != p + 1;
	for (long i = 0; i < count; i++) {
		wrong += pairs[(2 * i + 1) * WORDS] != i + 1;
		wrong += i >= count / 2 && pairs[2 * i * WORDS] != 0;
	}
	return wrong;
}

int main(int argc, char **argv)
{
	struct timespec nap = { 0, 200000000 };
	int ends[2], failed = 0;

	if (argc != 3 || pipe(ends))
		return 2;
	long count = atol(argv[1]), wrong = 0, found;
	long *all = map(PAGES), *pairs = map(2 * count);
	for (long p = 0; p < PAGES; p++)
		all[p * WORDS] = p + 1;
	for (long i = 0; i < 2 * count; i++)
		pairs[i * WORDS] = i / 2 + 1;
	for (int round = 0; round < 8; round++) {
		nanosleep(&nap, NULL);
		/* Not fork(), whose own work in the child would wait for the handler first. */
		if (!syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) {
			found = give_and_look(all, pairs, count);
			_exit(write(ends[1], &found, sizeof(found)) != sizeof(found));
		}
		int status;
		wait(&status);
		failed |= status;
		if (!status && read(ends[0], &found, sizeof(found)) == sizeof(found))
			wrong += found;
	}
	FILE *file = fopen(argv[2], "w");
	if (!file)
		return 4;
	if (failed)
		fprintf(file, "a child ended with %x\n", failed);
	else if (wrong)
		fprintf(file, "%ld pages are wrong\n", wrong);
	else
		fprintf(file, "kept\n");
	return fclose(file) != 0;
}
