// A target that does one thing, named by its first argument.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what) {
  perror(what);
  exit(99);
}

static void nap(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&t, &t) && errno == EINTR) {
  }
}

// Puts a text under a name in one step, so that a reader sees all or nothing.
static void put(const char *path, const char *text) {
  char temporary[4096];
  snprintf(temporary, sizeof temporary, "%s.new", path);
  int fd = open(temporary, O_CREAT | O_TRUNC | O_WRONLY, 0644);
  if (fd < 0 || write(fd, text, strlen(text)) < 0) die(temporary);
  close(fd);
  if (rename(temporary, path)) die(path);
}

struct share {
  uint64_t *words;
  size_t count;
  int rounds;
  uint64_t sum;
  const char *go;
};

// Changes every word and changes it back: the sum does not know how often, and knows each write that is lost.
static void to_and_fro(struct share *share) {
  for (int turn = 0; turn < 2; turn++) {
    for (size_t i = 0; i < share->count; i += 64) share->words[i] ^= (i + 1) * 0x9e3779b97f4a7c15ull;
    char *block = malloc(20000);
    memset(block, turn, 20000);
    share->sum += block[turn] - turn;
    free(block);
    nap(10);
  }
}

static void *churn(void *argument) {
  struct share *share = argument;
  uint64_t x = 88172645463325252ull;
  for (int round = 0; round < share->rounds; round++) {
    // The other half when that file is there.
    while (round == share->rounds / 2 && share->go && access(share->go, F_OK)) to_and_fro(share);
    for (size_t i = 0; i < share->count; i += 64) {
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      share->words[i] = share->words[i] * 6364136223846793005ull + x + i;
    }
    // Allocations, for the preload library to tell of.
    char *block = malloc(20000 + round % 7 * 4096);
    memset(block, round, 20000);
    share->sum += block[round % 20000];
    free(block);
    nap(10);
  }
  for (size_t i = 0; i < share->count; i += 64) share->sum = share->sum * 31 + share->words[i];
  return NULL;
}

// checksum MIB ROUNDS STARTED RESULT [GO]: two threads, a sum that depends on every write. Does not end before GO is there.
static int checksum(char **a) {
  size_t bytes = (size_t)atol(a[0]) << 20;
  put(a[2], "started\n");
  uint64_t *words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (words == MAP_FAILED) die("mmap");
  struct share shares[2];
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    shares[i] = (struct share){words + bytes / 16 * i, bytes / 16, atoi(a[1]), 0, a[4]};
    if (pthread_create(&threads[i], NULL, churn, &shares[i])) die("pthread_create");
  }
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  char text[64];
  snprintf(text, sizeof text, "%016llx\n",
           (unsigned long long)(shares[0].sum ^ shares[1].sum * 3));
  put(a[3], text);
  fputs(text, stdout);
  return 0;
}

// run STARTED: until a signal ends it.
static int run(char **a) {
  char *memory = malloc(1 << 20);
  for (unsigned i = 0;; i++) {
    memset(memory, (int)i, 1 << 20);
    if (!i) put(a[0], "started\n");
    nap(2);
  }
  return 0;
}

static volatile sig_atomic_t caught;
static void on_signal(int number) { caught = number; }

// handle STARTED: until SIGINT, SIGTERM or SIGHUP, then 40 + the times it was caught within 0.3 s.
static atomic_int times;
static void count(int number) {
  times++;
  caught = number;
}
static int handle(char **a) {
  struct sigaction action = {.sa_handler = count};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGHUP, &action, NULL);
  put(a[0], "started\n");
  while (!caught) nap(2);
  nap(300);
  printf("caught %d\n", (int)caught);
  return 40 + times;
}

// ignore STARTED GO: ignores SIGINT and ends by itself once GO is there.
static int ignore(char **a) {
  signal(SIGINT, SIG_IGN);
  put(a[0], "started\n");
  for (int i = 0; access(a[1], F_OK); i++) {
    char *block = malloc(100000);
    memset(block, i, 100000);
    free(block);
    nap(5);
  }
  puts("ended by itself");
  return 6;
}

static int crash(char **a) {
  if (!strcmp(a[0], "segv")) {
    volatile uintptr_t nowhere = 8;
    *(volatile int *)nowhere = 1;
  }
  raise(atoi(a[0]));
  return 98;
}

static volatile char sink;
static void use_heap(void **blocks, int n) {
  for (int round = 0; round < 50; round++) {
    for (int i = 0; i < n; i++) blocks[i] = malloc(8192), memset(blocks[i], i, 8192);
    for (int i = 0; i < n; i++) sink = *(char *)blocks[i], free(blocks[i]);
  }
}

static void say(const char *text) {
  if (write(1, text, strlen(text)) < 0) syscall(SYS_exit, 97);
}

// Natively neither of these makes a system call beyond write and exit once the filter is there.
static int seccomp_strict(char **a) {
  (void)a;
  void *blocks[16];
  use_heap(blocks, 16);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) die("prctl");
  use_heap(blocks, 16);
  say("strict\n");
  syscall(SYS_exit, 5);
  return 0;
}

static int seccomp_filter(char **a) {
  (void)a;
  void *blocks[16];
  use_heap(blocks, 16);
#define ALLOW(n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, n, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      ALLOW(SYS_read),
      ALLOW(SYS_write),
      ALLOW(SYS_exit),
      ALLOW(SYS_exit_group),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) die("no_new_privs");
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)) die("seccomp");
  use_heap(blocks, 16);
  // Long enough that the recorder looks at it many times.
  for (volatile long i = 0; i < 100000000; i++) {
  }
  use_heap(blocks, 16);
  say("filtered\n");
  _exit(5);
}

// daemon RESULT: leaves the terminal, the session and every descriptor behind.
static int become_daemon(char **a) {
  if (fork()) return 3;
  setsid();
  if (fork()) _exit(0);
  for (int fd = 0; fd < 1024; fd++) close(fd);
  for (int i = 0; i < 60; i++) {
    char *block = malloc(50000);
    memset(block, i, 50000);
    free(block);
    nap(10);
  }
  put(a[0], "the daemon ran on\n");
  _exit(0);
}

// background RESULT: a child that outlives its parent, forking all the while.
static int background(char **a) {
  if (fork()) return 4;
  for (int i = 0; i < 200; i++) {
    pid_t pid = fork();
    if (!pid) {
      char *block = malloc(50000);
      memset(block, i, 50000);
      _exit(block[0] == (char)i ? 0 : 1);
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) < 0 || status) _exit(1);
    nap(2);
  }
  put(a[0], "the child ran on\n");
  _exit(0);
}

// forks N: in a tree, as fast as it goes.
static int forks(char **a) {
  int left = atoi(a[0]), failed = 0;
  while (left > 0) {
    int batch = left < 20 ? left : 20;
    pid_t pids[20];
    for (int i = 0; i < batch; i++) {
      pids[i] = fork();
      if (pids[i] < 0) die("fork");
      if (!pids[i]) {
        pid_t inner = i % 4 ? -1 : fork();
        memset(malloc(30000), i, 30000);
        if (inner > 0) waitpid(inner, NULL, 0);
        _exit(i);
      }
    }
    for (int i = 0; i < batch; i++) {
      int status;
      if (waitpid(pids[i], &status, 0) != pids[i] || WEXITSTATUS(status) != i) failed++;
    }
    left -= batch;
  }
  printf("%d failed\n", failed);
  return failed != 0;
}

static int execs(char **a, char *self) {
  int left = atoi(a[0]);
  if (!left) {
    puts("the last program");
    return 9;
  }
  char number[16];
  snprintf(number, sizeof number, "%d", left - 1);
  execl(self, self, "execs", number, NULL);
  die("execl");
  return 0;
}

// The same by descriptors: one program of its file, the next of a name in its folder.
static int execs_at(char **a, char *self) {
  int left = atoi(a[0]), file = open(self, O_RDONLY | O_CLOEXEC);
  if (!left) {
    puts("the last program");
    return 9;
  }
  char number[16], *folder = strdup(self), *name = strrchr(folder, '/');
  snprintf(number, sizeof number, "%d", left - 1);
  char *words[] = {self, "execs_at", number, NULL};
  *name++ = 0;
  if (left % 2) {
    syscall(SYS_execveat, file, "", words, environ, AT_EMPTY_PATH);
  } else {
    syscall(SYS_execveat, open(folder, O_PATH | O_CLOEXEC), name, words, environ, 0);
  }
  die("execveat");
  return 0;
}

static pthread_barrier_t all;
static void *meet(void *argument) {
  volatile char local[5000];
  local[0] = 1;
  pthread_barrier_wait(&all);
  nap(20);
  return (char *)argument + local[0];
}

static int threads(char **a) {
  int n = atoi(a[0]);
  pthread_t *ids = malloc(n * sizeof *ids);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 64 << 10);
  pthread_barrier_init(&all, NULL, n + 1);
  for (int i = 0; i < n; i++)
    if (pthread_create(&ids[i], &attributes, meet, (void *)(intptr_t)i)) die("pthread_create");
  pthread_barrier_wait(&all);
  nap(200);
  long sum = 0;
  for (int i = 0; i < n; i++) {
    void *result;
    pthread_join(ids[i], &result);
    sum += (intptr_t)result;
  }
  printf("%ld\n", sum);
  return 0;
}

// crowd COUNT [GO]: COUNT busy threads, the first of which ends them when it sees GO. Without GO when it has had 40 ms of
// CPU time: says whether another had ten times as much by then.
static long cpu_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
static atomic_int crowd_over, crowd_waits = 1;
static const char *crowd_go;
static void *crowd_member(void *argument) {
  while (crowd_waits) sched_yield();
  while (!crowd_over)
    if (!crowd_go && cpu_ms() > 400) crowd_over = 2;
  return argument;
}
static int crowd(char **a) {
  int n = atoi(a[0]);
  crowd_go = a[1];
  pthread_t *ids = calloc(n, sizeof *ids);
  for (int i = 1; i < n; i++)
    if (pthread_create(&ids[i], NULL, crowd_member, NULL)) die("pthread_create");
  crowd_waits = 0;
  for (long begin = cpu_ms(); !crowd_over && (crowd_go ? access(crowd_go, F_OK) : cpu_ms() < begin + 40);) {}
  int expected = 0;
  atomic_compare_exchange_strong(&crowd_over, &expected, 1);
  for (int i = 1; i < n; i++) pthread_join(ids[i], NULL);
  puts(crowd_over == 1 ? "fair" : "the first thread starved");
  return 0;
}

static void *spin(void *argument) {
  (void)argument;
  char *memory = malloc(1 << 20);
  for (unsigned i = 0;; i++) {
    memset(memory, (int)i, 1 << 20);
    nap(1);
  }
  return NULL;
}

// serve STARTED: several threads; counts its life in a shared file until SIGTERM.
static int serve(char **a) {
  struct sigaction action = {.sa_handler = on_signal};
  sigaction(SIGTERM, &action, NULL);
  pthread_t id;
  for (int i = 0; i < 4; i++) pthread_create(&id, NULL, spin, NULL);
  char name[4096];
  snprintf(name, sizeof name, "%s.beats", a[0]);
  int fd = open(name, O_CREAT | O_RDWR | O_TRUNC, 0644);
  uint64_t beats = 0;
  put(a[0], "started\n");
  while (!caught) {
    beats++;
    if (pwrite(fd, &beats, 8, 0) != 8) die("pwrite");
    nap(2);
  }
  return 11;
}

// debugger TRACED: traces a child until SIGTERM, as a debugger does; writes the child's id.
static int debugger(char **a) {
  pid_t child = fork();
  if (child < 0) die("fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) nap(100);
  }
  struct sigaction action = {.sa_handler = on_signal};
  sigaction(SIGTERM, &action, NULL);
  if (ptrace(PTRACE_SEIZE, child, NULL, NULL)) die("ptrace");
  char text[32];
  snprintf(text, sizeof text, "%d\n", child);
  put(a[0], text);
  while (!caught) nap(1);
  kill(child, SIGKILL);
  while (waitpid(child, NULL, 0) != child) {
  }
  return 12;
}

// count_signals COUNT: counts SIGUSR1 in a file that it replaces each time; ends at SIGTERM.
static atomic_int usr1;
static void on_usr1(int signal) { usr1 += signal == SIGUSR1; }
static int count_signals(char **a) {
  struct sigaction term = {.sa_handler = on_signal}, counted = {.sa_handler = on_usr1, .sa_flags = SA_RESTART};
  sigaction(SIGTERM, &term, NULL);
  sigaction(SIGUSR1, &counted, NULL);
  pthread_t id;
  for (int i = 0; i < 4; i++) pthread_create(&id, NULL, spin, NULL);
  int known = -1;
  while (!caught) {
    int now = usr1;
    if (now != known) {
      char text[32];
      snprintf(text, sizeof text, "%d\n", now);
      put(a[0], text);
      known = now;
    }
    nap(1);
  }
  return 13;
}

// state: everything that a program inherits and that a recorder could have changed. The shell reads its own signal masks itself: it
// changes them while it makes a child.
static int state(char **a) {
  (void)a;
  char command[] =
      "cat /proc/$$/limits; while IFS= read -r line; do case $line in SigQ*) ;; "
      "Sig*|Shd*|Cap*|NoNew*|Seccomp*|Uid*|Gid*|Groups*|Umask*) echo \"$line\";; esac; done < /proc/$$/status; ls /proc/$$/fd; cat /proc/$$/oom_score_adj /proc/$$/timerslack_ns /proc/$$/coredump_filter; "
      "nice; umask; pwd; cut -d' ' -f18,19,41,42 /proc/$$/stat; cat /proc/$$/personality; "
      "env -u LD_PRELOAD | grep -v -e ^VARVE_ -e ^_= | sort";
  execl("/bin/bash", "bash", "-c", command, NULL);
  die("bash");
  return 0;
}

enum { WAIT_MS = 200, WAITS = 4 };

static int by_epoll(int epoll) {
  struct epoll_event event;
  return epoll_wait(epoll, &event, 1, WAIT_MS);
}
static int by_epoll_mask(int epoll) {
  struct epoll_event event;
  sigset_t none;
  sigemptyset(&none);
  return epoll_pwait(epoll, &event, 1, WAIT_MS, &none);
}
static int by_semaphore(int set) {
  struct sembuf down = {0, -1, 0};
  struct timespec t = {0, WAIT_MS * 1000000};
  return semtimedop(set, &down, 1, &t);
}
static int by_signal(int unused) {
  (void)unused;
  sigset_t usr2;
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  sigprocmask(SIG_BLOCK, &usr2, NULL);
  struct timespec t = {0, WAIT_MS * 1000000};
  return sigtimedwait(&usr2, NULL, &t);
}

static int several(const char *name, int (*begin)(int), int on) {
  int interrupted = 0, early = 0;
  for (int i = 0; i < WAITS; i++) {
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    errno = 0;
    if (begin(on) < 0 && errno == EINTR) interrupted++;
    clock_gettime(CLOCK_MONOTONIC, &after);
    long ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
    early += ms < WAIT_MS - 1;
  }
  printf("%s: %d of %d interrupted, %d early\n", name, interrupted, WAITS, early);
  return interrupted;
}

// waits [handler]: waits with a time limit that the kernel does not begin anew after a stop; with a handler until one
// was interrupted, however seldom a busy machine lets the program be held.
static int timed_waits(char **a) {
  if (a[0]) signal(SIGUSR1, on_signal);
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  int set = semget(IPC_PRIVATE, 1, 0600);
  int all = 0;
  for (int turn = 0; turn == 0 || (a[0] && !all && turn < 30); turn++) {
    all += several("epoll_wait", by_epoll, epoll);
    all += several("epoll_pwait", by_epoll_mask, epoll);
    all += several("semtimedop", by_semaphore, set);
    all += several("sigtimedwait", by_signal, 0);
  }
  semctl(set, 0, IPC_RMID);
  return all ? 7 : 0;
}

int main(int n, char **a) {
  if (n < 2) return 96;
#define IS(name) (!strcmp(a[1], #name))
  if (IS(checksum)) return checksum(a + 2);
  if (IS(run)) return run(a + 2);
  if (IS(handle)) return handle(a + 2);
  if (IS(ignore)) return ignore(a + 2);
  if (IS(crash)) return crash(a + 2);
  if (IS(seccomp_strict)) return seccomp_strict(a + 2);
  if (IS(seccomp_filter)) return seccomp_filter(a + 2);
  if (IS(daemon)) return become_daemon(a + 2);
  if (IS(background)) return background(a + 2);
  if (IS(forks)) return forks(a + 2);
  if (IS(execs)) return execs(a + 2, a[0]);
  if (IS(execs_at)) return execs_at(a + 2, a[0]);
  if (IS(threads)) return threads(a + 2);
  if (IS(crowd)) return crowd(a + 2);
  if (IS(serve)) return serve(a + 2);
  if (IS(debugger)) return debugger(a + 2);
  if (IS(count_signals)) return count_signals(a + 2);
  if (IS(state)) return state(a + 2);
  if (IS(waits)) return timed_waits(a + 2);
  if (IS(exit)) return atoi(a[2]);
  return 96;
}
