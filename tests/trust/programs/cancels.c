// cancels: threads that are cancelled while they wait in a transfer, and a terminal that is read slowly; says what became of them.
#define _GNU_SOURCE
#include <netinet/in.h>
#include <pthread.h>
#include <pty.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <termios.h>
#include <unistd.h>

enum { MUCH = 4 << 20, LINES = 600000, PIECE = 1000 };

static int pipes[2], sockets[2], listening, epoll;
static char much[MUCH];
static int cleaned;
static sem_t ready;

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void clean(void *unused) {
  (void)unused;
  cleaned = 1;
}

static void in_read(void) { read(pipes[0], much, 10); }
static void in_recv(void) { recv(sockets[0], much, 100, MSG_WAITALL); }
static void in_readv(void) { readv(sockets[0], &(struct iovec){much, 10}, 1); }
static void in_recvmsg(void) {
  struct iovec piece = {much, 10};
  recvmsg(sockets[0], &(struct msghdr){.msg_iov = &piece, .msg_iovlen = 1}, 0);
}
static void in_accept(void) { accept(listening, NULL, NULL); }
static void in_epoll(void) { epoll_wait(epoll, &(struct epoll_event){0}, 1, -1); }
static void in_write(void) {
  while (write(pipes[1], much, MUCH) > 0) {}
}
static void in_send(void) {
  while (send(sockets[1], much, MUCH, 0) > 0) {}
}

static void *wait_in(void *what) {
  pthread_cleanup_push(clean, NULL);
  sem_post(&ready);
  (*(void (**)(void))what)();
  pthread_cleanup_pop(0);
  return NULL;
}

static void cancel(const char *name, void (*what)(void)) {
  pthread_t thread;
  void *result;
  cleaned = 0;
  if (pthread_create(&thread, NULL, wait_in, &what)) die("pthread_create");
  while (sem_wait(&ready)) {}
  // So that several holds find it in the call. Where the call has not begun, it is where the thread is cancelled all the same.
  usleep(150000);
  pthread_cancel(thread);
  pthread_join(thread, &result);
  printf("%s: %s, cleaned up %d\n", name, result == PTHREAD_CANCELED ? "cancelled" : "not cancelled", cleaned);
  fflush(stdout);
}

static void by_terminal(void) {
  int near, far;
  struct termios raw;
  if (openpty(&near, &far, NULL, NULL, NULL) || tcgetattr(far, &raw)) die("openpty");
  cfmakeraw(&raw);
  if (tcsetattr(far, TCSANOW, &raw)) die("tcsetattr");
  if (!fork()) {
    close(near);
    for (size_t i = 0; i < LINES; i++) much[i] = (char)(i * 7);
    _exit(write(far, much, LINES) == LINES ? 0 : 1);
  }
  close(far);
  unsigned char piece[PIECE];
  size_t got = 0;
  unsigned sum = 0;
  for (ssize_t n; got < LINES && (n = read(near, piece, PIECE)) > 0; got += (size_t)n) {
    for (ssize_t i = 0; i < n; i++) sum = sum * 31 + piece[i];
    usleep(500);
  }
  printf("from the terminal: %zu bytes, sum %u\n", got, sum);
}

int main(void) {
  // A guard against hanging
  alarm(600);
  listening = socket(AF_INET, SOCK_STREAM, 0);
  epoll = epoll_create1(0);
  if (sem_init(&ready, 0, 0) || pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) || listen(listening, 1) || epoll < 0) die("make");
  cancel("read", in_read);
  cancel("recv of all", in_recv);
  cancel("readv", in_readv);
  cancel("recvmsg", in_recvmsg);
  cancel("accept", in_accept);
  cancel("epoll_wait", in_epoll);
  cancel("write", in_write);
  cancel("send", in_send);
  by_terminal();
  return 0;
}
