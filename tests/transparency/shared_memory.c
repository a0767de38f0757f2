/* Shared mappings stay shared across fork and are never private copies: anonymous, memfd, System V, file. */
#include "pressure.h"
#include <sys/shm.h>
static void exchange(unsigned char *m, const char *what)
{
    fill(m, MIB, 1);
    evict(m, MIB);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        check(m, MIB, 1, what);
        fill(m, MIB, 2);
        _exit(0);
    }
    wait_ok(pid);
    evict(m, MIB);
    check(m, MIB, 2, what);
    fill(m, MIB, 1);
    evict(m, MIB);
    check(m, MIB, 1, what);
}
int main(void)
{
    int rw = PROT_READ | PROT_WRITE;
    exchange(MUST(mmap(NULL, MIB, rw, MAP_SHARED | MAP_ANONYMOUS, -1, 0)), "shared anonymous memory");
    int fd = MUST(memfd_create("shared", MFD_CLOEXEC));
    MUST(ftruncate(fd, MIB));
    unsigned char *m = MUST(mmap(NULL, MIB, rw, MAP_SHARED, fd, 0)), *twin = MUST(mmap(NULL, MIB, rw, MAP_SHARED, fd, 0));
    exchange(m, "a shared memfd");
    check(twin, MIB, 1, "the same memfd mapped twice");
    int id = shmget(IPC_PRIVATE, MIB, IPC_CREAT | 0600);
    if (id >= 0) {
        m = MUST(shmat(id, NULL, 0));
        shmctl(id, IPC_RMID, NULL);
        exchange(m, "System V shared memory");
        MUST(shmdt(m));
    }
    char path[] = "/tmp/ebb-shared-XXXXXX";
    fd = MUST(mkstemp(path));
    unlink(path);
    MUST(ftruncate(fd, MIB));
    exchange(MUST(mmap(NULL, MIB, rw, MAP_SHARED, fd, 0)), "a shared file");
    return ok();
}
