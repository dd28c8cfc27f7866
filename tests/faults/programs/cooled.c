/* SAID: runs itself as a child on one processor, whose fault handler it keeps on another one. The child ends when its memory was taken aside; at its end,
   with its memory still there, the parent writes to SAID how much of that is resident and how much looks touched: the handler has put it back. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moved.h"

/* Few enough for all of them to be where their processor keeps those that it has handed out last. */
enum { PAGES = 14 };
#define PLACE ((char *)0x200000000000)

/* Where there is no such processor everything stays as it is. */
static void stay_on(pid_t who, int processor)
{
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  sched_setaffinity(who, sizeof set, &set);
}

static int child(void)
{
  pid_t handler;
  FILE *children = fopen("/proc/thread-self/children", "r");
  if (!children || fscanf(children, "%d", &handler) != 1) die("the handler");
  fclose(children);
  int pagemap = open("/proc/self/pagemap", O_RDONLY);
  if (pagemap < 0) die("pagemap");
  stay_on(handler, 1);
  stay_on(0, 0);
  char *memory = mmap(PLACE, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (memory != PLACE || madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE)) die("mmap");
  for (int i = 0; i < PAGES; i++) memory[i * PAGE] = 1;
  while (!is_moved(pagemap, PLACE, PAGES)) usleep(500);
  return 0;
}

static void say(pid_t ended, const char *path)
{
  char line[256];
  unsigned long start;
  long resident = -1, referenced = -1, kilobytes;
  int is_it = 0;
  snprintf(line, sizeof line, "/proc/%d/smaps", ended);
  FILE *mappings = fopen(line, "r"), *said = fopen(path, "w");
  if (!mappings || !said) die("files");
  while (fgets(line, sizeof line, mappings)) {
    if (strchr(line, '-') < strchr(line, ' ') && sscanf(line, "%lx-", &start) == 1) is_it = start == (unsigned long)PLACE;
    if (is_it && sscanf(line, "Rss: %ld", &kilobytes) == 1) resident = kilobytes;
    if (is_it && sscanf(line, "Referenced: %ld", &kilobytes) == 1) referenced = kilobytes;
  }
  fprintf(said, "%ld kB, %ld of them touched\n", resident, referenced);
  if (fclose(said)) die("SAID");
}

int main(int count, char **arguments)
{
  if (count != 2) return 2;
  if (!strcmp(arguments[1], "child")) return child();
  int go[2], status;
  if (pipe(go)) die("pipe");
  pid_t pid = fork();
  if (!pid) {
    char word;
    if (read(go[0], &word, 1) != 1) _exit(4);
    execl("/proc/self/exe", arguments[0], "child", NULL);
    _exit(5);
  }
  if (ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEEXIT)) die("ptrace");
  if (write(go[1], "", 1) != 1) die("go");
  while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
    if (status >> 16 == PTRACE_EVENT_EXIT) say(pid, arguments[1]);
    ptrace(PTRACE_CONT, pid, 0, status >> 16 ? 0 : WSTOPSIG(status));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 6;
}
