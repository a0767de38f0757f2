/* munmap of evicted memory, and new mappings of every kind over it: nothing of the old content comes back. */
#include "pressure.h"
#include <sys/socket.h>
#define LEN (2 * MIB)
static const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS, rw = PROT_READ | PROT_WRITE;
int main(void)
{
    unsigned char *m = fresh(LEN);
    int fd = MUST(memfd_create("file", MFD_CLOEXEC));
    unsigned char *text = malloc(LEN);
    fill(text, LEN, 9);
    REQUIRE(write(fd, text, LEN) == (ssize_t)LEN);
    for (int round = 0; round < 2; round++) {
        fill(m, LEN, 1);
        evict(m, LEN);
        MUST(munmap(m + 32 * PAGE, 100 * PAGE));
        unsigned char *at = mmap(m + 32 * PAGE, 100 * PAGE, rw, anonymous | MAP_FIXED, -1, 0);
        REQUIRE(at == m + 32 * PAGE);
        check_zero(at, 100 * PAGE, "new memory where other was unmapped");
        check(m, 32 * PAGE, 1, "memory in front of it");
        for (size_t i = 132 * PAGE; i < LEN; i++)
            REQUIRE(m[i] == pattern(i, 1));

        fill(m, LEN, 2);
        evict(m, LEN);
        REQUIRE(mmap(m + 7 * PAGE, 200 * PAGE, rw, anonymous | MAP_FIXED, -1, 0) == m + 7 * PAGE);
        check_zero(m + 7 * PAGE, 200 * PAGE, "new memory over old");

        /* A private file mapping over evicted memory, written to, and anonymous memory again. */
        fill(m, LEN, 3);
        evict(m, LEN);
        REQUIRE(mmap(m, LEN, rw, MAP_PRIVATE | MAP_FIXED, fd, 0) == m);
        check(m, LEN, 9, "a file mapped over old memory");
        m[5] ^= 0xff;
        evict(m, LEN);
        REQUIRE(m[5] == (pattern(5, 9) ^ 0xff));
        m[5] ^= 0xff;
        check(m, LEN, 9, "a private file mapping");
        REQUIRE(mmap(m, LEN, rw, anonymous | MAP_FIXED, -1, 0) == m);
        check_zero(m, LEN, "new memory over a file mapping");

        /* Shared anonymous memory over evicted private memory. */
        fill(m, LEN, 4);
        evict(m, LEN);
        REQUIRE(mmap(m, LEN, rw, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == m);
        check_zero(m, LEN, "shared memory over old memory");
        pid_t pid = MUST(fork());
        if (pid == 0) {
            fill(m, LEN, 6);
            _exit(0);
        }
        wait_ok(pid);
        evict(m, LEN);
        check(m, LEN, 6, "what a child wrote to shared memory");
        REQUIRE(mmap(m, LEN, rw, anonymous | MAP_FIXED, -1, 0) == m);
        check_zero(m, LEN, "private memory over shared");

        REQUIRE(mmap(m, PAGE, rw, anonymous | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED && errno == EEXIST);

        /* What a mapping would have replaced is gone also when the file refuses to be mapped; then comes memory that is
         * not managed, and nothing of what was there before is taken for what it holds. */
        unsigned char *gone = fresh(LEN);
        fill(gone, LEN, 7);
        int socket_fd = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        REQUIRE(mmap(gone + 64 * PAGE, 128 * PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, socket_fd, 0) == MAP_FAILED);
        REQUIRE(errno == ENODEV);
        MUST(close(socket_fd));
        unsigned char *stack = mmap(gone + 64 * PAGE, 128 * PAGE, rw, anonymous | MAP_STACK, -1, 0);
        if (stack == gone + 64 * PAGE) {
            fill(stack, 128 * PAGE, 8);
            evict(gone, 64 * PAGE);
            evict(stack, 128 * PAGE);
            check(stack, 128 * PAGE, 8, "memory where other was that could not be replaced");
            check(gone, 64 * PAGE, 7, "memory in front of it");
        }
        MUST(munmap(gone, LEN));
        fill(m, LEN, 5);
        evict(m, LEN);
        MUST(munmap(m, LEN));
        REQUIRE(msync(m, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
        REQUIRE(mmap(m, LEN, rw, anonymous | MAP_FIXED_NOREPLACE, -1, 0) == m);
        check_zero(m, LEN, "memory mapped anew");
    }
    /* Unmapping across several mappings and holes at once. */
    unsigned char *parts = fresh(6 * MIB);
    fill(parts, 6 * MIB, 8);
    MUST(mprotect(parts + MIB, MIB, PROT_READ));
    MUST(munmap(parts + 3 * MIB, MIB));
    evict(parts, 3 * MIB);
    MUST(munmap(parts + 100 * PAGE, 5 * MIB));
    check(parts, 100 * PAGE, 8, "what was left of it");
    REQUIRE(munmap(parts + 1, PAGE) == -1 && errno == EINVAL);
    REQUIRE(munmap(parts, 0) == -1 && errno == EINVAL);
    return ok();
}
