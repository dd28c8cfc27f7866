/*
 * Permits itself nothing but to allocate, to print and to end, and then allocates where it has nothing yet: 2 GiB away.
 * It prints "allocated" and ends with 6. For any other system call the kernel ends it.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

int main(void)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(SYS_write), ALLOW(SYS_exit_group), ALLOW(SYS_mmap), ALLOW(SYS_munmap), ALLOW(SYS_brk),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog filter = { sizeof(rules) / sizeof(*rules), rules };
	void *volatile block = malloc(10);
	char *volatile large;

	free(block);
	/* The next mapping comes below it. */
	mmap(NULL, 2UL << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		return 2;
	large = malloc(1 << 20);
	*large = 1;
	write(1, "allocated\n", 10);
	_exit(6);
}
