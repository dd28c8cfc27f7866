// heirs FILE: a second thread forks, and the child makes FILE and lives beside its parent until there is FILE.over.
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void nap(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

static const char *file;

static void *work(void *unused) {
  char over[PATH_MAX];
  char space[64 << 10];
  memset(space, 1, sizeof space);
  pid_t child = fork();
  snprintf(over, sizeof over, "%s.over", file);
  if (!child && open(file, O_CREAT | O_WRONLY, 0600) < 0) _exit(1);
  for (int i = 0; access(over, F_OK); i++) {
    memset(space, i, sizeof space);
    nap(5);
  }
  if (!child) _exit(space[7] & 0);
  waitpid(child, NULL, 0);
  return unused;
}

int main(int count, char **words) {
  pthread_t thread;
  if (count < 2) return 98;
  file = words[1];
  if (pthread_create(&thread, NULL, work, NULL)) return 1;
  return pthread_join(thread, NULL);
}
