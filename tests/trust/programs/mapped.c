/*
 * Shares files with others and says little by itself: after it began it calls no library, so that what it accesses is
 * what stands here.
 *
 *   mapped spin MS             counts in registers
 *   mapped idle FILE MS        maps the file, reads each page once, then counts in registers
 *   mapped read FILE MS        maps the file and reads each page again and again
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#define PAGE 4096

static inline long call(long number, long a, long b)
{
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b) : "rcx", "r11", "memory");
	return result;
}

static inline long now_ms(void)
{
	struct timespec t;

	call(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static inline void read_all(const volatile char *map, long bytes)
{
	for (long at = 0; at < bytes; at += PAGE)
		(void)map[at];
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	long end = now_ms() + (argc > 2 ? atol(argv[argc - 1]) : 0), bytes = 0;
	int reads = !strcmp(what, "read");
	const char *map = 0;

	if (argc > 3) {
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
	while (now_ms() < end) {
		long count = 1 << 20;

		if (reads)
			read_all(map, bytes);
		__asm__ volatile("1: dec %0; jnz 1b" : "+r"(count));
	}
	call(SYS_exit_group, 0, 0);
	return 1;
}
