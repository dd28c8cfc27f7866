// behind LIBRARY...: maps memory right behind that of a library, as the kernel may do by itself, and moves what it maps there later.
// It says `few` and `many` by files of these names in the current folder, and goes on when there is `few.over` and `many.over`.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, FEW = 4, MANY = 8, NO_ROOM = 2 };

static void die(const char *what) {
  perror(what);
  exit(1);
}

// The end of the last mapping of a library, with its variables that have no content in the file.
static char *end_of(const char *library) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512];
  uintptr_t start, end, found = 0;
  if (!maps) die("maps");
  while (fgets(line, sizeof line, maps)) {
    if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &start, &end) != 2) continue;
    if (strstr(line, library) || (start == found && !strchr(line, '/'))) found = end;
  }
  fclose(maps);
  return (char *)found;
}

static void *map(char *at, size_t pages) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  char *made = mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
  // Another thread of the process has mapped something there meanwhile: no room either.
  if (made == MAP_FAILED && errno == EEXIST) exit(NO_ROOM);
  if (made == MAP_FAILED) die("mmap");
  memset(made, 7, pages * PAGE);
  return made;
}

// Whether nothing lies behind it: where libraries lie depends on their sizes.
static int is_free(char *at) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  char *made = mmap(at, MANY * PAGE, PROT_NONE, flags, -1, 0);
  return made != MAP_FAILED && !munmap(made, MANY * PAGE);
}

static void say(const char *what, const char *over) {
  int file = open(what, O_CREAT | O_WRONLY, 0600);
  if (file < 0 || close(file)) die(what);
  // The test may be gone.
  alarm(300);
  while (access(over, F_OK)) usleep(1000);
  alarm(0);
}

int main(int count, char **words) {
  char *at = NULL;
  for (int i = 1; i < count && !at; i++) {
    at = end_of(words[i]);
    if (at && !is_free(at)) at = NULL;
  }
  if (!at) return NO_ROOM;
  map(at, FEW);
  say("few", "few.over");
  if (munmap(at, FEW * PAGE)) die("munmap");
  map(at, MANY);
  say("many", "many.over");
  char *moved = mremap(at, MANY * PAGE, 2 * MANY * PAGE, MREMAP_MAYMOVE);
  if (moved == MAP_FAILED) die("mremap");
  for (size_t i = 0; i < MANY * PAGE; i++) {
    if (moved[i] != 7) return 3;
  }
  puts("moved");
  return 0;
}
