/* Of programs whose memory a fault handler takes aside. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PAGE = 4096 };

static void die(const char *what)
{
  perror(what);
  exit(3);
}

/* Puts a text under a name in one step, so that a reader sees all or nothing. */
__attribute__((unused)) static void put(const char *path, const char *text)
{
  char temporary[4096];
  snprintf(temporary, sizeof temporary, "%s.new", path);
  FILE *out = fopen(temporary, "w");
  if (!out || fputs(text, out) < 0 || fclose(out) || rename(temporary, path)) die(path);
}

/* Whether none of so many pages is where it was; `pagemap` is the process's own. */
__attribute__((unused)) static int is_moved(int pagemap, const char *memory, int pages)
{
  static const uint64_t PRESENT_OR_SWAPPED = 3ull << 62;
  for (int page = 0; page < pages; page++) {
    uint64_t entry;
    off_t place = (off_t)(((uintptr_t)memory / PAGE + (uintptr_t)page) * sizeof entry);
    if (pread(pagemap, &entry, sizeof entry, place) != sizeof entry) die("pagemap");
    if (entry & PRESENT_OR_SWAPPED) return 0;
  }
  return 1;
}
