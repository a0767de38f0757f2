/* A program that may write no files (RLIMIT_FSIZE 0) keeps its memory; its own writes fail as ever. */
#include "pressure.h"
#include <sys/resource.h>
int main(void)
{
    unsigned char *m = fresh(2 * MIB);
    char path[] = "/tmp/ebb-limit-XXXXXX";
    int fd = MUST(mkstemp(path));
    unlink(path);
    fill(m, 2 * MIB, 1);
    MUST(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 0, 0 }));
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 2; i++) {
        evict(m, 2 * MIB);
        check(m, 2 * MIB, 1, "memory of a program that may write no files");
        REQUIRE(write(fd, m, 100) == -1 && errno == EFBIG);
    }
    return ok();
}
