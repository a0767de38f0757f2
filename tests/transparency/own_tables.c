/* Threads with tables of descriptors of their own are one process with one part of the budget: what one of them was granted is there
 * for the others, also when the thread is gone that was the first. */
#include "pressure.h"
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

enum { ROUNDS = 2 };

static unsigned char *m;
static size_t size = 2 * MIB;

/* More than fits, again and again, for longer than a process goes without a look at the tree. */
static void press(void)
{
    size_t len = budget() ? budget() + budget() / 4 : MIB;
    for (int round = 0; round < ROUNDS; round++) {
        volatile uint64_t *other = (uint64_t *)fresh(len);
        for (size_t i = 0; i < len / 8; i += PAGE / 8)
            other[i] = mix(i);
        for (size_t i = 0; i < len / 8; i += PAGE / 8)
            if (other[i] != mix(i))
                fail("what does not fit: word %zu", i);
        pages_evicted += budget() ? absent(m, size) : 0;
        MUST(munmap((void *)other, len));
        usleep(200000);
    }
}
static void *with_own_table(void *unused)
{
    MUST(syscall(SYS_unshare, CLONE_FILES));
    press();
    check(m, size, 1, "in a thread with a table of its own");
    return unused;
}
static int most;

/* Files of its own wherever it can have them: it must not get a number behind which the other threads have something else. */
static void *fill_own_table(void *unused)
{
    MUST(syscall(SYS_unshare, CLONE_FILES));
    int file = open("/dev/null", O_RDWR);
    MUST(file);
    int refused = 0;
    for (int fd = file + 1; fd < most; fd++) {
        int is_refused = dup2(file, fd) != fd;
        REQUIRE(!is_refused || errno == EBUSY);
        refused += is_refused;
    }
    REQUIRE((refused > 0) == (budget() > 0));
    press();
    check(m, size, 1, "in a thread with a table full of files");
    return unused;
}
/* What its numbers stand for the first thread goes on with. */
static void after_a_full_table(void)
{
    /* Ebb's numbers are not far beyond the limit, which is raised past them. */
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    rlim_t enough = limit.rlim_cur < 4096 ? limit.rlim_cur + 64 : 4096 + 64;
    limit.rlim_cur = limit.rlim_max < enough ? limit.rlim_max : enough;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    most = (int)limit.rlim_cur;
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, fill_own_table, NULL));
    ZERO(pthread_join(thread, NULL));
    press();
    check(m, size, 1, "after a thread with a table full of files");
    pid_t child = fork();
    MUST(child);
    if (child == 0) {
        press();
        check(m, size, 1, "in a child after it");
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
}
static void *become_another(void *self)
{
    MUST(syscall(SYS_unshare, CLONE_FILES));
    /* One that fails first. */
    REQUIRE(execl("/proc/self/fd/none", "none", (char *)NULL) == -1 && errno == ENOENT);
    press();
    check(m, size, 1, "after an exec that failed");
    execl(self, self, "again", (char *)NULL);
    fail("exec of itself");
    return NULL;
}
int main(int count, char **arguments)
{
    (void)arguments;
    m = fresh(size);
    fill(m, size, 1);
    if (count > 1) {
        press();
        check(m, size, 1, "after exec");
        return ok();
    }
    /* For the only thread it changes nothing; nor does what ends Ebb's threads. */
    press();
    MUST(syscall(SYS_unshare, CLONE_FILES));
    MUST(syscall(SYS_close_range, 1000, 1001, 2 /* CLOSE_RANGE_UNSHARE */));
    press();
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    press();
    check(m, size, 1, "in the only thread");
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        ZERO(pthread_create(&thread, NULL, with_own_table, NULL));
        ZERO(pthread_join(thread, NULL));
        press();
        check(m, size, 1, "in the first thread");
    }
    /* And where the first of them, which has the oldest table, does nothing. */
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        ZERO(pthread_create(&threads[i], NULL, with_own_table, NULL));
    for (int i = 0; i < 2; i++)
        ZERO(pthread_join(threads[i], NULL));
    check(m, size, 1, "with two");
    after_a_full_table();
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, become_another, "/proc/self/exe"));
    pause();
    return 1;
}
