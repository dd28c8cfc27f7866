// heirs: a second thread forks, and the child lives for a while beside its parent.
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void nap(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

static void *work(void *unused) {
  char space[64 << 10];
  memset(space, 1, sizeof space);
  pid_t child = fork();
  for (int i = 0; i < 60; i++) {
    memset(space, i, sizeof space);
    nap(5);
  }
  if (!child) _exit(space[7] & 0);
  waitpid(child, NULL, 0);
  return unused;
}

int main(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, work, NULL)) return 1;
  return pthread_join(thread, NULL);
}
