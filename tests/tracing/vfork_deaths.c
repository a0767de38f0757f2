/* Children that share their parent's memory are killed at every step of their work: the parent goes on with all of its memory
 * whole, or it has been ended; it never waits for ever.
 *   vfork_deaths SEED SECONDS vfork|beside
 * `vfork`: the parent waits for its child; `beside`: both run. Prints `whole ROUNDS`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define PAGES 8192
static uint64_t *m, seed, state;
static volatile pid_t victim;
static int ends[2];
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}
static void die(const char *what, uint64_t page)
{
    printf("FAIL %s at page %lu, seed %lu\n", what, page, seed);
    fflush(stdout);
    _exit(1);
}
/* What the victim does until it is killed: reads, writes what is there already, and system calls of evicted pages. */
static int use(void *argument)
{
    uint64_t at = (uint64_t)argument;
    for (;;) {
        at = mix(at + 1);
        uint64_t page = at % PAGES;
        if (m[page * 512] != mix(page ^ seed))
            _exit(9);
        m[page * 512 + 100] = mix(page + seed);
        if (at >> 60 == 3) {
            void *more = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            memset(more, 1, 1 << 16);
            munmap(more, 1 << 16);
        }
        if (at >> 60 == 4)
            syscall(SYS_write, ends[1], m + page * 512, 4096);
    }
}
int main(int count, char **words)
{
    static unsigned char stack[1 << 18] __attribute__((aligned(64)));
    int status, flags = CLONE_VM | SIGCHLD;
    uint64_t rounds = 0;
    seed = strtoull(words[1], NULL, 10);
    double until = now() + atof(words[2]);
    if (count > 3 && !strcmp(words[3], "vfork"))
        flags |= CLONE_VFORK;
    state = mix(seed);
    m = mmap(NULL, (size_t)PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint64_t page = 0; page < PAGES; page++)
        m[page * 512] = mix(page ^ seed);
    if (pipe2(ends, O_NONBLOCK))
        return 2;
    /* Who kills: a process with memory of its own, told of each victim by a pipe. */
    int orders[2];
    if (pipe(orders))
        return 2;
    pid_t killer = fork();
    if (killer == 0) {
        pid_t order[2];
        close(orders[1]);
        while (read(orders[0], order, sizeof order) == sizeof order) {
            struct timespec time = { 0, order[1] * 1000L };
            nanosleep(&time, NULL);
            kill(order[0], SIGKILL);
        }
        _exit(0);
    }
    do {
        state = mix(state + 1);
        pid_t child;
        if (flags & CLONE_VFORK) {
            /* Its number is known only inside: it tells the killer itself. */
            child = vfork();
            if (child == 0) {
                pid_t order[2] = { getpid(), (pid_t)(state % 4000) };
                syscall(SYS_write, orders[1], order, sizeof order);
                use((void *)state);
            }
        } else {
            child = clone(use, stack + sizeof stack, flags, (void *)state);
            pid_t order[2] = { child, (pid_t)(state % 4000) };
            if (child < 0 || write(orders[1], order, sizeof order) != sizeof order)
                die("clone", 0);
        }
        for (int i = 0; i < 200; i++) {
            uint64_t page = mix(state + i) % PAGES;
            if (m[page * 512] != mix(page ^ seed))
                die("memory", page);
        }
        if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
            die("child", status);
        char sink[65536];
        while (read(ends[0], sink, sizeof sink) > 0)
            ;
        rounds++;
    } while (now() < until);
    for (uint64_t page = 0; page < PAGES; page++)
        if (m[page * 512] != mix(page ^ seed))
            die("memory", page);
    close(orders[1]);
    waitpid(killer, &status, 0);
    printf("whole %lu\n", rounds);
    return 0;
}
