/*
 * Shares files with others and says little by itself: after it began it calls no library, so that what it accesses is
 * what stands here.
 *
 *   mapped spin             counts in registers
 *   mapped idle FILE        maps the file, reads each page once, then counts in registers
 *   mapped read FILE        maps the file and reads each page again and again
 *
 * Once it does only that it makes the file `begun` in the current folder, and it ends when there is one `over`. `rounds` then has begin and end of
 * each reading of the file, CLOCK_MONOTONIC nanoseconds, of the last ones where there are many.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define ROUNDS (1 << 16)

static uint64_t rounds[ROUNDS][2];

static inline long call(long number, long a, long b, long c)
{
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return result;
}

static inline uint64_t now(void)
{
	struct timespec t;

	call(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&t, 0);
	return t.tv_sec * 1000000000ul + t.tv_nsec;
}

static inline void read_all(const volatile char *map, long bytes)
{
	for (long at = 0; at < bytes; at += PAGE)
		(void)map[at];
}

int main(int argc, char **argv)
{
	int reads = argc > 1 && !strcmp(argv[1], "read");
	long bytes = 0, done = 0;
	const char *map = 0;
	int log = open("rounds", O_CREAT | O_WRONLY | O_TRUNC, 0644);

	if (log < 0)
		return 1;
	if (argc > 2) {
		int file = open(argv[2], O_RDONLY);
		struct stat facts;

		if (file < 0 || fstat(file, &facts))
			return 1;
		bytes = facts.st_size;
		map = mmap(0, bytes, PROT_READ, MAP_PRIVATE, file, 0);
		if (map == MAP_FAILED)
			return 1;
		read_all(map, bytes);
	}
	if (call(SYS_open, (long)"begun", O_CREAT | O_WRONLY, 0644) < 0)
		return 1;
	while (call(SYS_access, (long)"over", F_OK, 0)) {
		long count = 1 << 20;

		if (reads) {
			uint64_t *round = rounds[done++ % ROUNDS];

			round[0] = now();
			read_all(map, bytes);
			round[1] = now();
		}
		__asm__ volatile("1: dec %0; jnz 1b" : "+r"(count));
	}
	if (done > ROUNDS)
		done = ROUNDS;
	if (call(SYS_write, log, (long)rounds, done * sizeof(*rounds)) != (long)(done * sizeof(*rounds)))
		return 1;
	call(SYS_exit_group, 0, 0, 0);
	return 1;
}
