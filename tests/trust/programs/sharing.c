// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * sharing MIB PROCESSES: processes that share so many MiB, touch all of it once, and then a sixteenth over and over until there is a file `over` in the
 * current folder. How often each has done that stands in the file `rounds`.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	size_t bytes = argc > 2 ? (size_t)atol(argv[1]) << 20 : 0;
	int processes = argc > 2 ? atoi(argv[2]) : 0;
	volatile char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int file = open("rounds", O_RDWR | O_CREAT, 0600);
	volatile uint64_t *rounds;

	if (memory == MAP_FAILED || file < 0 || ftruncate(file, processes * sizeof(*rounds)))
		return 2;
	rounds = mmap(NULL, processes * sizeof(*rounds), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (rounds == MAP_FAILED)
		return 2;
	for (int i = 0; i < processes; i++) {
		if (fork())
			continue;
		for (size_t at = 0; at < bytes; at += 4096)
			memory[at]++;
		while (access("over", F_OK)) {
			for (size_t at = 0; at < bytes / 16; at += 4096)
				memory[at]++;
			rounds[i]++;
		}
		return 0;
	}
	while (wait(NULL) > 0)
		;
	return 0;
}
