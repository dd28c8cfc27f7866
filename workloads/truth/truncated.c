/*
 * Pages that another process takes: it cuts the file that this one has mapped and just touched, punches
 * holes into it, or ages anonymous memory through a pidfd. `truncated open` has the file cut by O_TRUNC,
 * of which a recorder can only tell that it happened; on an overlay not even that, and this exits with 77.
 */
#include "oracle.h"
#include <linux/falloc.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { ROUNDS = 64, COLD = 20, PIDFD_OPEN = 434, PROCESS_MADVISE = 440 };

struct order {
    char what;
    uint64_t page;
};

static int orders[2], answers[2];
static char *memory;

static char *map_file(const char *name, int fd)
{
    char *map = mmap(NULL, ROUNDS * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        die("mmap of a file");
    oracle_arena(name, "file", map, ROUNDS * PAGE);
    struct oracle_phase *birth = oracle_begin("birth");
    uint64_t t0 = now_ns();
    write_pages(map, ROUNDS, 1);
    oracle_once(birth, 'w', t0, map, ROUNDS * PAGE);
    oracle_end(birth);
    return map;
}

static int obey(struct order order, int cut, int punched, int named, int pidfd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", named);
    struct iovec range = { memory + order.page * PAGE, PAGE };
    off_t at = (off_t)(order.page * PAGE);
    switch (order.what) {
    case 'f':
        return ftruncate(cut, at);
    case 'p':
        return fallocate(punched, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, PAGE);
    case 't':
        return truncate(path, at);
    case 'a':
        return syscall(PROCESS_MADVISE, pidfd, &range, 1, COLD, 0) == (long)PAGE ? 0 : -1;
    case 'o':
        return close(open(path, O_WRONLY | O_TRUNC));
    }
    return -1;
}

static void ask(char what, uint64_t page)
{
    struct order order = { what, page };
    int answer;
    if (write(orders[1], &order, sizeof order) != sizeof order || read(answers[0], &answer, sizeof answer) != sizeof answer)
        die("the other process");
    errno = answer;
    if (answer)
        die("what the other process tried");
}

static void rounds(const char *name, char what, char *map)
{
    struct oracle_phase *phase = oracle_begin_events(name, ROUNDS);
    for (size_t i = ROUNDS; i-- > 0;) {
        uint64_t t0 = now_ns();
        read_page(map + i * PAGE);
        oracle_once(phase, 'r', t0, map + i * PAGE, PAGE);
        ask(what, i);
    }
    oracle_end(phase);
}

int main(int count, char **arguments)
{
    bool by_open = count > 1 && strcmp(arguments[1], "open") == 0;
    oracle_init("truncated");
    int cut = scratch_file(ROUNDS), punched = scratch_file(ROUNDS), named = scratch_file(ROUNDS);
    char *cut_map = map_file("cut", cut), *punched_map = map_file("punched", punched), *named_map = map_file("named", named);
    memory = resident_arena("advised", ROUNDS);
    int pidfd = (int)syscall(PIDFD_OPEN, getpid(), 0);
    if (pidfd < 0 || pipe(orders) != 0 || pipe(answers) != 0)
        die("pidfd or pipe");
    pid_t other = fork();
    if (other < 0)
        die("fork");
    if (other == 0) {
        struct order order;
        close(orders[1]);
        while (read(orders[0], &order, sizeof order) == sizeof order) {
            int answer = obey(order, cut, punched, named, pidfd) == 0 ? 0 : errno;
            if (write(answers[1], &answer, sizeof answer) != sizeof answer)
                _exit(1);
        }
        _exit(0);
    }
    rest("idle");
    struct statfs system;
    if (fstatfs(named, &system) != 0)
        die("fstatfs");
    if (by_open && system.f_type == OVERLAYFS_SUPER_MAGIC) {
        fputs("The files are on an overlay, which does not know who has mapped them.\n", stderr);
        return 77;
    }
    if (by_open) {
        struct oracle_phase *phase = oracle_begin("touched, then cut by O_TRUNC");
        uint64_t t0 = now_ns();
        read_pages(named_map, ROUNDS, 1);
        oracle_once(phase, 'r', t0, named_map, ROUNDS * PAGE);
        ask('o', 0);
        oracle_end(phase);
    } else {
        rounds("touched, then cut by another", 'f', cut_map);
        rounds("touched, then punched by another", 'p', punched_map);
        rounds("touched, then cut by name by another", 't', named_map);
        rounds("touched, then aged by another", 'a', memory);
    }
    close(orders[1]);
    if (waitpid(other, NULL, 0) != other)
        die("waitpid");
    rest("idle after");
    puts("truncated done");
    return 0;
}
