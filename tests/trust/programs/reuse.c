// reuse: runs itself twice as a child with the same pid, one after the other: first, which touches 40 pages, and second, which touches 80
// pages at the same addresses. Prints the pid and ends with 7; with 77 where the kernel does not let it choose.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define PLACE ((void *)0x200000000000)

static int touch(char *memory, size_t pages) {
  if (memory == MAP_FAILED) return 98;
  madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
  for (int round = 0; round < 20; round++) {
    for (size_t i = 0; i < pages; i++) ((volatile char *)memory)[i * PAGE]++;
    usleep(10000);
  }
  return 0;
}

#define FLAGS MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE

__attribute__((noinline)) static int first_block(void) {
  return touch(mmap(PLACE, 40 * PAGE, PROT_READ | PROT_WRITE, FLAGS, -1, 0), 40);
}

__attribute__((noinline)) static int second_block(void) {
  return touch(mmap(PLACE, 80 * PAGE, PROT_READ | PROT_WRITE, FLAGS, -1, 0), 80);
}

// Tries again for a second: another process may have the pid
static pid_t start(const char *part, pid_t wanted) {
  struct clone_args how = {.exit_signal = SIGCHLD};
  pid_t made = -1;
  if (wanted) {
    how.set_tid = (uintptr_t)&wanted;
    how.set_tid_size = 1;
  }
  for (int try = 0; try < 100 && made < 0; try++) {
    made = (pid_t)syscall(SYS_clone3, &how, sizeof how);
    if (made == 0) {
      execl("/proc/self/exe", part, part, NULL);
      _exit(97);
    }
    if (made < 0) usleep(10000);
  }
  if (made < 0) exit(77);
  return made;
}

static void finish(pid_t child) {
  int status;
  if (waitpid(child, &status, 0) != child || status) exit(96);
}

int main(int count, char **words) {
  if (count > 1 && !strcmp(words[1], "first")) return first_block();
  if (count > 1 && !strcmp(words[1], "second")) return second_block();
  pid_t first = start("first", 0);
  finish(first);
  finish(start("second", first));
  printf("%d\n", first);
  return 7;
}
