/*
 * A program whose memory is to be what it was: holder PAGES FILE GO MOVES
 *
 * Fills PAGES pages, writes "begun" to FILE and waits, touching none of them, until the file GO is there. Then it looks
 * at every page, by itself and by system calls, moves half of them MOVES times and forks a child that looks too. FILE gets
 * "kept", "kept, but not in the child", or how many pages were lost.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))

static uint64_t content(long page, size_t word)
{
	return ((uint64_t)page + 1) * 0x9e3779b97f4a7c15ull + word;
}

/* The first of them, for whoever wants to know why. */
static char first_wrong[128];

static long wrong_pages(const uint64_t *memory, long first, long pages)
{
	long wrong = 0;

	for (long p = 0; p < pages; p++) {
		int is_whole = 1;
		for (size_t w = 0; w < WORDS; w++)
			is_whole &= memory[p * WORDS + w] == content(first + p, w);
		if (!is_whole && !first_wrong[0])
			snprintf(first_wrong, sizeof(first_wrong), "page %ld at %p: %lx", first + p,
				 (const void *)(memory + p * WORDS), (unsigned long)memory[p * WORDS]);
		wrong += !is_whole;
	}
	return wrong;
}

static void say(const char *path, const char *word, long count)
{
	FILE *f = fopen(path, "w");

	if (f) {
		fprintf(f, count ? "%s %ld, %s\n" : "%s\n", word, count, first_wrong);
		fclose(f);
	}
}

int main(int argc, char **argv)
{
	struct timespec nap = { 0, 5000000 };
	uint64_t *memory, *moved;
	long pages, half, wrong;
	int status = 0;
	pid_t child;

	if (argc != 5)
		return 2;
	pages = atol(argv[1]);
	half = pages / 2;
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (long p = 0; p < pages; p++)
		for (size_t w = 0; w < WORDS; w++)
			memory[p * WORDS + w] = content(p, w);
	say(argv[2], "begun", 0);
	while (access(argv[3], F_OK))
		nanosleep(&nap, NULL);
	child = fork();
	if (!child)
		_exit(wrong_pages(memory, 0, pages) ? 1 : 0);
	moved = memory + half * WORDS;
	for (long m = atol(argv[4]); m > 0; m--) {
		long bytes = (pages - half) * PAGE;
		void *place = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		moved = mremap(moved, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place);
		if (moved == MAP_FAILED)
			return 3;
	}
	int nothing = open("/dev/null", O_WRONLY);
	for (long p = 0; p < half; p += 7)
		if (write(nothing, memory + p * WORDS, PAGE) != PAGE)
			return 4;
	wrong = wrong_pages(memory, 0, half) + wrong_pages(moved, half, pages - half);
	waitpid(child, &status, 0);
	say(argv[2], wrong ? "lost" : status ? "kept, but not in the child" : "kept", wrong);
	return wrong != 0;
}
