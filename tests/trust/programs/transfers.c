// transfers: moves data through pipes and sockets that are slow, and waits at sockets with a time limit; says what each call
// returned, and whether a wait ended before its limit. Nothing of that differs from run to run. With the argument `times` it says how many
// milliseconds each wait took instead, which does.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ALL = 2 << 20, PIECE = 32 << 10, PAUSE_US = 5000, LIMIT_MS = 300 };

static int tells_times;
static char *data;
static char *back;

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void make(int kind, int ends[2]) {
  if (kind ? socketpair(AF_UNIX, kind, 0, ends) : pipe(ends)) die("make");
}

// A child reads all, slowly, and says by its exit code whether that is what was to come.
static void read_slowly(int end) {
  size_t got = 0;
  for (ssize_t n; (n = read(end, back + got, PIECE)) > 0; got += (size_t)n) usleep(PAUSE_US);
  _exit(got == ALL && !memcmp(data, back, ALL) ? 0 : 1);
}

static void say(const char *name, ssize_t result) {
  int error = errno, status = 0;
  wait(&status);
  printf("%s: %zd%s, other end %d\n", name, result, result < 0 ? strerror(error) : "", status >> 8);
  fflush(stdout);
}

static ssize_t by_write(int end) { return write(end, data, ALL); }
static ssize_t by_writev(int end) {
  // Cuts that fall on no page, and pieces of nothing.
  struct iovec pieces[] = {{data, 1}, {data, 0}, {data + 1, 700001}, {data, 0}, {data + 700002, ALL - 700002}};
  return writev(end, pieces, 5);
}
static ssize_t by_send(int end) { return send(end, data, ALL, 0); }
static ssize_t by_sendto(int end) { return sendto(end, data, ALL, 0, NULL, 0); }
static ssize_t by_sendmsg(int end) {
  struct iovec pieces[] = {{data, 700001}, {data + 700001, ALL - 700001}};
  struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
  return sendmsg(end, &message, 0);
}
static ssize_t by_sendfile(int end) {
  FILE *file = tmpfile();
  if (!file || fwrite(data, 1, ALL, file) != ALL || fflush(file)) die("tmpfile");
  off_t from = 0;
  ssize_t result = sendfile(end, fileno(file), &from, ALL);
  fclose(file);
  return result;
}

static void transfer(const char *name, int kind, ssize_t (*out)(int)) {
  int ends[2];
  make(kind, ends);
  if (!fork()) {
    close(ends[1]);
    read_slowly(ends[0]);
  }
  close(ends[0]);
  ssize_t result = out(ends[1]);
  close(ends[1]);
  say(name, result);
}

// The other end goes away in between: what was written counts, and nobody is ended for it.
static void lose(void) {
  int ends[2];
  make(SOCK_STREAM, ends);
  if (!fork()) {
    close(ends[1]);
    // As soon as there is something, and then some holds later
    if (recv(ends[0], back, 1, MSG_PEEK) != 1) _exit(1);
    usleep(200000);
    _exit(0);
  }
  close(ends[0]);
  ssize_t result = write(ends[1], data, ALL);
  close(ends[1]);
  say("write to who leaves", result > 0 && result < ALL ? 1 : result);
}

static void receive_all(void) {
  int ends[2];
  make(SOCK_STREAM, ends);
  if (!fork()) {
    close(ends[0]);
    for (size_t done = 0; done < ALL; done += PIECE) {
      if (write(ends[1], data + done, PIECE) != PIECE) _exit(1);
      usleep(PAUSE_US);
    }
    _exit(0);
  }
  close(ends[1]);
  ssize_t result = recv(ends[0], back, ALL, MSG_WAITALL);
  close(ends[0]);
  say("recv of all", result == ALL && memcmp(data, back, ALL) ? -2 : result);
}

static ssize_t by_read(int end) { return read(end, back, 1); }
static ssize_t by_readv(int end) { return readv(end, &(struct iovec){back, 1}, 1); }
static ssize_t by_recv(int end) { return recv(end, back, 1, 0); }
static ssize_t by_recvfrom(int end) { return recvfrom(end, back, 1, 0, NULL, NULL); }
static ssize_t by_recvmsg(int end) {
  struct iovec piece = {back, 1};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
  return recvmsg(end, &message, 0);
}
static ssize_t by_accept(int end) { return accept(end, NULL, NULL); }
static ssize_t by_accept4(int end) { return accept4(end, NULL, NULL, 0); }

// Waits for what does not come.
static void wait_at(const char *name, int end, ssize_t (*in)(int)) {
  struct timeval limit = {0, LIMIT_MS * 1000};
  if (setsockopt(end, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit)) die("SO_RCVTIMEO");
  struct timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  ssize_t result = in(end);
  int error = errno;
  clock_gettime(CLOCK_MONOTONIC, &after);
  long ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
  // The clock of the kernel's limits ticks each 10 ms at the slowest
  if (tells_times) printf("%ld\n", ms);
  else printf("%s: %zd %s, %s\n", name, result, strerror(error), ms < LIMIT_MS - 10 ? "early" : "not early");
  fflush(stdout);
}

static void waits(void) {
  int ends[2];
  make(SOCK_STREAM, ends);
  wait_at("read", ends[0], by_read);
  wait_at("readv", ends[0], by_readv);
  wait_at("recv", ends[0], by_recv);
  wait_at("recvfrom", ends[0], by_recvfrom);
  wait_at("recvmsg", ends[0], by_recvmsg);
  int listening = socket(AF_INET, SOCK_STREAM, 0);
  if (listening < 0 || listen(listening, 1)) die("listen");
  wait_at("accept", listening, by_accept);
  wait_at("accept4", listening, by_accept4);
}

int main(int count, char **words) {
  tells_times = count > 1 && !strcmp(words[1], "times");
  data = malloc(ALL);
  back = malloc(ALL);
  if (!data || !back) die("malloc");
  for (size_t i = 0; i < ALL; i++) data[i] = (char)(i * 2654435761u >> 13);
  if (tells_times) {
    waits();
    return 0;
  }
  transfer("write to a pipe", 0, by_write);
  transfer("writev to a pipe", 0, by_writev);
  transfer("write to a socket", SOCK_STREAM, by_write);
  transfer("send", SOCK_STREAM, by_send);
  transfer("sendto", SOCK_STREAM, by_sendto);
  transfer("sendmsg", SOCK_STREAM, by_sendmsg);
  transfer("sendfile", SOCK_STREAM, by_sendfile);
  receive_all();
  lose();
  waits();
  return 0;
}
