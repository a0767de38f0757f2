/* Kernel asynchronous I/O from several threads at once: buffers stay where they are for as long as the kernel uses them, under
 * pressure, beside forks, moves and contexts that end, and are evicted like any other afterwards. */
#include "pressure.h"
#include <linux/aio_abi.h>
#include <poll.h>
#include <sys/uio.h>
#define THREADS 3
#define DEPTH 8
#define SIZE (16 * PAGE)
#define BLOCKS 64

static int file;
static unsigned char *area;
static _Atomic int over;

/* Nothing is kept for a request that is over. */
static void require_evictable(const void *at, size_t len, const char *what)
{
    evict(at, len);
    size_t missing = absent(at, len);
    if (budget() && missing < len / PAGE * 3 / 4)
        fail("%s: %zu of %zu pages are kept in memory", what, len / PAGE - missing, len / PAGE);
}

static struct iocb block_of(int opcode, void *at, uint64_t number, uint64_t offset)
{
    struct iocb block = { .aio_lio_opcode = opcode, .aio_fildes = file, .aio_buf = (uintptr_t)at,
                          .aio_nbytes = number, .aio_offset = offset };
    return block;
}

static void reap(aio_context_t context, int n, long wanted)
{
    struct io_event events[DEPTH];
    while (n > 0) {
        long got = syscall(SYS_io_getevents, context, 1, n < DEPTH ? n : DEPTH, events, NULL);
        if (got < 0 && errno == EINTR)
            continue;
        REQUIRE(got > 0);
        for (long i = 0; i < got; i++)
            REQUIRE(events[i].res == wanted);
        n -= got;
    }
}

/* Reads blocks of the file, whole and in pieces, into buffers of its own, which have been evicted or not. */
static void *reader(void *number)
{
    unsigned char *own = area + (uintptr_t)number * DEPTH * SIZE;
    uint64_t random = (uintptr_t)number + 1;
    aio_context_t context = 0;
    MUST(syscall(SYS_io_setup, DEPTH, &context));
    struct iocb *blocks = (struct iocb *)fresh(PAGE), *list[DEPTH];
    struct iovec *pieces = (struct iovec *)fresh(PAGE);
    while (!over) {
        unsigned wanted[DEPTH];
        for (int i = 0; i < DEPTH; i++) {
            unsigned char *at = own + i * SIZE;
            random = mix(random + 1);
            wanted[i] = random % BLOCKS;
            if (random >> 40 & 1) {
                for (int piece = 0; piece < 4; piece++)
                    pieces[4 * i + piece] = (struct iovec){ at + piece * SIZE / 4, SIZE / 4 };
                blocks[i] = block_of(IOCB_CMD_PREADV, &pieces[4 * i], 4, wanted[i] * SIZE);
            } else {
                blocks[i] = block_of(IOCB_CMD_PREAD, at, SIZE, wanted[i] * SIZE);
            }
            list[i] = &blocks[i];
        }
        for (int done = 0; done < DEPTH;) {
            long n = syscall(SYS_io_submit, context, DEPTH - done, list + done);
            REQUIRE(n > 0);
            done += n;
        }
        reap(context, DEPTH, SIZE);
        for (int i = 0; i < DEPTH; i++)
            check(own + i * SIZE, SIZE, wanted[i], "what was read");
    }
    MUST(syscall(SYS_io_destroy, context));
    return NULL;
}

static void check_area(void *seed)
{
    check(area, SIZE, (uintptr_t)seed, "a child's copy of what is written");
}

/* More than fits: the kernel is given what does, and the rest later. */
static void more_than_fits(aio_context_t context)
{
    enum { COUNT = 32, LARGE = 1 << 20 };
    unsigned char *large = fresh(COUNT * LARGE);
    static struct iocb blocks[COUNT], *list[COUNT];
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = block_of(IOCB_CMD_PREAD, large + i * LARGE, LARGE, 0);
        list[i] = &blocks[i];
    }
    for (int done = 0; done < COUNT;) {
        long n = syscall(SYS_io_submit, context, COUNT - done, list + done);
        REQUIRE(n > 0 && n <= COUNT - done);
        REQUIRE(!budget() || n == 1 || (size_t)n * LARGE <= budget());
        reap(context, n, LARGE);
        done += n;
    }
    for (int i = 0; i < COUNT; i++)
        for (size_t at = 0; at < LARGE; at += SIZE)
            check(large + i * LARGE + at, SIZE, at / SIZE, "much that was read");
    /* One by one: where too much is in flight the kernel has no room, until some is reported. */
    int in_flight = 0;
    while (in_flight < COUNT && syscall(SYS_io_submit, context, 1, list + in_flight) == 1)
        in_flight++;
    REQUIRE(budget() ? in_flight > 1 && (size_t)in_flight * LARGE <= budget() / 2 && errno == EAGAIN : in_flight == COUNT);
    reap(context, in_flight, LARGE);
    REQUIRE(syscall(SYS_io_submit, context, 1, list) == 1);
    reap(context, 1, LARGE);
    /* A program that reads the ring by itself, so that nobody learns what is done: it has to wait, but not for good. */
    aio_context_t unread = 0;
    MUST(syscall(SYS_io_setup, 64, &unread));
    double end = now_s() + PATIENCE_S;
    for (int i = 0; i < 10;) {
        long n = syscall(SYS_io_submit, unread, 1, list + i);
        REQUIRE(n == 1 || (n == -1 && errno == EAGAIN && now_s() < end));
        i += n == 1;
        if (n != 1)
            sleep_ms(20);
    }
    MUST(syscall(SYS_io_destroy, unread));
    REQUIRE(syscall(SYS_io_submit, context, 1, list) == 1);
    /* What is mapped in place of a buffer in flight is evicted like any other. */
    MUST(mmap(large, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    fill(large, LARGE, 3);
    require_evictable(large, LARGE, "what was mapped in place of a buffer");
    check(large, LARGE, 3, "what was mapped in place of a buffer");
    reap(context, 1, LARGE);
    require_evictable(large, COUNT * LARGE, "much that was read");
    MUST(munmap(large, COUNT * LARGE));
}

int main(void)
{
    char path[] = "/var/tmp/ebb-aio-XXXXXX";
    file = MUST(mkstemp(path));
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, 64, &context) != 0) {
        unlink(path);
        return skip("no asynchronous I/O");
    }
    unsigned char *m = fresh(SIZE);
    for (int i = 0; i < BLOCKS; i++) {
        fill(m, SIZE, i);
        REQUIRE(pwrite(file, m, SIZE, i * SIZE) == (ssize_t)SIZE);
    }
    MUST(fsync(file));
    /* Past the page cache where the file system can, so that the device writes to the buffers after the call. */
    int direct = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    unlink(path);
    if (direct >= 0 && pread(direct, m, SIZE, 0) == (ssize_t)SIZE)
        file = direct;

    area = fresh(THREADS * DEPTH * SIZE);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        ZERO(pthread_create(&threads[i], NULL, reader, (void *)i));
    double end = now_s() + 3;
    while (now_s() < end) {
        evict(m, SIZE);
        /* A child has none of its parent's requests. */
        pid_t pid = MUST(fork());
        if (pid == 0) {
            evict(m, SIZE);
            _exit(0);
        }
        wait_ok(pid);
    }
    over = 1;
    for (int i = 0; i < THREADS; i++)
        ZERO(pthread_join(threads[i], NULL));
    require_evictable(area, THREADS * DEPTH * SIZE, "what threads read");

    /* One block twice, and one that the kernel does not take behind one that it takes. */
    struct iocb block = block_of(IOCB_CMD_PREAD, area, SIZE, 5 * SIZE), refused = block, *twice[] = { &block, &block };
    REQUIRE(syscall(SYS_io_submit, context, 2, twice) == 2);
    reap(context, 1, SIZE);
    evict(m, SIZE);
    reap(context, 1, SIZE);
    check(area, SIZE, 5, "what was read twice");
    /* The same block with another buffer before its first request is reported. */
    block = block_of(IOCB_CMD_PREAD, area, SIZE, 6 * SIZE);
    REQUIRE(syscall(SYS_io_submit, context, 1, twice) == 1);
    block = block_of(IOCB_CMD_PREAD, area + SIZE, SIZE, 7 * SIZE);
    REQUIRE(syscall(SYS_io_submit, context, 1, twice) == 1);
    reap(context, 1, SIZE);
    evict(m, SIZE);
    reap(context, 1, SIZE);
    check(area, SIZE, 6, "what was read first");
    check(area + SIZE, SIZE, 7, "what was read then");
    refused.aio_fildes = -1;
    refused.aio_buf += SIZE;
    struct iocb *half[] = { &block, &refused };
    REQUIRE(syscall(SYS_io_submit, context, 2, half) == 1);
    reap(context, 1, SIZE);
    REQUIRE(syscall(SYS_io_submit, context, 1, half + 1) == -1 && errno == EBADF);
    REQUIRE(syscall(SYS_io_submit, context, -1L, half) == -1 && errno == EINVAL);
    REQUIRE(syscall(SYS_io_submit, context, 1, (void *)8) == -1 && errno == EFAULT);

    /* A write in flight beside a fork and a move of its buffer. */
    fill(area, SIZE, 77);
    block = block_of(IOCB_CMD_PWRITE, area, SIZE, 0);
    REQUIRE(syscall(SYS_io_submit, context, 1, twice) == 1);
    wait_ok(child_of(check_area, (void *)77));
    unsigned char *moved = fresh(SIZE);
    REQUIRE(mremap(area, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, moved) == moved);
    evict(m, SIZE);
    reap(context, 1, SIZE);
    check(moved, SIZE, 77, "what moved while it was written");
    REQUIRE(pread(file, m, SIZE, 0) == (ssize_t)SIZE);
    check(m, SIZE, 77, "what was written");
    fill(m, SIZE, 0);
    REQUIRE(pwrite(file, m, SIZE, 0) == (ssize_t)SIZE);

    more_than_fits(context);

    /* A context that ends with requests in flight, whose events nobody takes. */
    unsigned char *left = fresh(DEPTH * SIZE);
    struct iocb blocks[DEPTH], *list[DEPTH];
    for (int i = 0; i < DEPTH; i++) {
        blocks[i] = block_of(IOCB_CMD_PREAD, left + i * SIZE, SIZE, i * SIZE);
        list[i] = &blocks[i];
    }
    for (int done = 0; done < DEPTH;)
        done += MUST(syscall(SYS_io_submit, context, DEPTH - done, list + done));
    MUST(syscall(SYS_io_destroy, context));
    REQUIRE(syscall(SYS_io_destroy, context) == -1 && errno == EINVAL);
    for (int i = 0; i < DEPTH; i++)
        check(left + i * SIZE, SIZE, i, "what was read for a context that is gone");
    require_evictable(left, DEPTH * SIZE, "what was read for a context that is gone");
    for (int i = 0; i < DEPTH; i++)
        check(left + i * SIZE, SIZE, i, "what was read for a context that is gone");
    return ok();
}
