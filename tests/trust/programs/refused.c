// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Accesses that end in a signal: at addresses without a mapping, in a mapping that permits none, and behind the end of a file.
 * Prints the three first addresses; each way is tried at pages that lie 4 MiB apart.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define TRIES 100
#define APART (4ul << 20)

static sigjmp_buf back;

static void refused(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

int main(void)
{
	size_t bytes = TRIES * APART;
	int file = memfd_create("short", 0);
	/* Far below all that the kernel chooses */
	char *gap = (char *)(1ul << 40);
	char *closed = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *behind = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	char *const ways[] = { gap, closed, behind };
	volatile int count = 0;

	if (file < 0 || closed == MAP_FAILED || behind == MAP_FAILED)
		return 2;
	signal(SIGSEGV, refused);
	signal(SIGBUS, refused);
	printf("%p %p %p\n", (void *)gap, (void *)closed, (void *)behind);
	fflush(stdout);
	for (volatile int way = 0; way < 3; way++)
		for (volatile int i = 0; i < TRIES; i++) {
			if (!sigsetjmp(back, 1))
				*(volatile char *)(ways[way] + i * APART) = 1;
			else
				count++;
		}
	return count != 3 * TRIES;
}
