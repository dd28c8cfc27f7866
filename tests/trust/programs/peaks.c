// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * peaks MIB [MIB ...]: touches so many MiB and gives them back, then writes into the file `peak-MIB` of the current folder, in KiB, the most memory
 * that was resident of it: `ru_maxrss`, and `VmHWM`. Then it runs itself with the other arguments, if there are any.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PAGE = 4096 };

static long own_mark(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[256];
	long kib = 0;

	while (status && fgets(line, sizeof(line), status))
		if (sscanf(line, "VmHWM: %ld", &kib) == 1)
			break;
	if (status)
		fclose(status);
	return kib;
}

int main(int argc, char **argv)
{
	size_t bytes = argc > 1 ? (size_t)atol(argv[1]) << 20 : 0;
	struct rusage usage;
	char path[64];
	FILE *said;
	void *mapped;

	if (!bytes)
		return 2;
	mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mapped == MAP_FAILED)
		return 2;
	for (size_t at = 0; at < bytes; at += PAGE)
		((volatile unsigned char *)mapped)[at] = 1;
	/* The kernel notes what is resident before it takes it. */
	if (munmap(mapped, bytes))
		return 2;
	snprintf(path, sizeof(path), "peak-%s", argv[1]);
	said = fopen(path, "w");
	if (!said || getrusage(RUSAGE_SELF, &usage))
		return 2;
	fprintf(said, "%ld %ld\n", usage.ru_maxrss, own_mark());
	if (fclose(said))
		return 2;
	if (argc > 2) {
		argv[1] = argv[0];
		execv("/proc/self/exe", argv + 1);
		return 2;
	}
	return 0;
}
