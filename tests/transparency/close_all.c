/* A program that closes every descriptor, by every way, keeps its memory; later descriptors begin at the lowest number. */
#include "pressure.h"
#include <dirent.h>
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
static unsigned char *m;
static void body(void *argument)
{
    int how = *(int *)argument;
    if (how == 0) {
        for (int fd = 3; fd < 4096; fd++)
            close(fd);
    } else if (how == 1) {
        MUST(syscall(SYS_close_range, 3, ~0u, 0));
    } else if (how == 2) {
        closefrom(3);
    } else if (how == 3) {
        DIR *directory = opendir("/proc/self/fd");
        REQUIRE(directory);
        int list[256], n = 0;
        for (struct dirent *entry; (entry = readdir(directory)) && n < 256;) {
            int fd = atoi(entry->d_name);
            if (entry->d_name[0] != '.' && fd > 2 && fd != dirfd(directory))
                list[n++] = fd;
        }
        closedir(directory);
        for (int i = 0; i < n; i++)
            close(list[i]);
    } else if (how == 4) {
        for (int fd = sysconf(_SC_OPEN_MAX) - 1; fd > 2; fd--)
            close(fd);
    } else if (how == 5) {
        MUST(syscall(SYS_close_range, 3, ~0u, 4 /* CLOSE_RANGE_CLOEXEC */));
        MUST(syscall(SYS_close_range, 3, ~0u, 2 /* CLOSE_RANGE_UNSHARE */));
    } else {
        for (long fd = 3; fd < 2000; fd++)
            syscall(SYS_close, fd);
    }
    for (int i = 0; i < 2; i++) {
        evict(m, 2 * MIB);
        check(m, 2 * MIB, 1, "memory after all descriptors were closed");
        fill(m, 2 * MIB, 1);
    }
    int a = MUST(open("/dev/null", O_RDWR)), b = MUST(dup(0));
    REQUIRE(a == 3 && b == 4);
    close(a);
    REQUIRE(close(a) == -1 && errno == EBADF);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        check(m, 2 * MIB, 1, "memory in a child after all descriptors were closed");
        execl("/bin/true", "true", (char *)NULL);
        _exit(126);
    }
    wait_ok(pid);
}
int main(void)
{
    m = fresh(2 * MIB);
    fill(m, 2 * MIB, 1);
    for (int how = 0; how < 7; how++) {
        evict(m, 2 * MIB);
        pid_t pid = child_of(body, &how);
        wait_ok(pid);
    }
    return ok();
}
