/* SAID: waits for children of every kind in every way, and prints what each wait says. Nothing of that depends on times, process numbers or on
   whether it is recorded. Writes to SAID how many fault handlers are among its children.
   SAID trace [filter]: traces a program that it starts, follows what that makes, and prints how many processes it was shown. With a filter
   that leaves it to the tracer what becomes of exit_group.
   SAID traced: that program. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "moved.h"

static volatile pid_t handler;

static int find_handlers(void)
{
  int found = 0;
  pid_t child;
  char path[64], name[64] = "";
  FILE *children = fopen("/proc/thread-self/children", "r");
  if (!children) die("children");
  while (fscanf(children, "%d", &child) == 1) {
    snprintf(path, sizeof path, "/proc/%d/comm", child);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(name, sizeof name, file)) die(path);
    fclose(file);
    if (!strcmp(name, "varve-handler\n")) found++, handler = child;
  }
  fclose(children);
  return found;
}

static void count_handlers(const char *said)
{
  char text[16];
  snprintf(text, sizeof text, "%d\n", find_handlers());
  put(said, text);
}

/* What a wait has found: the child that is meant, another one, none, or an error. */
static void say(const char *what, pid_t found, pid_t meant, const int *status)
{
  if (found < 0) printf("%s: %s\n", what, strerrorname_np(errno));
  else if (!found) printf("%s: nothing yet\n", what);
  else printf("%s: %s, %x\n", what, found == meant ? "the child" : "another one", (unsigned)*status);
  fflush(stdout);
}

static const struct {
  const char *name;
  int flags;
} KINDS[] = {{"plain", 0}, {"all", __WALL}, {"clones", __WCLONE}, {"both", __WALL | __WCLONE}, {"own", __WALL | __WNOTHREAD}};

/* Looks without waiting, with each function and flag; nothing is reaped, as nobody has ended. */
static void look(const char *when)
{
  for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
    char what[64];
    int flags = KINDS[i].flags | WNOHANG, status = 0;
    struct rusage usage;
    siginfo_t information = {0};
    snprintf(what, sizeof what, "%s, %s", when, KINDS[i].name);
    say(what, waitpid(-1, &status, flags), 0, &status);
    say(what, wait3(NULL, flags, &usage), 0, NULL);
    say(what, wait4(-1, &status, flags, NULL), 0, &status);
    say(what, waitpid(0, &status, flags), 0, &status);
    int failed = waitid(P_ALL, 0, &information, flags | WEXITED);
    say(what, failed ? -1 : information.si_pid, 0, &information.si_status);
    say(what, waitid(P_ALL, 0, NULL, flags | WEXITED | WSTOPPED | WNOWAIT), 0, NULL);
  }
}

/* A child that ends with a code when something is written to a pipe, or when its other end is closed. */
struct child {
  pid_t pid;
  int go;
};

static struct child begin(int signal, int code)
{
  int go[2];
  if (pipe(go)) die("pipe");
  pid_t pid = (pid_t)syscall(SYS_clone, signal, 0, 0, 0, 0);
  if (pid < 0) die("clone");
  if (!pid) {
    char word;
    close(go[1]);
    if (read(go[0], &word, 1) < 0) syscall(SYS_exit_group, 99);
    syscall(SYS_exit_group, code);
  }
  close(go[0]);
  return (struct child){pid, go[1]};
}

/* Each child inherits the pipes of those before it: so the last one ends first. */
static void end(struct child child) { close(child.go); }

static void reap(const char *what, struct child child, int flags)
{
  int status = 0;
  siginfo_t information = {0};
  end(child);
  for (int turn = 0; turn < 2; turn++) {
    int failed = waitid(P_ALL, 0, &information, WEXITED | WNOWAIT | flags);
    say(what, failed ? -1 : information.si_pid, child.pid, &information.si_status);
  }
  say(what, wait4(-1, &status, flags, NULL), child.pid, &status);
  look(what);
}

static volatile sig_atomic_t caught;
static void on_signal(int number) { caught = number; }

/* A wait that a signal ends; the child sends it until it is told to end. */
static void interrupted(int flags)
{
  struct sigaction action = {.sa_handler = on_signal};
  int stop[2], status = 0;
  if (pipe(stop) || sigaction(SIGUSR1, &action, NULL)) die("signals");
  pid_t own = getpid(), child = fork();
  if (child < 0) die("fork");
  if (!child) {
    char word;
    close(stop[1]);
    if (fcntl(stop[0], F_SETFL, O_NONBLOCK)) die("fcntl");
    while (read(stop[0], &word, 1) < 0) {
      kill(own, SIGUSR1);
      usleep(1000);
    }
    _exit(6);
  }
  close(stop[0]);
  caught = 0;
  say("interrupted", waitpid(-1, &status, flags), child, &status);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, NULL);
  printf("caught %d\n", caught == SIGUSR1);
  close(stop[1]);
  say("afterwards", waitpid(-1, &status, flags), child, &status);
  signal(SIGUSR1, SIG_IGN);
  sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* A child of another thread, which lives on. */
static int ready[2], over[2];
static struct child others;
static void *parent(void *unused)
{
  char word;
  others = begin(0, 9);
  if (write(ready[1], "", 1) != 1 || read(over[0], &word, 1) != 1) die("pipes");
  return unused;
}

static void of_another_thread(void)
{
  pthread_t thread;
  char word;
  if (pipe(ready) || pipe(over) || pthread_create(&thread, NULL, parent, NULL)) die("a thread");
  if (read(ready[0], &word, 1) != 1) die("ready");
  look("another thread's");
  reap("another thread's", others, __WCLONE);
  if (write(over[1], "", 1) != 1) die("over");
  pthread_join(thread, NULL);
}

/* A process that is traced, as debuggers wait for it. */
static void traced(int flags)
{
  int status = 0;
  pid_t child = fork();
  if (child < 0) die("fork");
  if (!child) {
    if (ptrace(PTRACE_TRACEME, 0, 0, 0)) die("ptrace");
    raise(SIGSTOP);
    syscall(SYS_exit_group, 5);
  }
  /* With `__WCLONE` it is found only once it is traced. */
  say("stopped", waitpid(-1, &status, __WALL), child, &status);
  if (ptrace(PTRACE_CONT, child, 0, 0)) die("continue");
  say("traced", waitpid(-1, &status, flags), child, &status);
  if (flags & __WALL) say("none left", waitpid(-1, &status, flags), child, &status);
}

static void leave_the_end_to_the_tracer(void)
{
  struct sock_filter code[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog filter = {sizeof code / sizeof *code, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0)) die("filter");
}

static int trace(char **arguments)
{
  const int OPTIONS = PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACESECCOMP;
  /* Tracers ask so whether there are filters. */
  if (!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) || errno != EFAULT) die("no filters");
  int status, events = 0;
  pid_t child = fork();
  if (child < 0) die("fork");
  if (!child) {
    if (ptrace(PTRACE_TRACEME, 0, 0, 0)) die("ptrace");
    raise(SIGSTOP);
    if (arguments[3]) leave_the_end_to_the_tracer();
    execl("/proc/self/exe", arguments[0], arguments[1], "traced", NULL);
    die("exec");
  }
  if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) die("stop");
  if (ptrace(PTRACE_SETOPTIONS, child, 0, OPTIONS)) die("options");
  if (ptrace(PTRACE_CONT, child, 0, 0)) die("continue");
  for (;;) {
    pid_t found = waitpid(-1, &status, __WALL);
    if (found < 0) break;
    if (!WIFSTOPPED(status)) {
      if (found == child) printf("ended, %x\n", (unsigned)status);
      continue;
    }
    if (status >> 16 && status >> 16 != PTRACE_EVENT_SECCOMP) events++;
    ptrace(PTRACE_CONT, found, 0, status >> 16 || WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status));
  }
  printf("%d were made, and then %s\n", events, strerrorname_np(errno));
  return 0;
}

int main(int count, char **arguments)
{
  if (count >= 3 && !strcmp(arguments[2], "trace")) return trace(arguments);
  if (count < 2) return 2;
  count_handlers(arguments[1]);
  if (count == 3) return 4;
  int status = 0;
  signal(SIGUSR2, SIG_IGN);
  say("wait", wait(&status), 0, &status);
  say("by its number", waitpid(handler ? handler : 1, &status, __WALL | WNOHANG), 0, &status);
  say("by its group", waitpid(handler ? -handler : -1000000000, &status, __WCLONE | WNOHANG), 0, &status);
  say("by its number", waitid(P_PID, handler ? (id_t)handler : 1, NULL, WEXITED | __WALL | WNOHANG), 0, NULL);
  say("waits", waitpid(-1, &status, __WALL), 0, &status);
  say("waits", wait3(&status, __WCLONE, NULL), 0, &status);
  say("waits", wait4(-1, &status, __WALL, NULL), 0, &status);
  say("waits", waitid(P_ALL, 0, NULL, WEXITED | __WALL), 0, NULL);
  look("alone");
  struct child child = begin(SIGCHLD, 7);
  look("a child");
  reap("a child", child, __WALL);
  child = begin(0, 8);
  look("a clone");
  reap("a clone", child, __WCLONE);
  reap("a clone for all", begin(SIGUSR2, 8), __WALL);
  child = begin(SIGCHLD, 7);
  struct child clone = begin(0, 8);
  look("both kinds");
  reap("of both kinds, the clone", clone, __WALL);
  reap("of both kinds, the child", child, __WALL);
  of_another_thread();
  interrupted(__WALL);
  interrupted(0);
  traced(__WALL);
  traced(__WCLONE);
  look("at the end");
  return 0;
}
