/*
 * An allocator to preload, with one disease that is chosen as it is compiled, or none: see SICK_*.
 *
 * Blocks have a header of 16 bytes with their size, and go to lists of their size, of each thread's own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define CLASSES 48
#define CHUNK (1ul << 20)

struct header {
	size_t size; /* what can be used */
	size_t start; /* bytes from the beginning of the memory to the block */
};

struct block {
	struct block *next;
};

#ifdef SICK_SHARED
/* One memory for all threads, so that their blocks lie side by side */
#define OWN
#else
#define OWN __thread __attribute__((tls_model("initial-exec")))
#endif

static OWN struct block *lists[CLASSES];
static OWN char *chunk;
static OWN size_t left;

#ifdef SICK_MAPPING
/* With the variable SICK_CPU it says at the end what CPU time its calls of munmap took, by the thread's own clock */
static int says_cpu;
static unsigned long unmapping_ns;

static unsigned long thread_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000ul + now.tv_nsec;
}

__attribute__((constructor)) static void begin(void)
{
	says_cpu = getenv("SICK_CPU") != NULL;
}

__attribute__((destructor)) static void end(void)
{
	if (says_cpu)
		dprintf(2, "munmap %lu\n", unmapping_ns);
}

static void unmap(void *p, size_t bytes)
{
	unsigned long from = says_cpu ? thread_ns() : 0;

	munmap(p, bytes);
	if (says_cpu)
		__sync_fetch_and_add(&unmapping_ns, thread_ns() - from);
}
#endif

#if defined(SICK_LOCK) || defined(SICK_SPIN)
/*
 * The first operations of a thread need no lock: the library that counts makes its tables within them, and wakes the allocator, which is no
 * operation of the program's. Lists are of each thread's own
 */
static OWN unsigned own_count;

enum { FIRST = 16 };
#endif

#ifdef SICK_LOCK
/* One lock for all, held for long now and then */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void enter(void)
{
	static const struct timespec moment = { 0, 50000 };
	static unsigned count;

	if (++own_count <= FIRST)
		return;
	pthread_mutex_lock(&lock);
	/* Whoever holds it sleeps, so that others meet it on any machine, however busy */
	if (++count % 8 == 0)
		nanosleep(&moment, NULL);
}

static void leave(void)
{
	if (own_count > FIRST)
		pthread_mutex_unlock(&lock);
}
#elif defined(SICK_SPIN)
/* The same lock, for which threads wait in a loop; it says at the end what CPU time that took, by their own clocks, and that of all */
static char lock;
static unsigned long spinning_ns, begun_ns;

static unsigned long thread_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000ul + now.tv_nsec;
}

static unsigned long process_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000ul + now.tv_nsec;
}

/* Programs are not recorded before they are loaded */
__attribute__((constructor)) static void begin(void)
{
	begun_ns = process_ns();
}

__attribute__((destructor)) static void end(void)
{
	dprintf(2, "spun %lu of %lu\n", spinning_ns, process_ns() - begun_ns);
}

static void enter(void)
{
	static const struct timespec moment = { 0, 50000 };
	static unsigned count;

	if (++own_count <= FIRST)
		return;
	if (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE)) {
		unsigned long from = thread_ns();

		do {
			while (__atomic_load_n(&lock, __ATOMIC_RELAXED))
				__builtin_ia32_pause();
		} while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE));
		__sync_fetch_and_add(&spinning_ns, thread_ns() - from);
	}
	if (++count % 8 == 0)
		nanosleep(&moment, NULL);
}

static void leave(void)
{
	if (own_count > FIRST)
		__atomic_clear(&lock, __ATOMIC_RELEASE);
}
#elif defined(SICK_SHARED)
static char lock;

static void enter(void)
{
	while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE))
		;
}

static void leave(void)
{
	__atomic_clear(&lock, __ATOMIC_RELEASE);
}
#else
static void enter(void)
{
}

static void leave(void)
{
}
#endif

/* The list of a size, which becomes that of its blocks */
static int class_of(size_t *size)
{
	int class = 0;
	size_t of = 16;

	while (of < *size) {
#ifdef SICK_WASTE
		of *= 4;
		class += 4;
#else
		/* Four to each power of two */
		size_t step = of < 64 ? 16 : (1ul << (63 - __builtin_clzl(of))) / 4;

		of += step;
		class++;
#endif
	}
	*size = of;
	return class;
}

static void *map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

#ifdef SICK_EARLY
/* All memory is mapped before the first operation */
__attribute__((constructor)) static void take_all(void)
{
	char *all = map(1ul << 30);

	chunk = all;
	left = all ? 1ul << 30 : 0;
}
#endif

static void *from_chunk(size_t bytes)
{
	void *p;

	if (left < bytes) {
		size_t wanted = bytes > CHUNK ? (bytes + 4095) & ~4095ul : CHUNK;

		chunk = map(wanted);
		if (!chunk) {
			left = 0;
			errno = ENOMEM;
			return NULL;
		}
		left = wanted;
	}
	p = chunk;
	chunk += bytes;
	left -= bytes;
	return p;
}

#ifdef SICK_RANDOM
/*
 * Of four allocations three get one of the free blocks of their size at random, and one what was freed last; it says how many at the end. For
 * one thread at a time
 */
static struct {
	struct block **free;
	size_t count, room;
} pools[CLASSES];
static unsigned long at_random, chosen;

__attribute__((destructor)) static void say(void)
{
	dprintf(2, "random %lu of %lu\n", at_random, chosen);
}

static void give(int class, void *p)
{
	if (pools[class].count == pools[class].room) {
		size_t room = pools[class].room ? pools[class].room * 2 : 4096;
		struct block **larger = map(room * sizeof(*larger));

		if (!larger)
			return;
		if (pools[class].count)
			memcpy(larger, pools[class].free, pools[class].count * sizeof(*larger));
		pools[class].free = larger;
		pools[class].room = room;
	}
	pools[class].free[pools[class].count++] = p;
}

static void *choose(int class)
{
	static uint64_t state = 88172645463325252;
	struct block **free = pools[class].free;
	size_t count = pools[class].count, at = count - 1;
	void *p;

	if (!count)
		return NULL;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	chosen++;
	if (state % 4) {
		at = (state >> 8) % count;
		at_random++;
	}
	p = free[at];
	free[at] = free[count - 1];
	pools[class].count--;
	return p;
}
#endif

static void *aligned(size_t alignment, size_t size)
{
	size_t whole = size;
	struct header *h;
	int class;
	char *p;

	if (size > 1ul << 40) {
		errno = ENOMEM;
		return NULL;
	}
	class = class_of(&whole);
	if (alignment > 16) {
		p = map(whole + alignment + sizeof(*h));
		if (!p)
			return NULL;
		h = (struct header *)(((uintptr_t)p + sizeof(*h) + alignment - 1 & -alignment) - sizeof(*h));
		h->size = whole;
		h->start = 1;
		return h + 1;
	}
#ifdef SICK_MAPPING
	if (whole >= 2048) {
		h = map(whole + sizeof(*h));
		if (!h)
			return NULL;
		h->size = whole;
		h->start = 2;
		return h + 1;
	}
#endif
#ifdef SICK_RANDOM
	p = class < CLASSES ? choose(class) : NULL;
	if (p)
		return p;
#endif
	if (class < CLASSES * 2 && class < CLASSES && lists[class]) {
		p = (char *)lists[class];
		lists[class] = lists[class]->next;
		return p;
	}
	h = from_chunk(whole + sizeof(*h));
	if (!h)
		return NULL;
	h->size = whole;
	h->start = 0;
	return h + 1;
}

void *malloc(size_t size)
{
	void *p;

	enter();
	p = aligned(16, size ? size : 1);
	leave();
#ifdef SICK_CLEARING
	/* Several times, so that it costs much more than what is worth a word, whatever a program does with its blocks */
	for (int i = 0; p && size >= 32768 && i < 8; i++) {
		memset(p, 0, size);
		__asm__ volatile("" : : "r"(p) : "memory");
	}
#endif
	return p;
}

void free(void *p)
{
	struct header *h = (struct header *)p - 1;
	size_t size;
	int class;

	if (!p || h->start == 1)
		return;
	size = h->size;
#ifdef SICK_MAPPING
	if (h->start == 2) {
		unmap(h, size + sizeof(*h));
		return;
	}
#endif
	enter();
	class = class_of(&size);
#ifdef SICK_RANDOM
	if (class < CLASSES)
		give(class, p);
#else
	if (class < CLASSES) {
		((struct block *)p)->next = lists[class];
		lists[class] = p;
	}
#endif
	leave();
#ifdef SICK_STORM
	/* Gives the pages back, and takes them again a moment later */
	if (size >= 3 * 4096) {
		uintptr_t from = (uintptr_t)p + 8 + 4095 & ~4095ul, to = (uintptr_t)p + size & ~4095ul;

		madvise((void *)from, to - from, MADV_DONTNEED);
	}
#endif
}

size_t malloc_usable_size(void *p)
{
	return p ? ((struct header *)p - 1)->size : 0;
}

void *calloc(size_t count, size_t size)
{
	size_t bytes;
	void *p;

	if (__builtin_mul_overflow(count, size, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	p = malloc(bytes);
	if (p)
		memset(p, 0, bytes);
	return p;
}

void *realloc(void *old, size_t size)
{
	void *p;

	if (!old)
		return malloc(size);
	if (size <= malloc_usable_size(old) && size)
		return old;
	p = malloc(size);
	if (p) {
		size_t before = malloc_usable_size(old);

		memcpy(p, old, before < size ? before : size);
		free(old);
	}
	return p;
}

int posix_memalign(void **result, size_t alignment, size_t size)
{
	void *p = aligned(alignment, size ? size : 1);

	if (!p)
		return ENOMEM;
	*result = p;
	return 0;
}

void *memalign(size_t alignment, size_t size)
{
	return aligned(alignment, size ? size : 1);
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return aligned(alignment, size ? size : 1);
}
