/* SAID OVER: has memory all over its address space, waits until all of it was taken aside, writes "begun" to SAID, and looks at it when the file OVER is
   there. Writes "kept" to SAID in the end if all of it was there. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "moved.h"

enum { PAGES = 30 };
/* In TiB. No two are as far apart as the halves of the address space. */
static const uint64_t PLACES[] = {1, 12, 15, 17, 20, 31, 33, 36, 47, 50, 63, 66, 78, 85, 110};
enum { FAR = sizeof PLACES / sizeof *PLACES };

static char *memory(int place)
{
  return (char *)(PLACES[place] << 40);
}

static uint64_t *word(int place, uint64_t page)
{
  return (uint64_t *)(memory(place) + page * PAGE + 8 * (page + 1));
}

int main(int count, char **arguments)
{
  if (count != 3) return 2;
  int pagemap = open("/proc/self/pagemap", O_RDONLY);
  if (pagemap < 0) die("pagemap");
  for (int place = 0; place < FAR; place++) {
    /* Twice as much as is filled: the rest stays empty. */
    char *mapped = mmap(memory(place), 2 * PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (mapped != memory(place) || madvise(mapped, 2 * PAGES * PAGE, MADV_NOHUGEPAGE)) die("mmap");
    for (uint64_t page = 0; page < PAGES; page++) *word(place, page) = PLACES[place] * 1000 + page;
  }
  alarm(300);
  for (int place = 0; place < FAR; place++)
    while (!is_moved(pagemap, memory(place), PAGES)) usleep(500);
  alarm(0);
  put(arguments[1], "begun\n");
  while (access(arguments[2], F_OK)) usleep(1000);
  for (int place = 0; place < FAR; place++)
    for (uint64_t page = 0; page < 2 * PAGES; page++)
      if (*word(place, page) != (page < PAGES ? PLACES[place] * 1000 + page : 0)) {
        fprintf(stderr, "page %d of the memory at %d TiB has something else\n", (int)page, (int)PLACES[place]);
        return 4;
      }
  put(arguments[1], "kept\n");
  return 0;
}
