/*
 * An allocator behind a prefix, as libraries of other languages link jemalloc into programs: it gives out memory and takes none back. Called with N it
 * allocates and frees N blocks.
 */
#include <stdlib.h>

static char memory[16 << 20] __attribute__((aligned(16)));
static size_t taken;

__attribute__((noinline)) void *je_malloc(size_t bytes)
{
	void *p = memory + taken;

	taken += (bytes + 15) & ~(size_t)15;
	return taken <= sizeof(memory) ? p : NULL;
}

__attribute__((noinline)) void je_free(void *p)
{
	__asm__ volatile("" : : "r"(p) : "memory");
}

int main(int argc, char **argv)
{
	long n = argc > 1 ? atol(argv[1]) : 0;

	for (long i = 0; i < n; i++)
		je_free(je_malloc(64));
	return 0;
}
