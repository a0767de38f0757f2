/* What a read past the page cache costs by pread and by Linux AIO, by turns: the size of a read in bytes, and microseconds of wall
 * time and of processor time for each. The file is made in the directory that is given, or in /var/tmp. */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 3, MIB = 1 << 20 };
#define FILE_BYTES (512L * MIB)

static double us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void read_by_aio(aio_context_t context, int fd, void *out, long n, long offset)
{
    struct iocb request = { .aio_fildes = fd, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = (long)out,
                .aio_nbytes = n, .aio_offset = offset };
    struct iocb *list = &request;
    struct timespec timeout = { .tv_nsec = 100000000 };
    struct io_event event;
    if (syscall(SYS_io_submit, context, 1, &list) != 1)
        err(1, "io_submit");
    if (syscall(SYS_io_getevents, context, 1, 1, &event, &timeout) != 1 || event.res != n)
        err(1, "io_getevents");
}

int main(int argc, char **argv)
{
    const long sizes[] = { 4096, 65536, 262144 };
    char *buffer;
    aio_context_t context = 0;
    int fd = open(argc > 1 ? argv[1] : "/var/tmp", O_RDWR | O_TMPFILE | O_DIRECT, 0600);
    if (fd < 0 || posix_memalign((void **)&buffer, 4096, MIB) || syscall(SYS_io_setup, 1, &context))
        err(1, "cannot begin");
    for (int i = 0; i < MIB; i++)
        buffer[i] = random();
    for (long at = 0; at < FILE_BYTES; at += MIB)
        if (pwrite(fd, buffer, MIB, at) != MIB)
            err(1, "pwrite");
    fsync(fd);
    for (int size = 0; size < 3; size++)
        for (int turn = 0; turn < 2 * ROUNDS; turn++) {
            long n = sizes[size], reads = 8000 * 4096 / n + 1000;
            double wall = us(CLOCK_MONOTONIC), cpu = us(CLOCK_PROCESS_CPUTIME_ID);
            for (long i = 0; i < reads; i++) {
                long at = random() % (FILE_BYTES / n) * n;
                if (turn % 2)
                    read_by_aio(context, fd, buffer, n, at);
                else if (pread(fd, buffer, n, at) != n)
                    err(1, "pread");
            }
            printf("%7ld %s %6.1f us, %5.1f us of processor time\n", n, turn % 2 ? "AIO  " : "pread",
                   (us(CLOCK_MONOTONIC) - wall) / reads, (us(CLOCK_PROCESS_CPUTIME_ID) - cpu) / reads);
        }
    return 0;
}
