/* Memory that the kernel was lent by vmsplice stays what was lent, also when it is unlocked meanwhile, or not locked: what is kept
 * for one reason is not let go for another. */
#include "pressure.h"
#include <sys/uio.h>
#define LEN MIB
#define PIPES 24

/* Unlocks, or has a lock refused, of what `m` and the unmapped page after it are. */
static void unlock(unsigned char *m, int how)
{
    switch (how % 3) {
    case 0:
        MUST(munlock(m, LEN));
        break;
    case 1:
        REQUIRE(mlock(m, LEN + PAGE) == -1);
        break;
    default:
        if (mlock(m, LEN) == 0)
            MUST(munlock(m, LEN));
    }
}

int main(void)
{
    static unsigned char back[LEN];
    int ends[PIPES][2];
    unsigned char *m[PIPES];
    size_t lent[PIPES];
    for (int i = 0; i < PIPES; i++) {
        m[i] = fresh(LEN + PAGE);
        MUST(munmap(m[i] + LEN, PAGE));
        fill(m[i], LEN, i);
        MUST(pipe2(ends[i], O_CLOEXEC));
        if (fcntl(ends[i][1], F_SETPIPE_SZ, (int)LEN) < 0)
            return skip("a pipe cannot be that large here");
        struct iovec piece = { m[i], LEN };
        lent[i] = MUST(vmsplice(ends[i][1], &piece, 1, 0));
        close(ends[i][1]);
        unlock(m[i], i);
    }
    churn(budget() ? budget() * 3 / 2 : 32 * MIB, 6);
    for (int i = 0; i < PIPES; i++) {
        pages_evicted += absent(m[i], LEN);
        for (size_t got = 0; got < lent[i];)
            got += MUST(read(ends[i][0], back + got, lent[i] - got));
        check(back, lent[i], i, "what was put into the pipe");
        check(m[i], LEN, i, "what was lent");
    }
    return ok();
}
