/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Says to Varve where in its work a program is.
 *
 *     varve_begin("load");                  a phase of this thread begins
 *     varve_end("load");                    and ends
 *     varve_mark("first request");          something happened
 *     { varve::phase load("load"); ... }    C++: a phase that ends with its scope
 *
 * C99 and C++98 on. There is nothing to link. Where nobody records, a mark is a load and a branch; the first one of a program or library also
 * looks for a variable in the environment. Where somebody does, it is a system call that changes nothing. Phases may be nested, and each thread has
 * its own. A name has up to 128 bytes, UTF-8. On other systems than Linux on x86 nothing happens at all.
 */
#ifndef VARVE_MARK_H
#define VARVE_MARK_H

#if defined(__linux__) && defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))

#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 0: nobody records; 1: somebody does; 2: not known yet. One for each program and library */
__attribute__((weak, visibility("hidden"))) int varve_marks_v1 = 2;

/* brk(0), which says where the break is and changes nothing. The kernel does not look at the other arguments */
static __attribute__((noinline, cold, unused)) void varve_say_v1(const char *name, unsigned long what)
{
	unsigned long bytes = 0;
	long result;

	if (__atomic_load_n(&varve_marks_v1, __ATOMIC_RELAXED) == 2)
		__atomic_store_n(&varve_marks_v1, getenv("VARVE_MARKS") != 0, __ATOMIC_RELAXED);
	if (!name || __atomic_load_n(&varve_marks_v1, __ATOMIC_RELAXED) != 1)
		return;
	/* Read here, so that the name is in memory when the kernel looks. One more than is kept shows that there is more */
	while (bytes < 129 && ((const volatile char *)name)[bytes])
		bytes++;
#if defined(__x86_64__)
	register unsigned long fourth __asm__("r10") = bytes;
	__asm__ volatile("syscall" : "=a"(result) : "0"(12L), "D"(0L), "S"(0x56525600UL | what), "d"(name), "r"(fourth) : "rcx", "r11", "memory");
#else
	__asm__ volatile("int $0x80" : "=a"(result) : "0"(45L), "b"(0L), "c"(0x56525600UL | what), "d"(name), "S"(bytes) : "memory");
#endif
	(void)result;
}

static __inline__ __attribute__((unused)) void varve_begin(const char *name)
{
	if (__builtin_expect(__atomic_load_n(&varve_marks_v1, __ATOMIC_RELAXED), 0))
		varve_say_v1(name, 1);
}

static __inline__ __attribute__((unused)) void varve_end(const char *name)
{
	if (__builtin_expect(__atomic_load_n(&varve_marks_v1, __ATOMIC_RELAXED), 0))
		varve_say_v1(name, 2);
}

static __inline__ __attribute__((unused)) void varve_mark(const char *name)
{
	if (__builtin_expect(__atomic_load_n(&varve_marks_v1, __ATOMIC_RELAXED), 0))
		varve_say_v1(name, 3);
}

#ifdef __cplusplus
}
#endif

#else

#define varve_begin(name) ((void)(name))
#define varve_end(name) ((void)(name))
#define varve_mark(name) ((void)(name))

#endif

#ifdef __cplusplus
namespace varve {

/* A phase for as long as it lives, on the thread that made it. The name must live as long */
class phase {
public:
	explicit phase(const char *name) : name_(name) { varve_begin(name_); }
	~phase() { varve_end(name_); }

private:
	phase(const phase &);
	phase &operator=(const phase &);

	const char *name_;
};

} // namespace varve
#endif

#endif
