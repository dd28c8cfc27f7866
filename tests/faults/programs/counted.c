// A target whose accesses to its own pages are known, for recorders that count all of them.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };
// Nothing but what is counted lies here.
static _Alignas(PAGE) volatile struct {
  uint64_t writes[PAGE / 8];
  uint64_t reads[PAGE / 8];
  uint64_t by_child[PAGE / 8];
  uint64_t unused[PAGE / 8];
} pages;
static _Alignas(PAGE) atomic_long one_by_one[PAGE / 8];
static _Alignas(PAGE) atomic_long at_once[PAGE / 8];

static void die(const char *what) {
  perror(what);
  exit(99);
}

static void nap(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

// Tells where the pages lie, under a name that appears when all is written.
static void tell(const char *path, uintptr_t address) {
  char temporary[4096];
  snprintf(temporary, sizeof temporary, "%s.new", path);
  FILE *file = fopen(temporary, "w");
  if (!file || fprintf(file, "%lu\n", address / PAGE) < 0 || fclose(file)) die(temporary);
  if (rename(temporary, path)) die(path);
}

// tally STARTED GO: 1000 writes and 700 reads; once GO is there as many again, a child, and another program.
static int tally(char **a) {
  uint64_t sum = 0;
  for (int part = 0; part < 2; part++) {
    for (int i = 0; i < 1000; i++) pages.writes[i % 512] = i;
    for (int i = 0; i < 700; i++) sum += pages.reads[i % 512];
    if (part) break;
    tell(a[0], (uintptr_t)&pages);
    while (access(a[1], F_OK)) nap(5);
  }
  pid_t child = fork();
  if (child < 0) die("fork");
  if (!child) {
    for (int i = 0; i < 300; i++) pages.by_child[i] = i;
    _exit(pages.by_child[299] == 299 ? 5 : 6);
  }
  int status;
  if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 5) return 98;
  for (int i = 0; i < 512; i++) sum = sum * 31 + pages.writes[i] + (sum >> 7);
  char text[32];
  snprintf(text, sizeof text, "%016lx", sum);
  execl("/bin/echo", "echo", text, NULL);
  die("execl");
  return 0;
}

static pthread_barrier_t all;
static void *alone(void *page) {
  atomic_fetch_add((atomic_long *)page, 1);
  return NULL;
}
static void *among_others(void *page) {
  pthread_barrier_wait(&all);
  atomic_fetch_add((atomic_long *)page, 1);
  pthread_barrier_wait(&all);
  return NULL;
}

// crowd STARTED N M: N threads, one after the other, then M that live at the same time; each adds one in a page.
static int crowd(char **a) {
  int n = atoi(a[1]), m = atoi(a[2]);
  for (int i = 0; i < n; i++) {
    pthread_t id;
    if (pthread_create(&id, NULL, alone, one_by_one)) die("pthread_create");
    pthread_join(id, NULL);
  }
  pthread_t *ids = calloc(m, sizeof *ids);
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 64 << 10);
  pthread_barrier_init(&all, NULL, m);
  for (int i = 0; i < m; i++)
    if (pthread_create(&ids[i], &small, among_others, at_once)) die("pthread_create");
  for (int i = 0; i < m; i++) pthread_join(ids[i], NULL);
  tell(a[0], (uintptr_t)&one_by_one);
  printf("%ld\n", (long)((uintptr_t)&at_once / PAGE) - (long)((uintptr_t)&one_by_one / PAGE));
  return 0;
}

int main(int n, char **a) {
  if (n == 4 && !strcmp(a[1], "tally")) return tally(a + 2);
  if (n == 5 && !strcmp(a[1], "crowd")) return crowd(a + 2);
  return 96;
}
