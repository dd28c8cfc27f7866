// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * sparse READY GO: touches a page in each 2 MiB of 160 GiB, so that saying which they are takes more than a ring of records holds, and
 * prints where; makes the file READY, waits for the file GO, touches the last thousand of them and ends.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define APART (2ul << 20)
#define PAGES 81920
#define LAST 1000

int main(int argc, char **argv)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	char *memory = mmap(NULL, PAGES * APART, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (argc < 3 || memory == MAP_FAILED || madvise(memory, PAGES * APART, MADV_NOHUGEPAGE))
		return 2;
	for (size_t i = 0; i < PAGES; i++)
		memory[i * APART] = 1;
	printf("%p\n", (void *)memory);
	fflush(stdout);
	if (open(argv[1], O_CREAT | O_WRONLY, 0644) < 0)
		return 3;
	while (access(argv[2], F_OK))
		usleep(1000);
	for (size_t i = PAGES - LAST; i < PAGES; i++)
		memory[i * APART]++;
	return 0;
}
