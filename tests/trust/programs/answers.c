// answers READY: handles SIGINT and SIGTERM, and ends with 42 half a second later.
#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t asked;

static void answer(int number) {
  (void)number;
  asked = 1;
}

int main(int count, char **a) {
  if (count < 2) return 98;
  signal(SIGINT, answer);
  signal(SIGTERM, answer);
  if (open(a[1], O_CREAT | O_WRONLY, 0644) < 0) return 99;
  struct timespec t = {0, 1000000};
  while (!asked) nanosleep(&t, NULL);
  t.tv_nsec = 500000000;
  nanosleep(&t, NULL);
  return 42;
}
