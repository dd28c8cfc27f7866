// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * resident MIB: fills so many MiB, makes the file `begun` in the current folder, then touches a thousandth of them over and over until there is a
 * file `over`. Ends with 1 where a byte is not what it made of it.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { APART = 64, ROUNDS = 100 };

int main(int argc, char **argv)
{
	size_t bytes = argc > 1 ? (size_t)atol(argv[1]) << 20 : 0;
	volatile unsigned char *memory = bytes ? malloc(bytes) : NULL;
	unsigned char expected = 1;

	if (!memory)
		return 2;
	memset((unsigned char *)memory, expected, bytes);
	if (open("begun", O_CREAT | O_WRONLY, 0644) < 0)
		return 2;
	while (access("over", F_OK)) {
		for (int round = 0; round < ROUNDS; round++)
			for (size_t i = 0; i < bytes / 1000; i += APART)
				memory[i]++;
		/* Bytes begin again at zero, and so does this one. */
		expected += ROUNDS;
	}
	for (size_t i = 0; i < bytes / 1000; i += APART)
		if (memory[i] != expected)
			return 1;
	return 0;
}
