/* A real SIGBUS, of a mapping beyond the end of its file, reaches the program's handler with its address and code. */
#include "pressure.h"
static sigjmp_buf jump;
static volatile size_t hits;
static unsigned char *file_map;
static void handler(int signal, siginfo_t *info, void *context)
{
    (void)context;
    REQUIRE(signal == SIGBUS && info->si_signo == SIGBUS && info->si_code == BUS_ADRERR);
    REQUIRE((unsigned char *)info->si_addr == file_map + 3 * PAGE + 17);
    hits++;
    siglongjmp(jump, 1);
}
int main(void)
{
    unsigned char *m = fresh(MIB);
    int fd = MUST(memfd_create("short", MFD_CLOEXEC));
    MUST(ftruncate(fd, 4 * PAGE));
    fill(m, MIB, 1);
    for (volatile int shared = 0; shared < 2; shared++) {
        int flags = shared ? MAP_SHARED : MAP_PRIVATE;
        MUST(ftruncate(fd, 4 * PAGE));
        file_map = MUST(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, flags, fd, 0));
        file_map[0] = 1;
        MUST(ftruncate(fd, 2 * PAGE));
        handle(SIGBUS, handler, 0);
        for (volatile int i = 0; i < 20; i++) {
            if (i % 10 == 0)
                evict(m, MIB);
            if (sigsetjmp(jump, 1) == 0) {
                if (i % 2)
                    file_map[3 * PAGE + 17] = 1;
                else
                    fail("read %d beyond the end of the file", ((volatile unsigned char *)file_map)[3 * PAGE + 17]);
                fail("wrote beyond the end of the file");
            }
            REQUIRE(hits == (size_t)(shared * 20 + i + 1));
        }
    }
    check(m, MIB, 1, "after real bus errors");
    return ok();
}
