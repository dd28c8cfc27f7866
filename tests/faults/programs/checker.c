/* SAID OVER: knows what stands in its memory, and looks again and again while threads, forks, system calls and changes of
   mappings go on, until the file OVER is there. Writes "begun" to SAID, in the end "kept" in its place if all of it was
   always there. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moved.h"

enum { PAGES = 600, THREADS = 3 };

static _Atomic int over;

static char *fresh(size_t pages)
{
  char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) die("mmap");
  return memory;
}

static void fill(char *memory, uint64_t salt)
{
  for (uint64_t i = 0; i < PAGES; i++) *(uint64_t *)(memory + i * PAGE + 8 * (i % 500)) = salt * 1000003 + i;
}

static void look(const char *memory, uint64_t salt)
{
  for (uint64_t i = 0; i < PAGES; i++)
    if (*(const uint64_t *)(memory + i * PAGE + 8 * (i % 500)) != salt * 1000003 + i) {
      fprintf(stderr, "page %d of %d is lost\n", (int)i, (int)salt);
      _exit(4);
    }
}

static void *walk(void *argument)
{
  uint64_t salt = (uint64_t)(uintptr_t)argument;
  char *memory = fresh(PAGES);
  fill(memory, salt);
  while (!over) {
    look(memory, salt);
    fill(memory, salt += 10);
    usleep(1000);
  }
  look(memory, salt);
  return NULL;
}

/* A thread that lives so short that its end may fall together with a boundary. */
static void *nothing(void *argument)
{
  return argument;
}

int main(int count, char **arguments)
{
  if (count != 3) return 2;
  put(arguments[1], "begun\n");
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++)
    if (pthread_create(&threads[i], NULL, walk, (void *)(i + 1))) die("pthread_create");
  char *memory = fresh(PAGES);
  fill(memory, 77);
  int ends[2];
  if (pipe(ends)) die("pipe");
  /* All of it once more after that. */
  for (int turn = 0, left = 2; left; turn++) {
    left -= over = !access(arguments[2], F_OK);
    look(memory, 77);
    char *moved = mremap(memory, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, fresh(PAGES));
    if (moved == MAP_FAILED) die("mremap");
    memory = moved;
    /* One by the C library, one past it. */
    pid_t child = turn % 2 ? fork() : (pid_t)syscall(SYS_clone, 17, 0, 0, 0, 0);
    if (child < 0) die("fork");
    if (!child) {
      look(memory, 77);
      _exit(0);
    }
    int status;
    if (waitpid(-1, &status, 0) != child) die("somebody else's child");
    if (status) exit(5);
    if (waitpid(-1, &status, 0) != -1) die("a child too many");
    char *other = fresh(PAGES);
    fill(other, 5);
    if (mprotect(other, PAGES * PAGE, PROT_READ)) die("mprotect");
    usleep(15000);
    look(other, 5);
    if (mprotect(other, PAGES * PAGE, PROT_READ | PROT_WRITE)) die("mprotect");
    if (write(ends[1], other, PAGE) != PAGE || read(ends[0], other + PAGE, PAGE) != PAGE) die("pipe");
    if (memcmp(other, other + PAGE, PAGE)) exit(6);
    if (madvise(other, PAGES * PAGE, MADV_DONTNEED)) die("madvise");
    for (int i = 0; i < PAGES; i++)
      if (other[i * PAGE]) exit(7);
    munmap(other, PAGES * PAGE);
    pthread_t one;
    if (pthread_create(&one, NULL, nothing, NULL) || pthread_join(one, NULL)) die("thread");
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  look(memory, 77);
  put(arguments[1], "kept\n");
  return 0;
}
