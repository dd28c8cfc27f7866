// SPDX-License-Identifier: MIT OR Apache-2.0
/* Processes that share so many MiB, touch all of it once, and then a sixteenth over and over, for so many milliseconds. */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
	size_t bytes = argc > 3 ? (size_t)atol(argv[1]) << 20 : 0;
	int processes = argc > 3 ? atoi(argv[2]) : 0;
	double end = argc > 3 ? now() + atof(argv[3]) : 0;
	volatile char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return 2;
	for (int i = 0; i < processes; i++) {
		if (fork())
			continue;
		for (size_t at = 0; at < bytes; at += 4096)
			memory[at]++;
		while (now() < end)
			for (size_t at = 0; at < bytes / 16; at += 4096)
				memory[at]++;
		return 0;
	}
	while (wait(NULL) > 0)
		;
	return 0;
}
