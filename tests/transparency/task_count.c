/* A program of one thread counts its tasks, by the links and the names of their directory and by the files that tell a number:
   it is alone, however much is swapped out beside it. */
#include "pressure.h"
#include <dirent.h>
#include <sys/sysmacros.h>
static int number_in(const char *path, const char *name, int field)
{
    char text[8192];
    int fd = MUST(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t n = MUST(read(fd, text, sizeof text - 1));
    close(fd);
    text[n] = 0;
    char *at = name ? strstr(text, name) : strrchr(text, ')');
    REQUIRE(at);
    if (name)
        return atoi(at + strlen(name));
    for (at += 1; field > 3; field--)
        at = strchr(at + 1, ' ');
    return atoi(at);
}
static int names(const char *path)
{
    DIR *directory = opendir(path);
    int n = 0;
    REQUIRE(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        n += entry->d_name[0] != '.';
    closedir(directory);
    return n;
}
static int has_ebbs;
static void look(int tasks)
{
    pid_t all[64];
    has_ebbs |= all_tasks(all, 64) > tasks;
    struct stat found;
    struct statx more;
    char path[64];
    int proc = MUST(open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    REQUIRE(names("/proc/self/task") == tasks);
    snprintf(path, sizeof path, "/proc/%d/task/", getpid());
    REQUIRE(names(path) == tasks);
    if (tasks > 1)
        goto out;
    MUST(fstatat(proc, "self/task/", &found, 0));
    REQUIRE(found.st_nlink == 3);
    MUST(stat("/proc/self/task", &found));
    REQUIRE(found.st_nlink == 3);
    MUST(syscall(SYS_stat, path, &found));
    REQUIRE(found.st_nlink == 3);
    MUST(syscall(SYS_statx, proc, "self/task", 0, STATX_NLINK, &more));
    REQUIRE(more.stx_nlink == 3);
    int own = MUST(open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    MUST(fstat(own, &found));
    REQUIRE(found.st_nlink == 3);
    MUST(syscall(SYS_fstat, own, &found));
    REQUIRE(found.st_nlink == 3);
    MUST(fstatat(own, "", &found, AT_EMPTY_PATH));
    REQUIRE(found.st_nlink == 3);
    close(own);
    /* Of others it is the truth. */
    MUST(stat("/proc/1/task", &found));
    REQUIRE((int)found.st_nlink == 2 + number_in("/proc/1/status", "Threads:", 0));
    REQUIRE(number_in("/proc/self/status", "Threads:", 0) == 1);
    REQUIRE(number_in("/proc/self/stat", NULL, 20) == 1);
    REQUIRE(number_in("/proc/thread-self/stat", NULL, 20) == 1);
out:
    close(proc);
}
static void *wait_for_end(void *end)
{
    char byte;
    REQUIRE(read(*(int *)end, &byte, 1) == 0);
    return NULL;
}
int main(void)
{
    size_t size = budget() ? budget() * 2 : 32 * MIB;
    unsigned char *memory = fresh(size);
    int ends[2];
    pthread_t thread;
    for (int round = 1; round < 4; round++) {
        fill(memory, size, round);
        look(1);
        check(memory, size, round, "beside the looks");
        pid_t pid = MUST(fork());
        if (pid == 0) {
            look(1);
            fill(memory, size / 2, round + 1);
            look(1);
            _exit(0);
        }
        wait_ok(pid);
    }
    /* What the kernel asks of a process that is alone. */
    if (geteuid() == 0)
        MUST(syscall(SYS_unshare, 0x10000000 /* CLONE_NEWUSER */));
    MUST(pipe(ends));
    ZERO(pthread_create(&thread, NULL, wait_for_end, &ends[0]));
    look(2);
    close(ends[1]);
    ZERO(pthread_join(thread, NULL));
    evict(memory, size);
    check(memory, size, 3, "at the end");
    /* Otherwise this has shown nothing. */
    const char *force = getenv("EBB_FORCE");
    REQUIRE(!budget() || !managed() || (force && strstr(force, "no-background")) || has_ebbs);
    return ok();
}
