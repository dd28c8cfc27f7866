// opener FILE: opens a file again and again to write it anew, until it is ended.
#include <fcntl.h>
#include <unistd.h>

int main(int count, char **words) {
  if (count != 2) return 2;
  for (;;) {
    int file = open(words[1], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file >= 0) close(file);
  }
}
