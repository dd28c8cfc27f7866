/* SAID: executes itself with several pages of arguments and of environment. A forked child reads both from /proc, and writes to SAID
   whether it finds all of them, once the memory of its parent, which waits, was taken aside. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "moved.h"

enum { COUNT = 5, LENGTH = 5000, FILE_BYTES = 200000 };

static char texts[2][COUNT][LENGTH + 1];

/* Whether a file of the parent has these strings and nothing else, each with a zero byte behind it. */
static const char *look(const char *file, char *const *strings)
{
  static char path[64], wanted[FILE_BYTES], found[FILE_BYTES];
  size_t length = 0;
  for (; *strings; strings++) {
    if (length + strlen(*strings) >= sizeof wanted) die("room");
    length += (size_t)sprintf(wanted + length, "%s", *strings) + 1;
  }
  snprintf(path, sizeof path, "/proc/%d/%s", getppid(), file);
  int descriptor = open(path, O_RDONLY);
  if (descriptor < 0) die(path);
  size_t read_bytes = 0;
  ssize_t some;
  while ((some = read(descriptor, found + read_bytes, sizeof found - read_bytes)) > 0) read_bytes += (size_t)some;
  close(descriptor);
  return read_bytes == length && !memcmp(wanted, found, length) ? "all" : "not all";
}

static void write_again(volatile char *string)
{
  for (; *string; string++) *string = *string;
}

static int again(char **arguments)
{
  char *probe = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) die("mmap");
  int written[2];
  if (pipe(written)) die("pipe");
  pid_t child = fork();
  if (child < 0) die("fork");
  if (!child) {
    char path[64], text[64], word;
    if (read(written[0], &word, 1) != 1) die("the parent");
    snprintf(path, sizeof path, "/proc/%d/pagemap", getppid());
    int pagemap = open(path, O_RDONLY);
    if (pagemap < 0) die(path);
    while (!is_moved(pagemap, probe, 1)) usleep(500);
    const char *of_arguments = look("cmdline", arguments);
    snprintf(text, sizeof text, "%s, %s\n", of_arguments, look("environ", environ));
    put(arguments[1], text);
    _exit(0);
  }
  /* What is shared with a child is not moved: each page becomes this process's own, and the one that is waited for last. */
  for (char **string = arguments; *string; string++) write_again(*string);
  for (char **string = environ; *string; string++) write_again(*string);
  *(volatile char *)probe = 1;
  if (write(written[1], "", 1) != 1) die("the child");
  int status;
  if (waitpid(child, &status, 0) != child || status) return 5;
  /* The parent's own are as they were. */
  for (int i = 0; i < COUNT; i++)
    if (strlen(arguments[2 + i]) != LENGTH) return 6;
  return *(volatile char *)probe == 1 ? 0 : 7;
}

int main(int count, char **arguments)
{
  if (count == 2 + COUNT) return again(arguments);
  if (count != 2) return 2;
  char *longer[3 + COUNT] = {arguments[0], arguments[1]};
  for (int i = 0; i < COUNT; i++) {
    memset(texts[0][i], 'a' + i, LENGTH);
    memset(texts[1][i], 'A' + i, LENGTH);
    texts[1][i][1] = '=';
    longer[2 + i] = texts[0][i];
    if (putenv(texts[1][i])) die("putenv");
  }
  execv("/proc/self/exe", longer);
  die("exec");
}
