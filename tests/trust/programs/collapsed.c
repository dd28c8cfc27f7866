// collapsed FILE [small]: touches 2 MiB of a file on a tmpfs again and again until khugepaged has made one huge page of it, and ends with 7; with 77
// after 20 s without one. With `small` it asks for none, and ends with 7 after 2 s.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define HUGE (2ul << 20)

static int is_huge(void) {
  char line[256];
  unsigned long kilobytes, all = 0;
  FILE *maps = fopen("/proc/self/smaps", "r");
  while (maps && fgets(line, sizeof line, maps))
    if (sscanf(line, "ShmemPmdMapped: %lu kB", &kilobytes) == 1) all += kilobytes;
  if (maps) fclose(maps);
  return all > 0;
}

int main(int count, char **words) {
  int small = count > 2 && !strcmp(words[2], "small");
  int file = count > 1 ? open(words[1], O_RDWR | O_CREAT, 0600) : -1;
  if (file < 0 || ftruncate(file, HUGE)) return 98;
  char *room = mmap(NULL, 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *memory = (char *)(((uintptr_t)room + HUGE - 1) & ~(HUGE - 1));
  if (mmap(memory, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != memory) return 99;
  for (int round = 0; round < (small ? 200 : 2000); round++) {
    for (size_t at = 0; at < HUGE; at += PAGE) ((volatile char *)memory)[at]++;
    // Only now, so that the pages began as small ones
    if (round == 0 && !small && madvise(memory, HUGE, MADV_HUGEPAGE)) return 77;
    if (is_huge()) return 7;
    usleep(10000);
  }
  return small ? 7 : 77;
}
