/*
 * A hostile target: takeover USER FILE [waits]
 *
 * Touches a page until there is a file "go" in the current folder. Then it gives up root for good, and puts code of its
 * own in the place of the code of the library that Varve loaded. That code makes FILE: what else runs in this memory runs
 * it, with the rights that it has kept. With `waits` it first reads a page that was not touched for long. The program
 * itself goes on without the library until there is a file "over". Exit code: 7 where that page has another content.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern char code_begin[], code_path[], code_end[];
extern volatile char *code_page;
asm(".pushsection .data\n"
    "code_begin:\n"
    "	mov code_page(%rip), %rdi\n"
    "	test %rdi, %rdi\n"
    "	jz 1f\n"
    "	mov (%rdi), %al\n"
    "1:	mov $2, %eax\n"
    "	lea code_path(%rip), %rdi\n"
    "	mov $0x241, %esi\n"
    "	mov $0600, %edx\n"
    "	syscall\n"
    "	mov $231, %eax\n"
    "	xor %edi, %edi\n"
    "	syscall\n"
    "	hlt\n"
    "code_page:\n"
    "	.quad 0\n"
    "code_path:\n"
    "	.skip 256\n"
    "code_end:\n"
    ".popsection");

static const struct timespec moment = { 0, 1000000 };
static const char over[] = "over";

/* A file of this length from whose every instruction one slides to the code at its end. Below 0: it cannot be made. */
static int slide(unsigned long bytes)
{
	unsigned long code_bytes = code_end - code_begin;
	char *text = malloc(bytes);
	int file = open("code", O_RDWR | O_CREAT | O_TRUNC, 0600);

	if (!text || file < 0 || bytes < code_bytes)
		return -1;
	memset(text, 0x90, bytes);
	memcpy(text + bytes - code_bytes, code_begin, code_bytes);
	return write(file, text, bytes) == (ssize_t)bytes ? file : -1;
}

/* A system call itself: the C library's function may be one that Varve's library wraps. */
static long call(long number, long a, long b, long c, long d, long e)
{
	register long fourth asm("r10") = d;
	register long fifth asm("r8") = e;
	register long sixth asm("r9") = 0;
	long result;

	asm volatile("syscall"
		     : "=a"(result)
		     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
		     : "rcx", "r11", "memory");
	return result;
}

int main(int argc, char **argv)
{
	char line[512], *text = NULL;
	unsigned long from, to, bytes = 0;
	int file;
	unsigned user;
	char kind[8];
	volatile char *page, *untouched;
	FILE *maps;

	if (argc < 3 || strlen(argv[2]) > 255)
		return 2;
	user = atoi(argv[1]);
	strcpy(code_path, argv[2]);
	page = mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	*page = 1;
	untouched = page + 4096;
	*untouched = 42;
	if (argc > 3 && !strcmp(argv[3], "waits"))
		code_page = untouched;
	/* The test may be gone; this lasts beyond the loss of rights */
	alarm(300);
	while (access("go", F_OK)) {
		usleep(1000);
		*page += 1;
	}
	maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof(line), maps)) {
		if (strstr(line, "varve") && strstr(line, ".so") &&
		    sscanf(line, "%lx-%lx %7s", &from, &to, kind) == 3 && !strcmp(kind, "r-xp"))
			text = (char *)from, bytes = to - from;
	}
	file = slide(bytes);
	if (!text || file < 0)
		return 4;
	if (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user))
		return 3;
	printf("taken over\n");
	fflush(stdout);
	/* At once: of code that is overwritten piece by piece, what runs beside reaches the middle, and does anything. */
	if (call(SYS_mmap, (long)text, bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file) != (long)text)
		return 5;
	/* Wakes what waits for an access */
	*page += 1;
	while (call(SYS_access, (long)over, F_OK, 0, 0, 0))
		call(SYS_nanosleep, (long)&moment, 0, 0, 0, 0);
	call(SYS_exit_group, *untouched == 42 ? 0 : 7, 0, 0, 0, 0);
	__builtin_unreachable();
}
