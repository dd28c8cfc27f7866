// seize PID READY: traces a process as a debugger does, without stopping it, until there is READY.over.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <time.h>
#include <unistd.h>

int main(int count, char **a) {
  if (count < 3) return 98;
  pid_t pid = atoi(a[1]);
  struct timespec t = {0, 100000};
  // Somebody else may trace it for a moment.
  for (int tries = 0; ptrace(PTRACE_SEIZE, pid, 0, 0); tries++) {
    // A guard against hanging.
    if (tries > 3000000) return 1;
    nanosleep(&t, NULL);
  }
  if (open(a[2], O_CREAT | O_WRONLY, 0644) < 0) return 2;
  char over[PATH_MAX];
  snprintf(over, sizeof over, "%s.over", a[2]);
  while (access(over, F_OK)) nanosleep(&t, NULL);
  return 0;
}
