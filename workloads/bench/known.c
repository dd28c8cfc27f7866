/* Accesses that are known, for what memory limits do to a program.
 *
 *   known scan MIB ROUNDS        every page of MIB, in order, ROUNDS times: whoever has less room reads again
 *   known hot HOT COLD ROUNDS    HOT MiB in each round, and COLD MiB once, a part in each round: cold pages are written out, never read
 *
 * Each access adds up all of its page, so that a round takes a while, and pages are filled with numbers that compress to about a half. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static uint64_t *made(long mib)
{
	uint64_t *memory = aligned_alloc(PAGE, (size_t)mib << 20);
	if (memory == NULL) {
		fprintf(stderr, "out of memory\n");
		exit(1);
	}
	return memory;
}

static void fill(uint64_t *page, uint64_t x)
{
	for (int i = 0; i < WORDS; i++) {
		x = x * 0x5851f42d4c957f2du + 1;
		page[i] = i % 2 ? x ^ (x >> 29) : 0;
	}
}

static uint64_t look(uint64_t *page)
{
	uint64_t sum = 0;
	for (int turn = 0; turn < 8; turn++)
		for (int i = 0; i < WORDS; i++)
			sum += page[i] ^ (sum << 1);
	page[0] = sum | 1;
	return sum;
}

int main(int argc, char **argv)
{
	int is_scan = argc == 4 && strcmp(argv[1], "scan") == 0, is_hot = argc == 5 && strcmp(argv[1], "hot") == 0;
	if (!is_scan && !is_hot) {
		fprintf(stderr, "usage: %s scan MIB ROUNDS | hot HOT COLD ROUNDS\n", argv[0]);
		return 2;
	}
	long hot = atol(argv[2]), cold = is_hot ? atol(argv[3]) : 0, rounds = atol(argv[argc - 1]);
	if (hot < 1 || (is_hot && cold < 1) || rounds < 1)
		return 2;
	uint64_t sum = 0, *pages = made(hot), *others = is_hot ? made(cold) : NULL;
	long count = hot << 8, all = cold << 8;
	for (long i = 0; i < count; i++)
		fill(pages + i * WORDS, i);
	for (long round = 0; round < rounds; round++) {
		for (long i = 0; i < count; i++)
			sum += look(pages + i * WORDS);
		for (long i = all * round / rounds; i < all * (round + 1) / rounds; i++) {
			fill(others + i * WORDS, i);
			sum += look(others + i * WORDS);
		}
	}
	printf("%llx\n", (unsigned long long)sum);
	return 0;
}
