/*
 * Buffers that only the kernel touches: copied by read, write and readv; reached by device and driver
 * with O_DIRECT, both ways; and by io_uring, with plain and with registered buffers. The program makes
 * the buffers resident, lets them age, and then never touches them itself.
 * The pages given to O_DIRECT are never the ones that its own setup has just touched.
 */
#include "oracle.h"
#include <liburing.h>
#include <sys/uio.h>

enum { PAGES = 64, CALLS = 8 };

static int file, direct = -1;
static const size_t BYTES = PAGES * PAGE;

typedef void transfer(char *buffer);

static void check(ssize_t got, const char *what)
{
    if (got != (ssize_t)BYTES) {
        if (got >= 0)
            errno = EIO;
        die(what);
    }
}

static void by_read(char *b) { check(pread(file, b, BYTES, 0), "pread"); }
static void by_write(char *b) { check(pwrite(file, b, BYTES, 0), "pwrite"); }
static void by_direct_read(char *b) { check(pread(direct, b, BYTES, 0), "pread with O_DIRECT"); }
static void by_direct_write(char *b) { check(pwrite(direct, b, BYTES, 0), "pwrite with O_DIRECT"); }

static void by_readv(char *b)
{
    struct iovec parts[4];
    for (size_t i = 0; i < 4; i++)
        parts[i] = (struct iovec){ .iov_base = b + i * BYTES / 4, .iov_len = BYTES / 4 };
    check(preadv(file, parts, 4, 0), "preadv");
}

/* `single`: one transfer only, so that one touch must be seen; else the transfer is repeated. */
struct use {
    const char *name;
    transfer *transfer;
    bool single;
    char *buffer;
};

static void run(const struct use *use)
{
    char *buffer = use->buffer;
    struct oracle_phase *phase = oracle_begin(use->name);
    oracle_set(phase, 'k', buffer, BYTES);
    while (oracle_again(phase)) {
        use->transfer(buffer);
        oracle_looped(phase);
        if (use->single) {
            sleep_ms(phase_ms());
            break;
        }
    }
    oracle_end(phase);
    oracle_gone(buffer, 2 * BYTES);
    munmap(buffer, 2 * BYTES);
}

static struct io_uring ring;

static void uring_once(struct io_uring_sqe *sqe, const char *what)
{
    struct io_uring_cqe *cqe;
    (void)sqe;
    int got = io_uring_submit(&ring);
    /* Being held interrupts the wait, as SIGSTOP does: signal(7). */
    while (got >= 0 || got == -EINTR) {
        got = io_uring_wait_cqe(&ring, &cqe);
        if (got == 0)
            break;
    }
    if (got < 0) {
        errno = -got;
        die(what);
    }
    if (cqe->res < 0)
        errno = -cqe->res;
    check(cqe->res, what);
    io_uring_cqe_seen(&ring, cqe);
}

static void by_uring_read(char *b)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    io_uring_prep_read(sqe, file, b, BYTES, 0);
    uring_once(sqe, "io_uring read");
}

static void by_uring_direct(char *b)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    io_uring_prep_read(sqe, direct, b, BYTES, 0);
    uring_once(sqe, "io_uring read with O_DIRECT");
}

static bool registered;

static void by_uring_fixed(char *b)
{
    if (!registered) {
        struct iovec part = { .iov_base = b, .iov_len = BYTES };
        int got = io_uring_register_buffers(&ring, &part, 1);
        if (got < 0) {
            errno = -got;
            die("io_uring_register_buffers");
        }
        registered = true;
    }
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    io_uring_prep_read_fixed(sqe, direct >= 0 ? direct : file, b, BYTES, 0, 0);
    uring_once(sqe, "io_uring read into a registered buffer");
}

int main(void)
{
    oracle_init("kernelbuf");
    file = scratch_file(PAGES);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    direct = open(path, O_RDWR | O_DIRECT);

    if (direct < 0)
        oracle_skip("The file system of the scratch file has no O_DIRECT: those phases are left out.");
    bool has_ring = io_uring_queue_init(8, &ring, 0) >= 0;
    if (!has_ring)
        oracle_skip("io_uring is not available: those phases are left out.");

    struct use uses[16];
    size_t count = 0;
    uses[count++] = (struct use){ "read", by_read, false, NULL };
    uses[count++] = (struct use){ "read once", by_read, true, NULL };
    uses[count++] = (struct use){ "write", by_write, false, NULL };
    uses[count++] = (struct use){ "readv", by_readv, false, NULL };
    if (direct >= 0) {
        uses[count++] = (struct use){ "O_DIRECT read once", by_direct_read, true, NULL };
        uses[count++] = (struct use){ "O_DIRECT write once", by_direct_write, true, NULL };
        uses[count++] = (struct use){ "O_DIRECT read", by_direct_read, false, NULL };
        uses[count++] = (struct use){ "O_DIRECT write", by_direct_write, false, NULL };
    }
    if (has_ring) {
        uses[count++] = (struct use){ "io_uring read", by_uring_read, false, NULL };
        if (direct >= 0) {
            uses[count++] = (struct use){ "io_uring O_DIRECT read once", by_uring_direct, true, NULL };
            uses[count++] = (struct use){ "io_uring O_DIRECT read", by_uring_direct, false, NULL };
        }
        uses[count++] = (struct use){ "io_uring registered buffer", by_uring_fixed, false, NULL };
    }
    /* All buffers age in one rest. */
    for (size_t i = 0; i < count; i++)
        uses[i].buffer = resident_arena(uses[i].name, 2 * PAGES);
    rest("idle");
    for (size_t i = 0; i < count; i++)
        run(&uses[i]);
    if (has_ring)
        io_uring_queue_exit(&ring);
    puts("kernelbuf done");
    return 0;
}
