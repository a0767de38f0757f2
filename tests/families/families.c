/* A family of processes that fork, call exec, die and stay zombies while their memory is swapped out; every byte is
   checked. All of it follows from the seed, as far as the scheduler allows.

   usage: families SEED STEPS MEGABYTES CHILDREN [burst]

   CHILDREN is how many are alive at once at most; each may have one of its own. With `burst` some steps make 70 idle ones. At
   the end this process alone is left, says `quiet` with its number and its bytes, and waits for the end of its input. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 512, LIVE_MAX = 16, BURST = 70, DEPTH_MAX = 2 };

static uint64_t *memory;
static size_t nr_pages;
static uint32_t *version;
static uint64_t seed, state;
static int depth, children_max;

/* What a child is, and how it may end. */
enum kind { WORKS, EXECS, IS_ZOMBIE, HAS_NAMESPACE, KILLED, ORPHANS, KINDS };
static const char *kind_names[] = { "works", "execs", "zombie", "namespace", "killed", "orphans" };
static long made[KINDS];
/* `done` can be read to its end when nobody is left of an orphan. */
static struct { pid_t pid; enum kind kind; int done; } live[LIVE_MAX];
static int nr_live;

static uint64_t next(uint64_t *x) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static unsigned below(unsigned n) { return (next(&state) >> 11) % n; }

static uint64_t start_of(size_t page) {
    return (page + 1) * 0x9e3779b97f4a7c15 ^ (uint64_t)(version[page] + 1) << 40 ^ (seed | 1);
}

static void write_page(size_t page, uint32_t to) {
    version[page] = to;
    uint64_t x = start_of(page), *word = memory + page * WORDS;
    for (int i = 0; i < WORDS; i++)
        word[i] = next(&x);
}

static void fail(const char *what, size_t page, int at) {
    fprintf(stderr, "families: seed %llu: %s, page %zu word %d in process %d, depth %d\n", (unsigned long long)seed, what, page,
            at, (int)getpid(), depth);
    _exit(1);
}

static void check_page(size_t page) {
    uint64_t x = start_of(page), *word = memory + page * WORDS;
    for (int i = 0; i < WORDS; i++)
        if (word[i] != next(&x))
            fail("wrong bytes", page, i);
}

static void rewrite(unsigned percent) {
    for (size_t page = 0; page < nr_pages; page++)
        if (below(100) < percent)
            write_page(page, version[page] + 1 + below(3));
}

static void check(unsigned percent) {
    for (size_t page = 0; page < nr_pages; page++)
        if (percent == 100 || below(100) < percent)
            check_page(page);
}

static void rest(unsigned microseconds) {
    struct timespec t = { 0, microseconds * 1000L };
    nanosleep(&t, NULL);
}

/* Waits for a child, which must have ended as its kind does. */
static void reap(int i) {
    int status;
    pid_t pid = live[i].pid;
    enum kind kind = live[i].kind;
    if (kind == EXECS)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            fail("a child is lost", 0, errno);
    if (kind == ORPHANS) {
        char byte;
        while (read(live[i].done, &byte, 1) < 0 && errno == EINTR)
            ;
        close(live[i].done);
    }
    live[i] = live[--nr_live];
    int by_kill = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    int may_be_killed = kind == KILLED || kind == ORPHANS || kind == EXECS;
    if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0) && !(by_kill && may_be_killed)) {
        fprintf(stderr, "families: seed %llu: a child that %s ended with status %#x\n", (unsigned long long)seed, kind_names[kind], status);
        _exit(1);
    }
}

static void reap_all(void) {
    while (nr_live > 0)
        reap(nr_live - 1);
}

static void work(void);

/* A child's life. */
static void live_as_child(uint64_t own_seed) {
    state = own_seed | 1;
    nr_live = 0;
    depth++;
    children_max = 1;
    for (unsigned steps = 1 + below(4); steps > 0; steps--)
        work();
    reap_all();
    check(100);
    _exit(0);
}

static void make(enum kind kind) {
    uint64_t own_seed = next(&state);
    unsigned wait = below(1500);
    made[kind]++;
    int done[2] = { -1, -1 };
    if (kind == ORPHANS && pipe(done) < 0)
        fail("no pipe", 0, errno);
    unsigned long flags = SIGCHLD | (kind == HAS_NAMESPACE ? CLONE_NEWPID : 0);
    pid_t pid = kind == HAS_NAMESPACE ? syscall(SYS_clone, flags, 0, 0, 0, 0) : fork();
    if (pid < 0)
        fail("no child", kind, errno);
    if (pid == 0) {
        int status;
        switch (kind) {
        case EXECS:
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            execl("/bin/sleep", "sleep", "9d", (char *)NULL);
            _exit(1);
        case IS_ZOMBIE:
            _exit(0);
        case HAS_NAMESPACE: {
            /* The namespace's first process gives its memory up, its child needs it. */
            pid_t inner = fork();
            if (inner == 0)
                live_as_child(own_seed);
            munmap(memory, nr_pages * WORDS * 8);
            if (inner < 0 || waitpid(inner, &status, 0) != inner)
                _exit(1);
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
        }
        case ORPHANS:
            if (fork() == 0)
                live_as_child(own_seed);
            kill(getpid(), SIGKILL);
            _exit(1);
        case WORKS:
        case KILLED:
        case KINDS:
            live_as_child(own_seed);
        }
    }
    if (kind == ORPHANS)
        close(done[1]);
    live[nr_live].pid = pid;
    live[nr_live].done = done[0];
    live[nr_live++].kind = kind;
    if (kind == KILLED) {
        /* Often before it has run at all. */
        if (wait >= 500)
            rest(wait - 500);
        kill(pid, SIGKILL);
    }
}

static int has_namespaces;

static void work(void) {
    if (nr_live >= children_max)
        reap(below(nr_live));
    switch (below(depth < DEPTH_MAX ? 8 : 2)) {
    case 0:
        return rewrite(10 + below(90));
    case 1:
        return check(10 + below(90));
    default: {
        enum kind kind = below(KINDS);
        return make(kind == HAS_NAMESPACE && !has_namespaces ? WORKS : kind);
    }
    }
}

/* Seventy children that do nothing until this process has other content. */
static void burst(void) {
    int go[2];
    pid_t pids[BURST];
    reap_all();
    if (pipe(go) < 0)
        fail("no pipe", 0, errno);
    for (int i = 0; i < BURST; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            fail("no child", i, errno);
        if (pids[i] == 0) {
            char byte;
            close(go[1]);
            while (read(go[0], &byte, 1) < 0 && errno == EINTR)
                ;
            for (size_t page = i % 7; page < nr_pages; page += 7)
                check_page(page);
            _exit(0);
        }
    }
    close(go[0]);
    rewrite(100);
    close(go[1]);
    for (int i = 0; i < BURST; i++) {
        int status;
        if (waitpid(pids[i], &status, 0) != pids[i] || status != 0)
            fail("one of seventy ended badly", i, status);
    }
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: families SEED STEPS MEGABYTES CHILDREN [burst]\n");
        return 2;
    }
    seed = strtoull(argv[1], NULL, 10);
    state = seed * 0x9e3779b97f4a7c15 | 1;
    nr_pages = (size_t)atoi(argv[3]) * 256;
    children_max = atoi(argv[4]) < LIVE_MAX ? atoi(argv[4]) : LIVE_MAX;
    int bursts = argc > 5;
    has_namespaces = geteuid() == 0;
    /* Orphans are waited for. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    memory = mmap(NULL, nr_pages * WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    version = calloc(nr_pages, sizeof *version);
    if (memory == MAP_FAILED || !version)
        fail("no memory", 0, errno);
    rewrite(100);
    for (int step = 0; step < atoi(argv[2]); step++) {
        if (bursts && below(20) == 0)
            burst();
        else
            work();
    }
    reap_all();
    for (int status; waitpid(-1, &status, 0) > 0 || errno == EINTR;)
        if (status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
            fail("an orphan ended badly", 0, status);
    check(100);
    for (int i = 0; i < 2; i++)
        rewrite(100);
    printf("quiet %d %zu", (int)getpid(), nr_pages * WORDS * 8);
    for (int kind = 0; kind < KINDS; kind++)
        printf(" %s:%ld", kind_names[kind], made[kind]);
    printf("\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    check(100);
    return 0;
}
