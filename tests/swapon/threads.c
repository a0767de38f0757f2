/* threads MODE STOP [MEGABYTES]: threads that hold memory, change some of it and check all of it, until the file STOP is
 * there. `ready MODE PID`, then `round MODE N`, and at last `done MODE N`, with N what MODE counts.
 *
 * MODE: plain; exited, the first thread ends by pthread_exit; unshare and close_range, a thread gets descriptors of its
 * own; spawn, two threads start programs all the time (in memory that they share with their parent until these begin);
 * exec, the program executes itself all the time, N times; small, it holds nothing until a line comes on standard input. */
#define _GNU_SOURCE
#include <linux/close_range.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 2
#define WORDS ((1 << 18) / sizeof(uint64_t))

static const char *mode, *stop;
static size_t megabytes = 48;
static long count;
static volatile int grown, is_apart;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int is(const char *name) { return !strcmp(mode, name); }

static uint64_t next(uint64_t *x) { return *x = *x * 6364136223846793005u + 1442695040888963407u; }

static void say(const char *word, long n) {
    char line[80];
    int len = snprintf(line, sizeof line, "%s %s %ld\n", word, mode, n);
    if (write(1, line, len) != len)
        _exit(1);
}

/* Each block begins with what all of it follows from. */
static void fill(uint64_t *block, uint64_t seed) {
    block[0] = seed;
    for (size_t i = 1; i < WORDS; i++)
        block[i] = next(&seed);
}

static void check(uint64_t *block, uint64_t expected) {
    uint64_t seed = block[0];
    if (seed != expected)
        say("WRONG first", (long)seed), _exit(3);
    for (size_t i = 1; i < WORDS; i++)
        if (block[i] != next(&seed))
            say("WRONG word", (long)i), _exit(3);
}

static void *hold(void *at) {
    size_t blocks = megabytes * 4 / THREADS;
    uint64_t *data = mmap(NULL, blocks << 18, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t *seeds = calloc(blocks, sizeof *seeds), x = (uint64_t)at;
    if (data == MAP_FAILED || !seeds)
        _exit(2);
    for (size_t i = 0; i < blocks; i++)
        fill(data + i * WORDS, seeds[i] = next(&x));
    if (__atomic_add_fetch(&grown, 1, __ATOMIC_SEQ_CST) == THREADS && !is("small") && !is_apart)
        say("ready", getpid());
    for (long round = 1;; round++) {
        int last = access(stop, F_OK) == 0;
        for (size_t i = 0; i < blocks; i++) {
            check(data + i * WORDS, seeds[i]);
            if (next(&x) >> 61 == 0)
                fill(data + i * WORDS, seeds[i] = next(&x));
        }
        if (at == (void *)1)
            say("round", round);
        if (last)
            return NULL;
    }
}

static char *argv_true[] = {"true", NULL}, *no_environment[] = {NULL};

static pid_t __attribute__((noinline)) start_by_vfork(void) {
    pid_t pid = vfork();
    if (pid == 0) {
        execve("/bin/true", argv_true, no_environment);
        _exit(4);
    }
    return pid;
}

static void *spawn(void *unused) {
    long n = 0;
    (void)unused;
    while (access(stop, F_OK)) {
        pid_t pid;
        int status = 0;
        if (n % 2 == 0) {
            if (posix_spawn(&pid, "/bin/true", NULL, NULL, argv_true, no_environment))
                say("WRONG spawn", n), _exit(3);
        } else {
            pid = start_by_vfork();
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
            say("WRONG status", status), _exit(3);
        n++;
    }
    pthread_mutex_lock(&lock);
    count += n;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void *apart(void *unused) {
    (void)unused;
    if (is("unshare") ? unshare(CLONE_FILES) : close_range(3000, ~0U, CLOSE_RANGE_UNSHARE))
        say("WRONG call", 0), _exit(3);
    say("ready", getpid());
    while (access(stop, F_OK))
        usleep(10000);
    return NULL;
}

static void *end(void *threads) {
    pthread_t *all = threads;
    for (int i = 0; i < THREADS; i++)
        pthread_join(all[i], NULL);
    say("done", count);
    exit(0);
}

int main(int argc, char **argv) {
    static pthread_t all[THREADS], other[2], last;
    int others = 0;
    if (argc < 3)
        return 2;
    mode = argv[1], stop = argv[2];
    if (argc > 3)
        megabytes = strtoul(argv[3], NULL, 10);
    if (is("exec")) {
        long n = argc > 4 ? atol(argv[4]) : 0;
        char text[32];
        uint64_t *data = malloc(megabytes << 20);
        if (n == 0)
            say("ready", getpid());
        for (size_t i = 0; i < megabytes * 4; i++)
            fill(data + i * WORDS, i);
        for (size_t i = 0; i < megabytes * 4; i++)
            check(data + i * WORDS, i);
        usleep(1000 * (n % 64));
        if (access(stop, F_OK) == 0) {
            say("done", n);
            return 0;
        }
        snprintf(text, sizeof text, "%ld", n + 1);
        execl("/proc/self/exe", argv[0], mode, stop, argv[3], text, NULL);
        return 5;
    }
    is_apart = is("unshare") || is("close_range");
    if (is("small")) {
        say("ready", getpid());
        if (getchar() == EOF)
            return 1;
    }
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&all[i], NULL, hold, (void *)(i + 1)))
            return 2;
    while (grown < THREADS)
        usleep(1000);
    if (is_apart)
        others = !pthread_create(&other[0], NULL, apart, NULL);
    if (is("spawn"))
        for (others = 0; others < 2; others++)
            if (pthread_create(&other[others], NULL, spawn, NULL))
                return 2;
    if (is("exited")) {
        if (pthread_create(&last, NULL, end, all))
            return 2;
        pthread_exit(NULL);
    }
    for (int i = 0; i < others; i++)
        pthread_join(other[i], NULL);
    end(all);
}
