/* What a small process may have done before it grows, each in a program of its own, which then grows: all descriptors in use,
 * a limit on files, memory given up by MADV_FREE, a child between clone and exec in another pid namespace, its first mapping
 * beside that of libc, and forks while a signal arrives whose handler grows. Limits are set before the program begins: to
 * set one is a reason to be managed. */
#define _GNU_SOURCE
#include "pressure.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

static unsigned char *map(size_t bytes)
{
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    return at;
}

/* Grows far beyond what a small process has, in steps, and verifies it all. */
static void grow(void)
{
    enum { STEPS = 40, BYTES = 1 << 20 };
    unsigned char *steps[STEPS];
    for (int i = 0; i < STEPS; i++) {
        steps[i] = map(BYTES);
        fill(steps[i], BYTES, i);
    }
    for (int i = 0; i < STEPS; i++)
        check(steps[i], BYTES, i, "what it grew by");
}

static void few_descriptors(void)
{
    struct rlimit limit = {.rlim_cur = 256, .rlim_max = 1024};
    ZERO(setrlimit(RLIMIT_NOFILE, &limit));
}

static void all_descriptors_in_use(void)
{
    enum { STEPS = 60, BYTES = 64 << 10, CLOSED = 32 };
    int last = -1;
    for (int fd; (fd = open("/dev/null", O_RDONLY)) >= 0; last = fd)
        ;
    REQUIRE(last > CLOSED);
    for (int i = 0; i < STEPS; i++) {
        unsigned char *at = malloc(BYTES);
        fill(at, BYTES, i);
        check(at, BYTES, i, "memory without descriptors");
    }
    for (int fd = last - CLOSED; fd <= last; fd++)
        close(fd);
    grow();
}

static void small_files(void)
{
    struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
    ZERO(setrlimit(RLIMIT_FSIZE, &limit));
}

static void given_up(void)
{
    static const unsigned char zeros[PAGE];
    unsigned char *at = map(1 << 20), *copy = map(1 << 20);
    fill(at, 1 << 20, 3);
    memcpy(copy, at, 1 << 20);
    ZERO(madvise(at, 1 << 20, MADV_FREE));
    grow();
    for (size_t i = 0; i < 1 << 20; i += PAGE)
        REQUIRE(memcmp(at + i, zeros, PAGE) == 0 || memcmp(at + i, copy + i, PAGE) == 0);
    fill(at, 1 << 20, 4);
    grow();
    check(at, 1 << 20, 4, "what was used again");
}

static void first_mapping_moves(void)
{
    unsigned char *at = map(1 << 20);
    fill(at, 1 << 20, 5);
    grow();
    at = mremap(at, 1 << 20, 4 << 20, MREMAP_MAYMOVE);
    REQUIRE(at != MAP_FAILED);
    check(at, 1 << 20, 5, "what mremap moved");
}

static int in_namespace(void *arg)
{
    (void)arg;
    unsigned char *at = map(48 * MIB);
    for (size_t i = 0; i < 48 * MIB; i += 4096)
        at[i] = 1;
    munmap(at, 48 * MIB);
    execl("/bin/true", "true", (char *)NULL);
    _exit(4);
}

static void child_in_another_namespace(void)
{
    static unsigned char stack[1 << 16] __attribute__((aligned(64)));
    unsigned char *at = map(1 << 20);
    fill(at, 1 << 20, 6);
    int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
    pid_t pid = clone(in_namespace, stack + sizeof stack, flags | CLONE_NEWPID, NULL);
    if (pid < 0)
        pid = clone(in_namespace, stack + sizeof stack, flags, NULL);
    int status;
    REQUIRE(waitpid(pid, &status, 0) == pid && status == 0);
    check(at, 1 << 20, 6, "memory after the child's exec");
    grow();
    check(at, 1 << 20, 6, "memory after growth");
}

static unsigned char *by_handler;

static void on_alarm(int signal)
{
    (void)signal;
    if (!by_handler) {
        by_handler = map(24 * MIB);
        fill(by_handler, 24 * MIB, 9);
    }
}

static void forks_while_a_handler_grows(void)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    ZERO(sigaction(SIGALRM, &action, NULL));
    struct itimerval soon = {.it_value.tv_usec = 3000};
    ZERO(setitimer(ITIMER_REAL, &soon, NULL));
    for (int i = 0; i < 100; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            if (by_handler)
                check(by_handler, 24 * MIB, 9, "what the handler made, in a child");
            _exit(0);
        }
        int status;
        REQUIRE(waitpid(pid, &status, 0) == pid && status == 0);
        if (i > 20 && by_handler)
            break;
    }
    while (!by_handler)
        usleep(1000);
    check(by_handler, 24 * MIB, 9, "what the handler made");
}

int main(int argc, char **argv)
{
    static const struct {
        void (*before)(void), (*run)(void);
    } cases[] = {{few_descriptors, all_descriptors_in_use}, {small_files, grow}, {NULL, given_up},
                 {NULL, first_mapping_moves}, {NULL, child_in_another_namespace}, {NULL, forks_while_a_handler_grows}};
    if (argc > 1) {
        cases[atoi(argv[1])].run();
        return 0;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            char number[] = {(char)('0' + i), 0};
            if (cases[i].before)
                cases[i].before();
            execl("/proc/self/exe", argv[0], number, (char *)NULL);
            _exit(5);
        }
        int status;
        REQUIRE(waitpid(pid, &status, 0) == pid);
        if (status != 0)
            fprintf(stderr, "case %zu ended with %d\n", i, status);
        REQUIRE(status == 0);
    }
    return ok();
}
