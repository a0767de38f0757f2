/* io_uring: plain buffers evicted before submission, registered buffers under pressure. */
#include "pressure.h"
#include <linux/io_uring.h>
#include <sys/uio.h>
static struct io_uring_params parameters;
static unsigned char *sq, *cq;
static struct io_uring_sqe *entries;
static int ring;
static int run(int opcode, int fd, void *buffer, size_t len, size_t offset, int index)
{
    unsigned *tail = (unsigned *)(sq + parameters.sq_off.tail), mask = *(unsigned *)(sq + parameters.sq_off.ring_mask);
    unsigned slot = *tail & mask;
    struct io_uring_sqe *entry = &entries[slot];
    memset(entry, 0, sizeof *entry);
    entry->opcode = opcode;
    entry->fd = fd;
    entry->addr = (uintptr_t)buffer;
    entry->len = len;
    entry->off = offset;
    entry->buf_index = index;
    ((unsigned *)(sq + parameters.sq_off.array))[slot] = slot;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    REQUIRE(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
    unsigned *head = (unsigned *)(cq + parameters.cq_off.head);
    REQUIRE(*head != __atomic_load_n((unsigned *)(cq + parameters.cq_off.tail), __ATOMIC_ACQUIRE));
    struct io_uring_cqe *done = &((struct io_uring_cqe *)(cq + parameters.cq_off.cqes))[*head & *(unsigned *)(cq + parameters.cq_off.ring_mask)];
    int result = done->res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return result;
}
int main(void)
{
    unsigned char *m = fresh(2 * MIB);
    char path[] = "/tmp/ebb-uring-XXXXXX";
    int fd = MUST(mkstemp(path)), rw = PROT_READ | PROT_WRITE;
    unlink(path);
    ring = syscall(SYS_io_uring_setup, 8, &parameters);
    if (ring < 0)
        return skip("no io_uring here");
    sq = MUST(mmap(NULL, parameters.sq_off.array + parameters.sq_entries * 4, rw, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING));
    cq = MUST(mmap(NULL, parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe), rw, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_CQ_RING));
    entries = MUST(mmap(NULL, parameters.sq_entries * sizeof(struct io_uring_sqe), rw, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES));
    for (int round = 0; round < 3; round++) {
        fill(m, MIB, round);
        memset(m + MIB, 0, MIB);
        evict(m, 2 * MIB);
        REQUIRE(run(IORING_OP_WRITE, fd, m, MIB, 0, 0) == (int)MIB);
        evict(m, 2 * MIB);
        REQUIRE(run(IORING_OP_READ, fd, m + MIB, MIB, 0, 0) == (int)MIB);
        check(m + MIB, MIB, round, "what was read");
    }
    struct iovec buffers[2] = { { m, MIB }, { m + MIB, MIB } };
    evict(m, 2 * MIB);
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, buffers, 2) != 0)
        return skip("plain buffers work; buffers cannot be registered here (RLIMIT_MEMLOCK)");
    for (int round = 0; round < 3; round++) {
        fill(m, MIB, round + 10);
        memset(m + MIB, 0, MIB);
        evict(m, 2 * MIB);
        REQUIRE(run(IORING_OP_WRITE_FIXED, fd, m, MIB, 0, 0) == (int)MIB);
        evict(m, 2 * MIB);
        REQUIRE(run(IORING_OP_READ_FIXED, fd, m + MIB, MIB, 0, 1) == (int)MIB);
        evict(m, 2 * MIB);
        check(m + MIB, MIB, round + 10, "what was read to a registered buffer");
    }
    return ok();
}
