/*
 * A program that gives up its rights: dropper USER FILE MILLISECONDS
 *
 * Touches memory as root, becomes USER for good, declares itself dumpable as it was, forks a child, and goes on. FILE gets
 * a line for each of both: who, process id, dumpable at the beginning and after the change of user; at last "kept".
 */
#define _GNU_SOURCE
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGES 512
#define PAGE 4096

static unsigned char *memory;

static int is_whole(int add)
{
	for (int i = 0; i < PAGES; i++)
		if (memory[i * PAGE] != (unsigned char)(i + add))
			return 0;
	return 1;
}

static int churn(long ms)
{
	struct timespec t = { 0, 1000000 };

	for (long i = 0; i < ms; i++) {
		if (!is_whole(1))
			return 0;
		nanosleep(&t, NULL);
	}
	return 1;
}

int main(int argc, char **argv)
{
	int before, between, status = 0;
	unsigned user;
	long ms;
	FILE *f;
	pid_t child;

	if (argc != 4)
		return 2;
	before = prctl(PR_GET_DUMPABLE);
	user = atoi(argv[1]);
	ms = atol(argv[3]);
	f = fopen(argv[2], "w");
	memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < PAGES; i++)
		memory[i * PAGE] = i + 1;
	if (user && (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user)))
		return 3;
	between = prctl(PR_GET_DUMPABLE);
	/* So that the stranger could trace this process, and does not fail for another reason */
	prctl(PR_SET_DUMPABLE, 1);
	child = fork();
	/* The first event of a child makes its ring and its handler */
	free(malloc(1 << 20));
	fprintf(f, "%s %d %d %d\n", child ? "parent" : "child", getpid(), before, between);
	fflush(f);
	if (!child)
		_exit(!churn(ms));
	if (!churn(ms) || waitpid(child, &status, 0) != child || status)
		return 1;
	fprintf(f, "kept\n");
	return 0;
}
