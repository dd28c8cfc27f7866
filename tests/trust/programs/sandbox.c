// sandbox kill|deny PROGRAM...: runs a program under a filter of system calls, as sandboxes and containers do. `kill` ends whoever
// makes a socket; `deny` refuses ptrace and mount with EPERM.
// sandbox rest FILE: confines itself to little, without restart_syscall, says so and sleeps until there is a file; ends with 5.
// sandbox wait: confines itself to what it needs and then waits in epoll_wait for half a second; ends with 5.
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CALL BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define ON(call, what) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, what)
#define ELSE(what) BPF_STMT(BPF_RET | BPF_K, what)

static int confine(struct sock_filter *filter, unsigned short length) {
  struct sock_fprog program = {length, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

#define CONFINE(filter) confine(filter, sizeof(filter) / sizeof(*(filter)))

static int wait_confined(void) {
  struct sock_filter few[] = {CALL,
                              ON(SYS_epoll_wait, SECCOMP_RET_ALLOW),
                              ON(SYS_write, SECCOMP_RET_ALLOW),
                              ON(SYS_exit_group, SECCOMP_RET_ALLOW),
                              ON(SYS_rt_sigreturn, SECCOMP_RET_ALLOW),
                              ON(SYS_restart_syscall, SECCOMP_RET_ALLOW),
                              ELSE(SECCOMP_RET_KILL_PROCESS)};
  struct epoll_event event;
  int epoll = epoll_create1(0);
  if (epoll < 0 || CONFINE(few)) return 1;
  epoll_wait(epoll, &event, 1, 500);
  _exit(5);
}

static int rest_confined(const char *file) {
  struct sock_filter few[] = {CALL,
                              ON(SYS_nanosleep, SECCOMP_RET_ALLOW),
                              ON(SYS_access, SECCOMP_RET_ALLOW),
                              ON(SYS_write, SECCOMP_RET_ALLOW),
                              ON(SYS_exit_group, SECCOMP_RET_ALLOW),
                              ON(SYS_rt_sigreturn, SECCOMP_RET_ALLOW),
                              ELSE(SECCOMP_RET_KILL_PROCESS)};
  struct timespec moment = {0, 100000000};
  if (CONFINE(few)) return 1;
  if (write(1, "rests\n", 6) != 6) return 1;
  do
    syscall(SYS_nanosleep, &moment, NULL);
  while (syscall(SYS_access, file, F_OK));
  _exit(5);
}

int main(int count, char **words) {
  struct sock_filter kill[] = {CALL, ON(SYS_socket, SECCOMP_RET_KILL_PROCESS), ELSE(SECCOMP_RET_ALLOW)};
  struct sock_filter deny[] = {CALL, ON(SYS_ptrace, SECCOMP_RET_ERRNO | 1), ON(SYS_mount, SECCOMP_RET_ERRNO | 1),
                               ELSE(SECCOMP_RET_ALLOW)};
  if (count == 2 && !strcmp(words[1], "wait")) return wait_confined();
  if (count < 3) return 2;
  if (!strcmp(words[1], "rest")) return rest_confined(words[2]);
  if (!strcmp(words[1], "kill") ? CONFINE(kill) : CONFINE(deny)) return 3;
  execvp(words[2], words + 2);
  return 4;
}
