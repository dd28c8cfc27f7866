/*
 * Tries to trace a process and to write its memory: intruder PID. Says which of both it could.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char path[64];
	pid_t pid;
	long traced;
	int memory;

	if (argc != 2)
		return 2;
	pid = atoi(argv[1]);
	traced = ptrace(PTRACE_SEIZE, pid, 0, 0);
	printf("%s\n", traced ? "not traced" : "traced");
	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	memory = open(path, O_RDWR);
	printf("%s\n", memory < 0 ? "not opened" : "opened");
	printf("%s\n", kill(pid, 0) ? "not reached" : "reached");
	return 0;
}
