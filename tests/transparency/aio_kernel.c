/* Kernel asynchronous I/O: buffers are evicted before it is submitted, and pressure goes on while it is in flight. */
#include "pressure.h"
#include <linux/aio_abi.h>
#define COUNT 16
#define SIZE (16 * PAGE)
int main(void)
{
    aio_context_t context = 0;
    char path[] = "/tmp/ebb-aio-XXXXXX";
    int fd = MUST(mkstemp(path));
    unlink(path);
    if (syscall(SYS_io_setup, 64, &context) != 0)
        return skip("no asynchronous I/O");
    unsigned char *m = fresh(2 * COUNT * SIZE);
    struct iocb *blocks = (struct iocb *)fresh(2 * PAGE), **list = (struct iocb **)fresh(PAGE);
    struct io_event *events = (struct io_event *)fresh(2 * PAGE);
    for (int round = 0; round < 3; round++) {
        fill(m, COUNT * SIZE, round);
        memset(m + COUNT * SIZE, 0, COUNT * SIZE);
        for (int direction = 0; direction < 2; direction++) {
            for (int i = 0; i < COUNT; i++) {
                memset(&blocks[i], 0, sizeof blocks[i]);
                blocks[i].aio_lio_opcode = direction ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE;
                blocks[i].aio_fildes = fd;
                blocks[i].aio_buf = (uintptr_t)(m + (direction * COUNT + i) * SIZE);
                blocks[i].aio_nbytes = SIZE;
                blocks[i].aio_offset = i * SIZE;
                blocks[i].aio_data = i;
                list[i] = &blocks[i];
            }
            evict(m, 2 * COUNT * SIZE);
            evict(blocks, 2 * PAGE);
            REQUIRE(syscall(SYS_io_submit, context, COUNT, list) == COUNT);
            evict(m, 2 * COUNT * SIZE);
            int done = 0, seen[COUNT] = { 0 };
            struct timespec limit = { 20, 0 };
            while (done < COUNT) {
                evict(events, 2 * PAGE);
                int n = syscall(SYS_io_getevents, context, 1, COUNT - done, events, &limit);
                REQUIRE(n > 0);
                for (int i = 0; i < n; i++) {
                    REQUIRE(events[i].res == (long)SIZE && !seen[events[i].data]++);
                }
                done += n;
            }
        }
        check(m, COUNT * SIZE, round, "the source");
        check(m + COUNT * SIZE, COUNT * SIZE, round, "what was read");
    }
    MUST(syscall(SYS_io_destroy, context));
    return ok();
}
