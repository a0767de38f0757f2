/* The C library's asynchronous I/O, by threads, with evicted buffers and control blocks. */
#include "pressure.h"
#include <aio.h>
int main(void)
{
    char path[] = "/tmp/ebb-aio-XXXXXX";
    int fd = MUST(mkstemp(path));
    unlink(path);
    unsigned char *m = fresh(MIB);
    struct aiocb *block = (struct aiocb *)fresh(PAGE);
    fill(m, MIB / 2, 1);
    for (int read = 0; read < 2; read++) {
        memset(block, 0, sizeof *block);
        block->aio_fildes = fd;
        block->aio_buf = m + read * (MIB / 2);
        block->aio_nbytes = MIB / 2;
        evict(m, MIB);
        MUST(read ? aio_read(block) : aio_write(block));
        evict(m, MIB);
        const struct aiocb *list[] = { block };
        while (aio_error(block) == EINPROGRESS)
            aio_suspend(list, 1, NULL);
        REQUIRE(aio_error(block) == 0 && aio_return(block) == (ssize_t)(MIB / 2));
    }
    check(m, MIB / 2, 1, "the source");
    check(m + MIB / 2, MIB / 2, 1, "what was read");
    return ok();
}
