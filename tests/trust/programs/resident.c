// SPDX-License-Identifier: MIT OR Apache-2.0
/* Fills so many MiB, then touches a thousandth of them over and over for so many milliseconds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
	size_t bytes = argc > 2 ? (size_t)atol(argv[1]) << 20 : 0;
	double end;
	volatile char *memory = bytes ? malloc(bytes) : NULL;

	if (!memory)
		return 2;
	memset((char *)memory, 1, bytes);
	end = now() + atof(argv[2]);
	while (now() < end)
		for (size_t i = 0; i < bytes / 1000; i += 64)
			memory[i]++;
	return memory[0] == 0;
}
