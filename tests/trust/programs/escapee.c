/*
 * A process that shares its memory and is nobody's child runs a program: escapee exec|deep|fork COMMAND...
 *
 * "exec": it does so itself; "deep": one that it makes in the same way does; "fork": an ordinary child of it does.
 * Waits until the program has ended, whose end closes a pipe.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK (256 << 10)

static char **command;
static const char *how;

static int run(void *nothing)
{
	(void)nothing;
	execv(command[0], command);
	_exit(1);
}

static int between(void *nothing)
{
	static char stack[STACK];

	if (!strcmp(how, "exec"))
		run(nothing);
	if (!strcmp(how, "fork")) {
		/* Not by the library, whose memory is shared */
		if (syscall(SYS_fork) == 0)
			run(nothing);
	} else {
		clone(run, stack + STACK, CLONE_VM, NULL);
	}
	/* What this one makes does not run on if it is not there */
	while (waitpid(-1, NULL, __WALL) > 0)
		;
	_exit(0);
}

int main(int count, char **arguments)
{
	static char stack[STACK];
	char byte;
	int ends[2];

	if (count < 3 || pipe(ends))
		return 2;
	how = arguments[1];
	command = arguments + 2;
	if (clone(between, stack + STACK, CLONE_VM, NULL) < 0)
		return 3;
	close(ends[1]);
	while (read(ends[0], &byte, 1) > 0)
		;
	return 0;
}
