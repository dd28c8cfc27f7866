/*
 * Makes and frees blocks that it knows: blocks COUNT [GO DONE]
 *
 * COUNT blocks, each 16 bytes larger than the one before, of which every second one is freed, the last first; then one of 3 MiB, by whose
 * birth it can be told what went before. With GO and DONE it waits for the file GO, makes and frees COUNT blocks of one size, one after
 * the other, and writes the file DONE.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { FIRST = 10008, STEP = 16, LAST = 3 << 20 };

/* So that the compiler leaves it alone. */
static char *volatile made;

static void keep_and_free(long count)
{
	char **blocks = calloc(count, sizeof *blocks);

	for (long i = 0; i < count; i++)
		made = blocks[i] = malloc(FIRST + STEP * i);
	for (long i = count - 1; i >= 0; i--)
		if (i % 2)
			free(blocks[i]);
	made = malloc(LAST);
	made[0] = 1;
}

static void make_and_free(long count)
{
	for (long i = 0; i < count; i++) {
		made = malloc(FIRST);
		free(made);
	}
}

int main(int count, char **words)
{
	if (count < 2)
		return 2;
	if (count < 4) {
		keep_and_free(atol(words[1]));
		return 0;
	}
	while (access(words[2], F_OK))
		usleep(10000);
	make_and_free(atol(words[1]));
	close(open(words[3], O_WRONLY | O_CREAT, 0600));
	return 0;
}
