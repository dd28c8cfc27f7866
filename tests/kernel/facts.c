/*
 * Prints what a kernel offers to a recorder of page accesses, one `name<TAB>value` per line.
 * Everything is tried, nothing is derived from the version. Run as root; see README.md.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *yes(int v)
{
    return v ? "yes" : "no";
}

static void fact(const char *name, const char *text)
{
    printf("%s\t%s\n", name, text);
    fflush(stdout);
}

static int slurp(const char *path, char *buffer, size_t room)
{
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, buffer, room - 1);
    if (fd >= 0)
        close(fd);
    buffer[n > 0 ? n : 0] = 0;
    buffer[strcspn(buffer, "\n")] = 0;
    return n >= 0;
}

static void file_fact(const char *name, const char *path)
{
    char text[256];
    fact(name, slurp(path, text, sizeof text) ? text : "absent");
}

static int put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY);
    ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));
    if (fd >= 0)
        close(fd);
    return n > 0;
}

/* Soft-dirty and accessed bits: the claims that a recording rests on. */
static int soft_dirty(int pagemap, void *page)
{
    uint64_t entry = 0;
    pread(pagemap, &entry, 8, (off_t)((uintptr_t)page / 4096 * 8));
    return entry >> 55 & 1;
}

static unsigned long referenced_kb(void *where)
{
    FILE *smaps = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long start, end, kb = 0;
    int inside = 0;
    while (smaps && fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2 && strchr(line, '-') < strchr(line, ' '))
            inside = (unsigned long)where >= start && (unsigned long)where < end;
        else if (inside && sscanf(line, "Referenced: %lu", &kb) == 1)
            break;
    }
    if (smaps)
        fclose(smaps);
    return kb;
}

static void dirty_bits(void)
{
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    volatile char *page = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise((void *)page, 1 << 20, MADV_NOHUGEPAGE);
    for (int i = 0; i < 256; i++)
        page[i * 4096] = 1;
    int written = soft_dirty(pagemap, (void *)page);
    int cleared = put("/proc/self/clear_refs", "4") && !soft_dirty(pagemap, (void *)page);
    (void)page[0];
    int after_read = soft_dirty(pagemap, (void *)page);
    page[0] = 2;
    int again = soft_dirty(pagemap, (void *)page);
    printf("soft_dirty\t%s (written=%d cleared=%d after_read=%d written_again=%d)\n",
           written && cleared && !after_read && again ? "works" : "missing", written, cleared, after_read, again);

    unsigned long before = referenced_kb((void *)page);
    put("/proc/self/clear_refs", "1");
    put("/proc/self/clear_refs", "4");
    unsigned long none = referenced_kb((void *)page);
    for (int i = 0; i < 64; i++)
        (void)page[i * 4096];
    printf("accessed_bits\ttouched 1024 kB: %lu kB; cleared: %lu kB; 256 kB read again: %lu kB\n", before, none,
           referenced_kb((void *)page));
}

static void freezer(void)
{
    const char *root = access("/sys/fs/cgroup/cgroup.procs", F_OK) ? "/sys/fs/cgroup/unified" : "/sys/fs/cgroup";
    char folder[200], path[300], text[64];
    snprintf(folder, sizeof folder, "%s/facts-%d", root, getpid());
    if (mkdir(folder, 0755)) {
        fact("cgroup2_freezer", "no cgroup v2");
        return;
    }
    pid_t child = fork();
    if (!child)
        for (;;)
            pause();
    snprintf(text, sizeof text, "%d", child);
    snprintf(path, sizeof path, "%s/cgroup.procs", folder);
    put(path, text);
    snprintf(path, sizeof path, "%s/cgroup.freeze", folder);
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    int frozen = put(path, "1");
    char events[300], state[200] = "";
    snprintf(events, sizeof events, "%s/cgroup.events", folder);
    for (int i = 0; i < 10000; i++) {
        int fd = open(events, O_RDONLY);
        ssize_t n = fd < 0 ? -1 : read(fd, state, sizeof state - 1);
        if (fd >= 0)
            close(fd);
        state[n > 0 ? n : 0] = 0;
        if (strstr(state, "frozen 1"))
            break;
        usleep(50);
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    frozen = frozen && strstr(state, "frozen 1");
    printf("cgroup2_freezer\t%s (%.2f ms)\n", frozen ? "works" : "no",
           (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6);
    put(path, "0");
    kill(child, 9);
    waitpid(child, NULL, 0);
    for (int i = 0; i < 100 && rmdir(folder); i++)
        usleep(10000);
    snprintf(path, sizeof path, "%s/cgroup.controllers", root);
    file_fact("cgroup2_controllers", path);
}

static void tracepoint(const char *category, const char *name)
{
    char path[200], fact_name[200];
    snprintf(path, sizeof path, "/sys/kernel/tracing/events/%s/%s/id", category, name);
    snprintf(fact_name, sizeof fact_name, "tracepoint %s:%s", category, name);
    fact(fact_name, yes(!access(path, F_OK)));
}

/* kallsyms lists what is in the kernel; BTF is asked by bpftool in facts.sh. */
static void symbols(void)
{
    static const char *names[] = { "bpf_task_from_pid", "bpf_iter_task_vma_new", "bpf_rcu_read_lock",
                                   "bpf_copy_from_user_str", "ptep_test_and_clear_young", "do_pagemap_scan",
                                   "lru_gen_look_around" };
    int found[sizeof names / sizeof *names] = { 0 };
    FILE *file = fopen("/proc/kallsyms", "r");
    char line[600], symbol[512];
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%*s %*s %511s", symbol) == 1)
            for (size_t i = 0; i < sizeof names / sizeof *names; i++)
                found[i] |= !strcmp(symbol, names[i]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(line, sizeof line, "symbol %s", names[i]);
        fact(line, yes(found[i]));
    }
}

static void faults(void)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = { .api = UFFD_API };
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api))
        printf("userfaultfd\t%s\n", strerror(errno));
    else
        printf("userfaultfd\tfeatures 0x%llx (MOVE: %s, WP_ASYNC: %s, POISON: %s)\n", (unsigned long long)api.features,
               yes(api.features >> 16 & 1), yes(api.features >> 15 & 1), yes(api.features >> 14 & 1));

    /* PAGEMAP_SCAN, _IOWR('f', 16, struct pm_scan_arg): the argument is 12 words. */
    uint64_t arg[12] = { sizeof arg, 0, (uint64_t)(uintptr_t)&arg & ~4095ULL, ((uint64_t)(uintptr_t)&arg & ~4095ULL) + 4096 };
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    arg[9] = arg[10] = 0;
    int rc = ioctl(pagemap, _IOWR('f', 16, uint64_t[12]), arg);
    fact("pagemap_scan", rc >= 0 || errno != ENOTTY ? "yes" : "no");

    struct perf_event_attr attr = { .type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_PAGE_FAULTS };
    fact("perf page-faults", syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0) >= 0 ? "yes" : strerror(errno));
    attr.type = PERF_TYPE_HARDWARE;
    attr.config = PERF_COUNT_HW_CPU_CYCLES;
    fact("perf cycles (PMU)", syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0) >= 0 ? "yes" : strerror(errno));
}

static void cpu_flags(void)
{
    static const char *flags[] = { "la57", "pti", "avx2", "avx512f", "cx16", "pdpe1gb", "constant_tsc" };
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[8192] = "";
    while (file && fgets(line, sizeof line, file) && strncmp(line, "flags", 5))
        ;
    line[strcspn(line, "\n")] = ' ';
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        char word[32];
        snprintf(word, sizeof word, " %s ", flags[i]);
        snprintf(line + 8100, 64, "cpu %s", flags[i]);
        fact(line + 8100, yes(strstr(line, word) != NULL));
    }
}

int main(void)
{
    struct utsname name;
    uname(&name);
    fact("release", name.release);
    cpu_flags();
    dirty_bits();
    freezer();
    fact("btf", yes(!access("/sys/kernel/btf/vmlinux", R_OK)));
    tracepoint("exceptions", "page_fault_user");
    tracepoint("exceptions", "page_fault_kernel");
    tracepoint("sched", "sched_process_fork");
    tracepoint("sched", "sched_process_exec");
    tracepoint("sched", "sched_prepare_exec");
    tracepoint("sched", "sched_process_exit");
    tracepoint("mmap", "exit_mmap");
    tracepoint("mmap", "vm_unmapped_area");
    tracepoint("syscalls", "sys_enter_munmap");
    tracepoint("raw_syscalls", "sys_enter");
    tracepoint("task", "task_newtask");
    tracepoint("task", "task_rename");
    tracepoint("migrate", "mm_migrate_pages");
    tracepoint("migrate", "set_migration_pte");
    tracepoint("vmscan", "mm_vmscan_lru_shrink_inactive");
    tracepoint("damon", "damon_aggregated");
    symbols();
    faults();
    file_fact("mglru", "/sys/kernel/mm/lru_gen/enabled");
    fact("damon sysfs", yes(!access("/sys/kernel/mm/damon", F_OK)));
    fact("idle page tracking", yes(!access("/sys/kernel/mm/page_idle/bitmap", F_OK)));
    fact("kpageflags", yes(!access("/proc/kpageflags", R_OK)));
    file_fact("thp", "/sys/kernel/mm/transparent_hugepage/enabled");
    fact("mthp", yes(!access("/sys/kernel/mm/transparent_hugepage/hugepages-64kB", F_OK)));
    file_fact("demotion_enabled", "/sys/kernel/mm/numa/demotion_enabled");
    fact("memory tiers", yes(!access("/sys/devices/virtual/memory_tiering", F_OK)));
    file_fact("numa_balancing", "/proc/sys/kernel/numa_balancing");
    file_fact("nodes", "/sys/devices/system/node/online");
    file_fact("nodes with cpus", "/sys/devices/system/node/has_cpu");
    file_fact("kptr_restrict", "/proc/sys/kernel/kptr_restrict");
    file_fact("perf_event_paranoid", "/proc/sys/kernel/perf_event_paranoid");
    file_fact("unprivileged_bpf_disabled", "/proc/sys/kernel/unprivileged_bpf_disabled");
    file_fact("bpf_jit_harden", "/proc/sys/net/core/bpf_jit_harden");
    file_fact("lockdown", "/sys/kernel/security/lockdown");
    file_fact("clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource");
    file_fact("swaps", "/proc/swaps");
    return 0;
}
