/*
 * The first process of a test machine (see README.md).
 *
 * It loads the modules that the initramfs carries, puts the host's root below a tmpfs, mounts what a
 * booted system has, runs one command and sends what it prints, and how it ended, to the host as
 * frames over a virtio-serial port. Linked statically: it runs before there is a root.
 *
 * A frame is: one byte kind, four bytes length (little endian), payload.
 *   'b' booted, payload empty        'o' standard output       'e' standard error
 *   'x' ended, payload: four bytes, exit code as a shell says it (128 + signal)
 *   'f' this program failed, payload: a sentence
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_ITEMS 512
#define DRAIN_MS 2000 /* how long a left-over background process may hold the pipes open */

static char *conf;
static size_t conf_len;
static int port = -1;

/* ---- talking to the host ---- */

static void write_all(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return; /* the host has gone; poll() reports it */
        p += n;
        len -= (size_t)n;
    }
}

static void frame(char kind, const void *data, uint32_t len)
{
    unsigned char head[5] = { (unsigned char)kind, len & 255, len >> 8 & 255, len >> 16 & 255, len >> 24 };
    if (port < 0)
        return;
    write_all(port, head, sizeof head);
    write_all(port, data, len);
}

static void power_off(void)
{
    sync();
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

static void __attribute__((format(printf, 1, 2), noreturn)) fail(const char *format, ...)
{
    char text[600];
    struct pollfd wait_for_host = { .fd = port, .events = POLLIN };
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "init: %s\n", text);
    frame('f', text, (uint32_t)strlen(text));
    if (port >= 0)
        poll(&wait_for_host, 1, 5000);
    power_off();
    abort();
}

/* ---- the configuration: NUL-terminated `key=value` strings, in order ---- */

static void read_conf(void)
{
    FILE *file = fopen("/vm.conf", "r");
    size_t room = 1 << 20;
    conf = malloc(room);
    if (!file || !conf)
        fail("cannot read /vm.conf: %s", strerror(errno));
    conf_len = fread(conf, 1, room - 1, file);
    conf[conf_len] = 0;
    fclose(file);
}

/* Fills `items` with all values of `key`; returns how many. */
static int values(const char *key, char **items)
{
    size_t key_len = strlen(key);
    int count = 0;
    for (char *p = conf; p < conf + conf_len; p += strlen(p) + 1)
        if (!strncmp(p, key, key_len) && p[key_len] == '=' && count < MAX_ITEMS - 1)
            items[count++] = p + key_len + 1;
    items[count] = NULL;
    return count;
}

static char *value(const char *key)
{
    char *items[MAX_ITEMS];
    return values(key, items) ? items[0] : NULL;
}

/* ---- the root ---- */

static void make_dirs(const char *path)
{
    char copy[4096];
    snprintf(copy, sizeof copy, "%s", path);
    for (char *p = copy + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(copy, 0755);
            *p = '/';
        }
    mkdir(copy, 0755);
}

static int try_mount(const char *what, const char *where, const char *type, unsigned long flags, const char *data)
{
    make_dirs(where);
    return mount(what, where, type, flags, data);
}

static void need_mount(const char *what, const char *where, const char *type, unsigned long flags, const char *data)
{
    if (try_mount(what, where, type, flags, data))
        fail("cannot mount %s (%s) on %s: %s", what, type, where, strerror(errno));
}

static int write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t n;
    if (fd < 0)
        return -1;
    n = write(fd, text, strlen(text));
    close(fd);
    return n < 0 ? -1 : 0;
}

static void load_modules(void)
{
    char *items[MAX_ITEMS];
    int count = values("module", items);
    for (int i = 0; i < count; i++) {
        int fd = open(items[i], O_RDONLY | O_CLOEXEC);
        if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST))
            fail("cannot load the kernel module %s: %s", items[i], strerror(errno));
        close(fd);
    }
}

static void open_port(void)
{
    for (int attempt = 0; attempt < 500; attempt++) {
        DIR *ports = opendir("/sys/class/virtio-ports");
        struct dirent *entry;
        while (ports && (entry = readdir(ports))) {
            char path[400], name[32] = "";
            snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
            FILE *file = fopen(path, "r");
            if (!file)
                continue;
            if (fscanf(file, "%31s", name) == 1 && !strcmp(name, "varve.run")) {
                snprintf(path, sizeof path, "/dev/%s", entry->d_name);
                port = open(path, O_RDWR | O_CLOEXEC);
            }
            fclose(file);
        }
        if (ports)
            closedir(ports);
        if (port >= 0)
            return;
        usleep(10000);
    }
    fail("the virtio-serial port varve.run did not appear");
}

static void make_root(void)
{
    need_mount("host", "/lower", "virtiofs", MS_RDONLY | MS_NOATIME, NULL);
    need_mount("upper", "/upper", "tmpfs", 0, "mode=755");
    make_dirs("/upper/data");
    make_dirs("/upper/work");
    need_mount("root", "/new", "overlay", MS_NOATIME, "lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work");

    need_mount("proc", "/new/proc", "proc", 0, NULL);
    need_mount("sysfs", "/new/sys", "sysfs", 0, NULL);
    need_mount("devtmpfs", "/new/dev", "devtmpfs", 0, "mode=755");
    need_mount("devpts", "/new/dev/pts", "devpts", 0, "ptmxmode=666");
    need_mount("tmpfs", "/new/dev/shm", "tmpfs", 0, NULL);
    need_mount("tmpfs", "/new/run", "tmpfs", 0, "mode=755");
    need_mount("cgroup2", "/new/sys/fs/cgroup", "cgroup2", 0, NULL);
    /* Kernels may be built without these. */
    try_mount("hugetlbfs", "/new/dev/hugepages", "hugetlbfs", 0, NULL);
    try_mount("bpf", "/new/sys/fs/bpf", "bpf", 0, NULL);
    try_mount("debugfs", "/new/sys/kernel/debug", "debugfs", 0, NULL);
    try_mount("tracefs", "/new/sys/kernel/tracing", "tracefs", 0, NULL);

    if (chdir("/new") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
        fail("cannot switch to the new root: %s", strerror(errno));
}

/* ---- what a booted system has besides mounts ---- */

static void settings(void)
{
    char *share = value("share"), *disk = value("disk"), *pages = value("hugepages"), *swap = value("swap");
    struct ifreq loopback = { .ifr_name = "lo" };
    int sock = socket(AF_INET, SOCK_DGRAM, 0);

    if (share)
        need_mount("share", share, "virtiofs", 0, NULL);
    make_dirs("/run/tmp");
    if (disk)
        need_mount(disk, "/run/tmp", "ext4", 0, NULL);
    chmod("/run/tmp", 01777);

    sethostname("varve-vm", 8);
    loopback.ifr_flags = IFF_UP | IFF_RUNNING;
    if (sock >= 0) {
        ioctl(sock, SIOCSIFFLAGS, &loopback);
        close(sock);
    }
    symlink("/proc/self/fd", "/dev/fd");
    symlink("/proc/self/fd/0", "/dev/stdin");
    symlink("/proc/self/fd/1", "/dev/stdout");
    symlink("/proc/self/fd/2", "/dev/stderr");
    /* systemd enables these on a booted machine. */
    write_file("/sys/fs/cgroup/cgroup.subtree_control", "+cpu +memory +pids");
    if (pages && write_file("/proc/sys/vm/nr_hugepages", pages))
        fail("cannot reserve %s huge pages: %s", pages, strerror(errno));
    if (swap && !strncmp(swap, "zram:", 5)) {
        if (write_file("/sys/block/zram0/disksize", swap + 5))
            fail("cannot size zram0 to %s: %s", swap + 5, strerror(errno));
        /* The host's own mkswap: the host's root is there by now. */
        if (system("mkswap /dev/zram0 >/dev/null"))
            fail("mkswap /dev/zram0 failed");
        swap = "/dev/zram0";
    }
    if (swap && swapon(swap, 0))
        fail("cannot swap on %s: %s", swap, strerror(errno));
}

/* ---- the command ---- */

static void run_child(int out, int err)
{
    char *args[MAX_ITEMS], *env[MAX_ITEMS], *cwd = value("cwd");
    int null = open("/dev/null", O_RDONLY);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    dup2(null, 0);
    dup2(out, 1);
    dup2(err, 2);
    close_range(3, ~0U, 0);
    values("arg", args);
    values("env", env);
    clearenv();
    for (int i = 0; env[i]; i++)
        putenv(env[i]);
    if (cwd && chdir(cwd)) {
        fprintf(stderr, "init: cannot enter %s: %s\n", cwd, strerror(errno));
        _exit(126);
    }
    execvp(args[0], args);
    fprintf(stderr, "init: cannot run %s: %s\n", args[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

static long long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* Forwards one pipe; returns 0 at its end. */
static int forward(int fd, char kind)
{
    static char buffer[16384];
    ssize_t n = read(fd, buffer, sizeof buffer);
    if (n > 0)
        frame(kind, buffer, (uint32_t)n);
    return n > 0 || (n < 0 && errno == EINTR);
}

/* Reaps every orphan; returns 1 once `child` is among them. */
static int reap(pid_t child, int *status)
{
    pid_t pid;
    int one, found = 0;
    while ((pid = waitpid(-1, &one, WNOHANG)) > 0)
        if (pid == child) {
            *status = one;
            found = 1;
        }
    return found;
}

static uint32_t run_command(void)
{
    int out[2], err[2], status = 0;
    long long deadline = -1;
    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    sigprocmask(SIG_BLOCK, &chld, NULL);
    int signals = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0 || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
        fail("cannot make pipes: %s", strerror(errno));
    pid_t child = fork();
    if (child < 0)
        fail("cannot fork: %s", strerror(errno));
    if (!child)
        run_child(out[1], err[1]);
    close(out[1]);
    close(err[1]);

    /* POLLHUP on the port: the host's side has closed it, so nobody wants the answer. */
    struct pollfd fds[4] = {
        { .fd = out[0], .events = POLLIN },
        { .fd = err[0], .events = POLLIN },
        { .fd = signals, .events = POLLIN },
        { .fd = port, .events = 0 },
    };
    while (fds[0].fd >= 0 || fds[1].fd >= 0 || deadline < 0) {
        int wait = deadline < 0 ? -1 : (int)(deadline - now_ms());
        if (deadline >= 0 && wait <= 0)
            break;
        poll(fds, 4, wait);
        if (fds[0].revents && !forward(out[0], 'o'))
            fds[0].fd = -1, fds[0].revents = 0;
        if (fds[1].revents && !forward(err[0], 'e'))
            fds[1].fd = -1, fds[1].revents = 0;
        if (fds[2].revents) {
            struct signalfd_siginfo info;
            while (read(signals, &info, sizeof info) == sizeof info)
                ;
            if (reap(child, &status))
                deadline = now_ms() + DRAIN_MS;
        }
        if (fds[3].revents & (POLLHUP | POLLERR))
            power_off();
    }
    return WIFSIGNALED(status) ? 128 + (uint32_t)WTERMSIG(status) : (uint32_t)WEXITSTATUS(status);
}

int main(void)
{
    need_mount("proc", "/proc", "proc", 0, NULL);
    need_mount("sysfs", "/sys", "sysfs", 0, NULL);
    need_mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
    read_conf();
    load_modules();
    open_port();
    make_root();
    settings();
    frame('b', "", 0);

    uint32_t code = run_command();
    unsigned char payload[4] = { code & 255, code >> 8 & 255, code >> 16 & 255, code >> 24 };
    struct pollfd wait_for_host = { .fd = port, .events = POLLIN };
    kill(-1, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0)
        ;
    /* The shared folder is complete before the host hears that the command has ended. */
    if (value("share"))
        umount2(value("share"), MNT_DETACH);
    sync();
    frame('x', payload, 4);
    poll(&wait_for_host, 1, 10000);
    power_off();
}
