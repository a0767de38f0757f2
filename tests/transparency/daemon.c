/* A program that makes itself a daemon: two forks, a new session, other directory, no descriptors; memory goes along. */
#include "pressure.h"
int main(void)
{
    unsigned char *m = fresh(2 * MIB);
    char path[] = "/tmp/ebb-daemon-XXXXXX";
    int fd = MUST(mkstemp(path)), ends[2];
    fill(m, 2 * MIB, 1);
    MUST(pipe(ends));
    evict(m, 2 * MIB);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        MUST(setsid());
        if (MUST(fork()) != 0)
            _exit(0);
        MUST(chdir("/"));
        umask(0);
        for (int i = 0; i < 4096; i++)
            if (i != ends[1])
                close(i);
        MUST(open("/dev/null", O_RDWR));
        MUST(dup(0));
        MUST(dup(0));
        evict(m, 2 * MIB);
        check(m, 2 * MIB, 1, "memory in a daemon");
        fill(m, 2 * MIB, 2);
        evict(m, 2 * MIB);
        check(m, 2 * MIB, 2, "what a daemon wrote");
        fd = MUST(open(path, O_WRONLY));
        REQUIRE(write(fd, "good", 4) == 4);
        REQUIRE(write(ends[1], "x", 1) == 1);
        exit(0);
    }
    wait_ok(pid);
    close(ends[1]);
    char text[8] = { 0 };
    REQUIRE(read(ends[0], text, 1) == 1);
    REQUIRE(pread(fd, text, 8, 0) == 4 && strcmp(text, "good") == 0);
    unlink(path);
    /* The C library's own daemon(). */
    MUST(pipe(ends));
    pid = MUST(fork());
    if (pid == 0) {
        MUST(daemon(0, 0));
        evict(m, 2 * MIB);
        check(m, 2 * MIB, 1, "memory after daemon()");
        REQUIRE(write(ends[1], "y", 1) == 1);
        _exit(0);
    }
    wait_ok(pid);
    close(ends[1]);
    REQUIRE(read(ends[0], text, 1) == 1 && text[0] == 'y');
    check(m, 2 * MIB, 1, "in the first process");
    return ok();
}
