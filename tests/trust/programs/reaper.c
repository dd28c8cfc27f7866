/*
 * A parent that counts all of its children: reaper own|orphans FILE
 *
 * Four times it forks a child, which runs this program again, with SIGCHLD blocked, and waits for whatever child there
 * is until there is none. With `orphans` it takes in those of its descendants. FILE gets "kept", or what was wrong.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 4
#define BYTES (1 << 20)
#define RIGHT 5

static volatile sig_atomic_t signals;

static void count(int signal)
{
	(void)signal;
	signals++;
}

/* Uses memory over several intervals, and hears of no child, as it has none */
static int child(void)
{
	struct timespec pause = {.tv_nsec = 20000000}, left;
	char *memory = malloc(BYTES);
	sigset_t pending;

	for (int i = 0; i < 4; i++) {
		memset(memory, i, BYTES);
		left = pause;
		while (nanosleep(&left, &left))
			;
	}
	sigpending(&pending);
	if (sigismember(&pending, SIGCHLD))
		return 6;
	if (waitpid(-1, NULL, 0) != -1 || errno != ECHILD)
		return 7;
	return RIGHT;
}

int main(int argc, char **argv)
{
	int right = 0, strangers = 0;
	FILE *out;

	if (argc == 2)
		return child();
	if (argc != 3)
		return 2;
	if (!strcmp(argv[1], "orphans") && prctl(PR_SET_CHILD_SUBREAPER, 1))
		return 3;
	signal(SIGCHLD, count);
	for (int i = 0; i < ROUNDS; i++) {
		pid_t made = fork(), found;
		int status;

		if (!made) {
			sigset_t set;

			sigemptyset(&set);
			sigaddset(&set, SIGCHLD);
			sigprocmask(SIG_BLOCK, &set, NULL);
			execl("/proc/self/exe", argv[0], "child", NULL);
			_exit(8);
		}
		while ((found = waitpid(-1, &status, 0)) > 0 || errno == EINTR) {
			if (found == made && status == RIGHT << 8)
				right++;
			else if (found > 0)
				strangers++;
		}
	}
	out = fopen(argv[2], "w");
	if (right == ROUNDS && !strangers && signals == ROUNDS)
		fprintf(out, "kept\n");
	else
		fprintf(out, "%d right, %d strangers, %d signals\n", right, strangers, (int)signals);
	return fclose(out);
}
