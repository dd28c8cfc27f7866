// sockets: transfers and waits that end before all is done, each by a rule of its own (socket(7), unix(7), tcp(7)), and reads
// of devices that always give all; says what each call returned, and whether it did so before what it waited for. Nothing of that differs from
// run to run: how much later a call returns is the machine's.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MUCH = 24 << 20, DEVICE = 128 << 20 };

static char *much;
static char some[4096];

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void check(long result, const char *what) {
  if (result < 0) die(what);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

// What the other end does last: set before it does that.
static volatile int other_end;

// The call is to return at the time limit, which takes so many half seconds, or not before the other end has done so much. The clock of the
// kernel's limits ticks each 10 ms at the slowest.
#define SAY(name, half_seconds, done, call)                                                              \
  do {                                                                                                   \
    double before = seconds();                                                                           \
    long result = (call);                                                                                \
    int error = errno;                                                                                   \
    int is_early = seconds() - before < (half_seconds) * 0.5 - 0.01 || other_end < (done);               \
    printf("%s: %ld %s%s\n", name, result, result < 0 ? strerror(error) : "", is_early ? ", early" : ""); \
    fflush(stdout);                                                                                      \
  } while (0)

static void connected(int ends[2]) {
  int listening = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof at;
  check(bind(listening, (struct sockaddr *)&at, bytes), "bind");
  check(listen(listening, 1), "listen");
  check(getsockname(listening, (struct sockaddr *)&at, &bytes), "getsockname");
  ends[0] = socket(AF_INET, SOCK_STREAM, 0);
  check(connect(ends[0], (struct sockaddr *)&at, bytes), "connect");
  ends[1] = accept(listening, NULL, NULL);
  check(ends[1], "accept");
  close(listening);
}

static void limit(int end, int which, int half_seconds) {
  struct timeval limit = {half_seconds / 2, half_seconds % 2 * 500000};
  check(setsockopt(end, SOL_SOCKET, which, &limit, sizeof limit), "a time limit");
}

// An end that resets the connection in half a second.
static void *reset(void *end) {
  usleep(500000);
  struct linger at_once = {1, 0};
  other_end = 1;
  setsockopt(*(int *)end, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close(*(int *)end);
  return NULL;
}

// The same after something has come.
static void *reset_after_some(void *end) {
  recv(*(int *)end, &(char){0}, 1, MSG_PEEK);
  return reset(end);
}

// An end that sends a byte each half second, the first of which is there already.
static void *trickle(void *end) {
  for (int i = 0; i < 4; i++) {
    usleep(500000);
    send(*(int *)end, "x", 1, MSG_NOSIGNAL);
  }
  return NULL;
}

static void datagrams(int kind) {
  int ends[2];
  check(socketpair(AF_UNIX, kind, 0, ends), "socketpair");
  send(ends[1], "one", 3, 0);
  send(ends[1], "two", 3, 0);
  SAY("one of two datagrams", 0, 0, recv(ends[0], some, 6, MSG_WAITALL));
  limit(ends[1], SO_SNDTIMEO, 2);
  while (send(ends[1], some, sizeof some, MSG_DONTWAIT) > 0) {}
  SAY("a datagram for which there is no room", 2, 0, send(ends[1], some, sizeof some, 0));
}

static void to_a_full_queue(void) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "varve-sockets-%d", (int)getpid());
  int listening = socket(AF_UNIX, SOCK_STREAM, 0);
  check(bind(listening, (struct sockaddr *)&at, sizeof at), "bind");
  check(listen(listening, 0), "listen");
  int first = socket(AF_UNIX, SOCK_STREAM, 0), second = socket(AF_UNIX, SOCK_STREAM, 0);
  check(connect(first, (struct sockaddr *)&at, sizeof at), "connect");
  limit(second, SO_SNDTIMEO, 2);
  SAY("connect where nobody accepts", 2, 0, connect(second, (struct sockaddr *)&at, sizeof at));
  SAY("send at who is not connected", 0, 0, send(second, "x", 1, MSG_NOSIGNAL));

  struct sockaddr_un there = {.sun_family = AF_UNIX};
  snprintf(there.sun_path + 1, sizeof there.sun_path - 1, "varve-datagrams-%d", (int)getpid());
  int receiver = socket(AF_UNIX, SOCK_DGRAM, 0), sender = socket(AF_UNIX, SOCK_DGRAM, 0);
  check(bind(receiver, (struct sockaddr *)&there, sizeof there), "bind");
  while (sendto(sender, "x", 1, MSG_DONTWAIT, (struct sockaddr *)&there, sizeof there) > 0) {}
  limit(sender, SO_SNDTIMEO, 2);
  SAY("sendto where nobody reads", 2, 0, sendto(sender, "x", 1, 0, (struct sockaddr *)&there, sizeof there));
}

static void devices(void) {
  int zero = open("/dev/zero", O_RDONLY), random = open("/dev/urandom", O_RDONLY);
  char *to = malloc(DEVICE);
  if (zero < 0 || random < 0 || !to) die("devices");
  int less = 0;
  for (int i = 0; i < 10; i++) less += read(zero, to, DEVICE) != DEVICE;
  printf("reads of zeroes that gave less: %d\n", less);
  less = 0;
  for (int i = 0; i < 4; i++) less += read(random, to, MUCH) != MUCH;
  printf("reads of random bytes that gave less: %d\n", less);
  less = 0;
  for (int i = 0; i < 4; i++) less += getrandom(to, MUCH, 0) != MUCH;
  printf("calls of getrandom that gave less: %d\n", less);
  free(to);
}

int main(void) {
  much = calloc(1, MUCH);
  if (!much) die("calloc");
  pthread_t thread;
  int ends[2];
  datagrams(SOCK_DGRAM);
  datagrams(SOCK_SEQPACKET);
  to_a_full_queue();

  connected(ends);
  other_end = 0;
  send(ends[1], "part", 4, 0);
  pthread_create(&thread, NULL, reset, &ends[1]);
  SAY("all of what is reset", 0, 1, recv(ends[0], some, 100, MSG_WAITALL));
  SAY("and then", 0, 1, recv(ends[0], some, 100, 0));
  pthread_join(thread, NULL);

  connected(ends);
  other_end = 0;
  pthread_create(&thread, NULL, reset_after_some, &ends[1]);
  long sent = write(ends[0], much, MUCH);
  printf("a part of it: %d%s\n", sent > 0 && sent < MUCH, other_end ? "" : ", early");
  SAY("and then", 0, 1, write(ends[0], much, 10));
  pthread_join(thread, NULL);

  connected(ends);
  limit(ends[0], SO_SNDTIMEO, 2);
  double before = seconds();
  sent = send(ends[0], much, MUCH, 0);
  int is_early = seconds() - before < 1 - 0.01;
  printf("a part of it until the limit: %d%s\n", sent > 0 && sent < MUCH, is_early ? ", early" : "");

  connected(ends);
  limit(ends[0], SO_RCVTIMEO, 2);
  SAY("all within a limit", 2, 0, recv(ends[0], some, 100, MSG_WAITALL));
  send(ends[1], "x", 1, 0);
  pthread_create(&thread, NULL, trickle, &ends[1]);
  SAY("all of what trickles", 2, 0, recv(ends[0], some, 100, MSG_WAITALL) > 0);
  pthread_join(thread, NULL);

  connected(ends);
  send(ends[1], "abc", 3, 0);
  send(ends[1], "!", 1, MSG_OOB);
  send(ends[1], "defghi", 6, 0);
  usleep(200000);
  SAY("all up to the urgent byte", 0, 0, recv(ends[0], some, 8, MSG_WAITALL));

  // As a program calls it that is built with -D_FORTIFY_SOURCE=2.
  connected(ends);
  if (!fork()) {
    for (int i = 0; i < 8; i++) {
      usleep(100000);
      send(ends[1], "x", 1, 0);
    }
    _exit(0);
  }
  volatile size_t wanted = 8;
  SAY("all, with the size checked", 0, 0, recv(ends[0], some, wanted, MSG_WAITALL));
  wait(NULL);

  devices();
  return 0;
}
