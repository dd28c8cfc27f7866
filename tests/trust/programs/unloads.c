/*
 * Confines itself, then allocates and unloads a library: unloads filter|strict
 *
 * Whatever a recorder's library does then must not be a system call that the program itself does not make.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static int filter(void)
{
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(SYS_write),
		ALLOW(SYS_exit_group),
		ALLOW(SYS_mmap),
		ALLOW(SYS_munmap),
		ALLOW(SYS_mprotect),
		ALLOW(SYS_brk),
		ALLOW(SYS_futex),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = { .len = sizeof(steps) / sizeof(*steps), .filter = steps };

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

int main(int count, char **words)
{
	int strict = count > 1 && !strcmp(words[1], "strict");
	void *library = dlopen("libresolv.so.2", RTLD_NOW);

	if (!library)
		return 2;
	if (strict ? syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) : filter())
		return 3;
	for (int i = 0; i < 1000; i++)
		free(malloc(300));
	/* In the strict mode nothing may be unmapped */
	if (!strict && dlclose(library))
		return 4;
	write(1, "unloaded\n", 9);
	syscall(strict ? SYS_exit : SYS_exit_group, 6);
}
