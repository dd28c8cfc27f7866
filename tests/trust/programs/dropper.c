/*
 * A program that gives up its rights: dropper USER FILE
 *
 * Touches memory as root, becomes USER for good, declares itself dumpable as it was, forks a child, and goes on until there
 * is something in FILE.over, which is there from the beginning. FILE gets a line for each of both: who, process id, dumpable at
 * the beginning and after the change of user; at last "kept".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
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

static int churn(int over)
{
	struct timespec t = { 0, 1000000 };
	struct stat about;

	do {
		if (fstat(over, &about) || !is_whole(1))
			return 0;
		nanosleep(&t, NULL);
	} while (!about.st_size);
	return 1;
}

int main(int argc, char **argv)
{
	int before, between, over, status = 0;
	char path[PATH_MAX];
	unsigned user;
	FILE *f;
	pid_t child;

	if (argc != 3)
		return 2;
	before = prctl(PR_GET_DUMPABLE);
	user = atoi(argv[1]);
	f = fopen(argv[2], "w");
	/* Open before the rights are gone that this takes */
	snprintf(path, sizeof(path), "%s.over", argv[2]);
	over = open(path, O_RDONLY);
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
		_exit(!churn(over));
	if (!churn(over) || waitpid(child, &status, 0) != child || status)
		return 1;
	fprintf(f, "kept\n");
	return 0;
}
