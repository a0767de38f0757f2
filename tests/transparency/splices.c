/* vmsplice, splice, tee, sendfile and copy_file_range: pages lent to a pipe keep their content while pressure goes on. */
#include "pressure.h"
#include <sys/sendfile.h>
#include <sys/uio.h>
#define LEN (12 * PAGE)
int main(void)
{
    unsigned char *m = fresh(MIB), *back = fresh(MIB);
    int ends[2], more[2];
    char path[] = "/tmp/ebb-splice-XXXXXX";
    int fd = MUST(mkstemp(path));
    unlink(path);
    MUST(pipe(ends));
    MUST(pipe(more));
    for (int round = 0; round < 4; round++) {
        fill(m, MIB, round);
        struct iovec *piece = (struct iovec *)(m + MIB - PAGE - 8);
        unsigned char saved[sizeof *piece];
        memcpy(saved, piece, sizeof saved);
        *piece = (struct iovec){ m + 16 * PAGE, LEN };
        evict(m, MIB);
        REQUIRE(vmsplice(ends[1], piece, 1, round == 3 ? SPLICE_F_GIFT : 0) == (ssize_t)LEN);
        memcpy(piece, saved, sizeof saved);
        evict(m, MIB);
        REQUIRE(tee(ends[0], more[1], LEN, 0) == (ssize_t)LEN);
        evict(back, MIB);
        REQUIRE(read(ends[0], back, LEN) == (ssize_t)LEN);
        REQUIRE(read(more[0], back + MIB / 2, LEN) == (ssize_t)LEN);
        for (size_t i = 0; i < LEN; i++)
            REQUIRE(back[i] == pattern(16 * PAGE + i, round) && back[MIB / 2 + i] == back[i]);
        check(m, MIB, round, "memory that was lent to a pipe");
        loff_t *offset = (loff_t *)(back + 100 * PAGE - 8);
        *offset = 0;
        REQUIRE(write(ends[1], m, LEN) == (ssize_t)LEN);
        evict(back, MIB);
        REQUIRE(splice(ends[0], NULL, fd, offset, LEN, 0) == (ssize_t)LEN && *offset == (loff_t)LEN);
        *offset = 0;
        evict(back, MIB);
        REQUIRE(sendfile(ends[1], fd, offset, LEN) == (ssize_t)LEN && *offset == (loff_t)LEN);
        evict(back, MIB);
        /* vmsplice in the other direction: from the pipe to memory. */
        struct iovec to = { back + 8 * PAGE, LEN };
        REQUIRE(vmsplice(ends[0], &to, 1, 0) == (ssize_t)LEN);
        check(back + 8 * PAGE, LEN, round, "what came from a pipe");
    }
    return ok();
}
