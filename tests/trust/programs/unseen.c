// unseen HOW FOLDER ROUNDS: has its pages accessed again and again in a way that leaves no accessed bit in a page table at the end,
// and notes when, as rounds.c does.
//
// Each way is one that a recorder which only looks at the end of an interval does not see. SIGTERM or the last round ends it with 7; a
// kernel that cannot do it, with 77.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGES 64
#define PAGE 4096ul
#define BYTES (PAGES * PAGE)
#define HUGE (2ul << 20)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef SYS_process_mrelease
#define SYS_process_mrelease 448
#endif

struct uffd_api {
  uint64_t api, features, ioctls;
};
struct uffd_register {
  uint64_t start, bytes, mode, ioctls;
};
struct uffd_move {
  uint64_t to, from, bytes, mode;
  int64_t moved;
};
#define API _IOWR(0xAA, 0x3F, struct uffd_api)
#define REGISTER _IOWR(0xAA, 0x00, struct uffd_register)
#define MOVE _IOWR(0xAA, 0x05, struct uffd_move)

static volatile sig_atomic_t over;
static char *pages;
static char copy[BYTES];
static int file, other;
static pid_t whom, forked;

static void die(const char *what) {
  int why = errno;
  perror(what);
  exit(why == ENOSYS || why == EINVAL || why == EOPNOTSUPP ? 77 : 99);
}

static void end(int number) {
  (void)number;
  over = 1;
}

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void nap(void) {
  struct timespec t = {0, 1000000};
  nanosleep(&t, NULL);
}

static char *map(size_t bytes) {
  char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) die("mmap");
  madvise(memory, bytes, MADV_NOHUGEPAGE);
  return memory;
}

static void touch(volatile char *memory) {
  for (size_t i = 0; i < PAGES; i++) memory[i * PAGE]++;
}

// ---- accesses without the mapping: twice, as the second one takes the flag away of what is not on the active list ----

// The second call sees to what the first one has only queued
static void inactive(void) {
  static int process = -1;
  struct iovec all = {pages, BYTES};
  if (process < 0) process = (int)syscall(SYS_pidfd_open, forked ? forked : getpid(), 0);
  for (int i = 0; i < 2; i++)
    if (syscall(SYS_process_madvise, process, &all, 1, MADV_COLD, 0) < 0) die("MADV_COLD");
}

static void own(void) {
  pages = map(BYTES);
  touch(pages);
  whom = getpid();
}

static void by_call(void) {
  struct iovec to = {copy, BYTES}, from[PAGES];
  inactive();
  for (size_t i = 0; i < PAGES; i++) from[i] = (struct iovec){pages + i * PAGE, 8};
  for (int i = 0; i < 2; i++)
    if (process_vm_readv(whom, &to, 1, from, PAGES, 0) != PAGES * 8) die("process_vm_readv");
}

static void by_writing(void) {
  struct iovec from = {copy, BYTES}, to = {pages, BYTES};
  inactive();
  for (int i = 0; i < 2; i++)
    if (process_vm_writev(whom, &from, 1, &to, 1, 0) != BYTES) die("process_vm_writev");
}

static void *beside(void *number) {
  *(volatile pid_t *)number = (pid_t)syscall(SYS_gettid);
  for (;;) pause();
  return NULL;
}

// The process goes by the number of another thread of it
static void thread(void) {
  static volatile pid_t number;
  pthread_t made;
  own();
  if (pthread_create(&made, NULL, beside, (void *)&number)) die("pthread_create");
  while (!(whom = number)) nap();
}

// A child that sleeps; only it has the pages
static void child(void) {
  int ends[2];
  if (pipe(ends)) die("pipe");
  whom = forked = fork();
  if (whom == 0) {
    pages = map(BYTES);
    touch(pages);
    if (write(ends[1], &pages, sizeof pages) != sizeof pages) die("write");
    for (;;) pause();
  }
  if (read(ends[0], &pages, sizeof pages) != sizeof pages) die("read");
}

static void traced(void) {
  child();
  if (ptrace(PTRACE_ATTACH, whom, 0, 0) || waitpid(whom, NULL, 0) != whom) die("ptrace");
}

static void by_tracing(void) {
  inactive();
  for (size_t i = 0; i < 2 * PAGES; i++) {
    errno = 0;
    ptrace(PTRACE_PEEKDATA, whom, pages + i / 2 * PAGE, 0);
    if (errno) die("PTRACE_PEEKDATA");
  }
}

static void memory_file(void) {
  own();
  file = open("/proc/self/mem", O_RDWR);
  if (file < 0) die("/proc/self/mem");
}

static void by_position(void) {
  inactive();
  for (int i = 0; i < 2; i++)
    if (pread(file, copy, BYTES, (off_t)pages) != BYTES) die("pread");
}

static void by_positions(void) {
  struct iovec to[2] = {{copy, BYTES / 2}, {copy + BYTES / 2, BYTES / 2}};
  inactive();
  for (int i = 0; i < 2; i++)
    if (preadv(file, to, 2, (off_t)pages) != BYTES) die("preadv");
}

static void by_reading(void) {
  inactive();
  for (int i = 0; i < 2; i++)
    if (lseek(file, (off_t)pages, SEEK_SET) < 0 || read(file, copy, BYTES) != BYTES) die("read");
}

static void by_writing_file(void) {
  inactive();
  for (int i = 0; i < 2; i++)
    if (lseek(file, (off_t)pages, SEEK_SET) < 0 || write(file, copy, BYTES) != BYTES) die("write");
}

// The environment is larger than the pages: it was made so by running itself again
static void environment(void) {
  extern char **environ;
  file = open("/proc/self/environ", O_RDONLY);
  if (file < 0) die("/proc/self/environ");
  pages = (char *)(((uintptr_t)environ[0] + 2 * PAGE) & ~(PAGE - 1));
}

static void again(char **words) {
  enum { LONG = 100 << 10 };
  static char texts[4][LONG];
  char *made[5] = {texts[0], texts[1], texts[2], texts[3], NULL};
  if (getenv("A")) return;
  for (int i = 0; i < 4; i++) {
    memset(texts[i], 'x', LONG - 1);
    texts[i][0] = (char)('A' + i);
    texts[i][1] = '=';
  }
  execve("/proc/self/exe", words, made);
  die("execve");
}

static void by_environment(void) {
  char part[4096];
  inactive();
  for (int i = 0; i < 2; i++) {
    if (lseek(file, 0, SEEK_SET)) die("lseek");
    while (read(file, part, sizeof part) > 0) continue;
  }
}

// ---- pages that go, with their accessed bits ----

static char *place;

static void movable(void) {
  pages = map(BYTES);
  place = map(BYTES);
  file = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
  struct uffd_api api = {0xAA, 0, 0};
  struct uffd_register area = {(uintptr_t)place, BYTES, 1, 0};
  if (file < 0 || ioctl(file, API, &api) || ioctl(file, REGISTER, &area)) die("userfaultfd");
}

static void by_moving(void) {
  struct uffd_move move = {(uintptr_t)place, (uintptr_t)pages, BYTES, 0, 0};
  touch(pages);
  if (ioctl(file, MOVE, &move)) die("UFFDIO_MOVE");
  madvise(place, BYTES, MADV_DONTNEED);
}

static void own_memory(void) { pages = map(BYTES); }

// Gives the pages back, then their mapping
static void by_dropping(void) {
  touch(pages);
  madvise(pages, BYTES, MADV_DONTNEED);
  munmap(pages, BYTES);
  if (mmap(pages, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != pages) die("mmap");
}

static char *aligned(int fd) {
  char *room = map(2 * HUGE);
  char *at = (char *)(((uintptr_t)room + HUGE - 1) & ~(HUGE - 1));
  if (mmap(at, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) die("mmap");
  return at;
}

static void mapped_twice(void) {
  file = memfd_create("twice", 0);
  if (file < 0 || ftruncate(file, HUGE)) die("memfd_create");
  pages = aligned(file);
  place = aligned(file);
}

static void by_collapsing(void) {
  if (ftruncate(file, 0) || ftruncate(file, HUGE)) die("ftruncate");
  touch(pages);
  while (madvise(place, HUGE, MADV_COLLAPSE))
    if (errno != EAGAIN && errno != EBUSY) die("MADV_COLLAPSE");
}

// This process and its children take turns on one CPU, and it goes first
static void first_in_turn(void) {
  cpu_set_t one;
  struct sched_param first = {.sched_priority = 1};
  CPU_ZERO(&one);
  CPU_SET(0, &one);
  if (sched_setaffinity(0, sizeof one, &one)) die("sched_setaffinity");
  if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first)) die("sched_setscheduler");
  pages = map(BYTES);
}

static void by_reaping(void) {
  int ends[2], descriptor;
  char byte;
  if (pipe(ends)) die("pipe");
  whom = fork();
  if (whom == 0) {
    touch(pages);
    if (write(ends[1], "", 1) != 1) die("write");
    for (;;) pause();
  }
  if (read(ends[0], &byte, 1) != 1) die("read");
  descriptor = (int)syscall(SYS_pidfd_open, whom, 0);
  kill(whom, SIGKILL);
  // It may have ended already, where something else held this process meanwhile
  if (syscall(SYS_process_mrelease, descriptor, 0) && errno != ESRCH && errno != EAGAIN) die("process_mrelease");
  waitpid(whom, NULL, 0);
  close(descriptor);
  close(ends[0]);
  close(ends[1]);
}

static void segment(void) {
  other = shmget(IPC_PRIVATE, BYTES, IPC_CREAT | 0600);
  pages = map(BYTES);
  if (other < 0) die("shmget");
  // Goes with its last user
  shmat(other, NULL, 0);
  shmctl(other, IPC_RMID, NULL);
}

static void by_attaching(void) {
  touch(pages);
  if (shmat(other, pages, SHM_REMAP) != pages) die("shmat");
  if (mmap(pages, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != pages) die("mmap");
  madvise(pages, BYTES, MADV_NOHUGEPAGE);
}

// ---- pages given back by other ways than the calls for it ----

// linux/falloc.h of old systems lacks both
struct space {
  int16_t type, whence;
  int64_t start, bytes;
  int32_t system, pid;
  int32_t reserved[4];
};
#define UNRESVSP _IOW('X', 41, struct space)
#define ZERO_RANGE _IOW('X', 57, struct space)
#define FTRUNCATE 55

static struct io_uring_params ring;
static struct io_uring_sqe *entries;
static char *submissions, *completions;

static void one_file(void) {
  file = open("mapped", O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || ftruncate(file, BYTES)) die("mapped");
  pages = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (pages == MAP_FAILED) die("mmap");
}

// No page faults: what is there already is touched
static void touch_mapped(void) {
  if (madvise(pages, BYTES, MADV_POPULATE_WRITE)) die("MADV_POPULATE_WRITE");
  touch(pages);
}

static void by_command(unsigned long command) {
  struct space all = {.bytes = BYTES};
  touch_mapped();
  if (ioctl(file, command, &all)) die("ioctl");
}

static void by_unreserving(void) { by_command(UNRESVSP); }

static void by_zeroing(void) { by_command(ZERO_RANGE); }

static void queue(void) {
  other = (int)syscall(SYS_io_uring_setup, 4, &ring);
  if (other < 0) die("io_uring_setup");
  int rights = PROT_READ | PROT_WRITE;
  submissions = mmap(NULL, PAGE, rights, MAP_SHARED, other, IORING_OFF_SQ_RING);
  completions = mmap(NULL, PAGE, rights, MAP_SHARED, other, IORING_OFF_CQ_RING);
  entries = mmap(NULL, PAGE, rights, MAP_SHARED, other, IORING_OFF_SQES);
  if (submissions == MAP_FAILED || completions == MAP_FAILED || entries == MAP_FAILED) die("a queue");
}

static void queue_and_memory(void) {
  queue();
  own();
}

static void queue_and_file(void) {
  queue();
  one_file();
}

static void submit(struct io_uring_sqe what) {
  uint32_t *tail = (uint32_t *)(submissions + ring.sq_off.tail), at = *tail & (ring.sq_entries - 1);
  uint32_t *head = (uint32_t *)(completions + ring.cq_off.head);
  struct io_uring_cqe *done = (void *)(completions + ring.cq_off.cqes);
  entries[at] = what;
  ((uint32_t *)(submissions + ring.sq_off.array))[at] = at;
  __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
  if (syscall(SYS_io_uring_enter, other, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1) die("io_uring_enter");
  // Being held ends the wait; what was submitted goes on
  while (__atomic_load_n((uint32_t *)(completions + ring.cq_off.tail), __ATOMIC_ACQUIRE) == *head)
    if (syscall(SYS_io_uring_enter, other, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0 && errno != EINTR)
      die("io_uring_enter");
  errno = -done[*head & (ring.cq_entries - 1)].res;
  __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
  if (errno > 0) die("what the queue was asked");
}

static void by_queued_nothing(void) {
  touch_mapped();
  submit((struct io_uring_sqe){.opcode = IORING_OP_NOP});
}

static void by_queued_advice(void) {
  touch_mapped();
  submit((struct io_uring_sqe){
      .opcode = IORING_OP_MADVISE, .addr = (uintptr_t)pages, .len = BYTES, .fadvise_advice = MADV_DONTNEED});
}

static void by_queued_punching(void) {
  touch_mapped();
  submit((struct io_uring_sqe){.opcode = IORING_OP_FALLOCATE,
                               .fd = file,
                               .len = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                               .addr = BYTES});
}

static void by_queued_cutting(void) {
  touch_mapped();
  submit((struct io_uring_sqe){.opcode = FTRUNCATE, .fd = file});
  if (ftruncate(file, BYTES)) die("ftruncate");
}

static const struct {
  const char *name;
  void (*prepare)(void);
  void (*round)(void);
} ways[] = {
    {"readv", own, by_call},
    {"writev", own, by_writing},
    {"thread", thread, by_call},
    {"child", child, by_call},
    {"ptrace", traced, by_tracing},
    {"pread", memory_file, by_position},
    {"preadv", memory_file, by_positions},
    {"read", memory_file, by_reading},
    {"write", memory_file, by_writing_file},
    {"environ", environment, by_environment},
    {"move", movable, by_moving},
    {"drop", own_memory, by_dropping},
    {"collapse", mapped_twice, by_collapsing},
    {"mrelease", first_in_turn, by_reaping},
    {"remap", segment, by_attaching},
    {"unreserve", one_file, by_unreserving},
    {"zero", one_file, by_zeroing},
    {"queue-nothing", queue_and_memory, by_queued_nothing},
    {"queue-advice", queue_and_memory, by_queued_advice},
    {"queue-punch", queue_and_file, by_queued_punching},
    {"queue-cut", queue_and_file, by_queued_cutting},
};

int main(int count, char **a) {
  char path[4096], text[64];
  size_t way = 0;
  if (count < 4) return 98;
  int rounds = atoi(a[3]);
  while (way < sizeof ways / sizeof *ways && strcmp(a[1], ways[way].name)) way++;
  if (way == sizeof ways / sizeof *ways) return 98;
  if (!strcmp(a[1], "environ")) again(a);
  signal(SIGTERM, end);
  ways[way].prepare();
  snprintf(path, sizeof path, "%s/rounds", a[2]);
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
  if (fd < 0 || ftruncate(fd, rounds * 16l)) die(path);
  uint64_t *times = mmap(NULL, (size_t)rounds * 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (times == MAP_FAILED) die("mmap");
  snprintf(path, sizeof path, "%s/started", a[2]);
  int started = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
  snprintf(text, sizeof text, "%lu\n", (unsigned long)pages);
  if (started < 0 || write(started, text, strlen(text)) < 0) die(path);
  for (int round = 0; round < rounds && !over; round++) {
    uint64_t began = now();
    ways[way].round();
    times[2 * round + 1] = now();
    times[2 * round] = began;
    nap();
  }
  if (forked) kill(forked, SIGKILL);
  return 7;
}
