/* A squeezed program for the kill test: a tree of processes that write and check memory for ever, each with a spill file in use.
 * Half of the pages do not compress, and of the others several fit in a slot of a file. All go on reading what they inherited from
 * the first one. That ends on SIGUSR1, and all rest on SIGUSR2 until they get another one.
 * Says `ready` once every process of the tree has gone round once. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#define PAGE 4096

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Every second page has few words that do not follow from their place. */
static uint64_t word_of(uint64_t seed, size_t i)
{
    return i / (PAGE / 8) % 2 == 0 || i % 4 == 0 ? mix(seed + i) : i / 8;
}

static size_t words;
static uint64_t *inherited;
static int announce;
static volatile sig_atomic_t resting;

static void on_rest(int signal)
{
    (void)signal;
    resting = !resting;
}

static void rest_if_told(size_t word)
{
    struct timespec look = { 0, 300000000 };
    while (word % (PAGE / 8) == 0 && resting)
        nanosleep(&look, NULL);
}

static void check_inherited(void)
{
    for (size_t i = 0; i < words; i++) {
        rest_if_told(i);
        if (inherited[i] != word_of(0, i)) {
            fprintf(stderr, "victim: inherited word %zu is %#lx, not %#lx\n", i, inherited[i], word_of(0, i));
            _exit(4);
        }
    }
}

static void *churn(void *argument)
{
    uint64_t seed = mix((uintptr_t)argument + getpid());
    uint64_t *memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        _exit(3);
    for (uint64_t round = 0;; round++) {
        for (size_t i = 0; i < words; i++) {
            rest_if_told(i);
            memory[i] = word_of(seed + round, i);
        }
        for (size_t i = 0; i < words; i++) {
            rest_if_told(i);
            if (memory[i] != word_of(seed + round, i)) {
                fprintf(stderr, "victim: word %zu is %#lx, not %#lx\n", i, memory[i], word_of(seed + round, i));
                _exit(4);
            }
        }
        if (!argument)
            check_inherited();
        if (round == 0 && write(announce, "r", 1) != 1)
            _exit(5);
        if (round == ~0ull)
            return argument;
    }
}

static void leave(int signal)
{
    (void)signal;
    _exit(0);
}

int main(int argc, char **argv)
{
    int children = argc > 1 ? atoi(argv[1]) : 2, threads = 2, ends[2];
    words = (size_t)(argc > 2 ? atoi(argv[2]) : 24) << 20 >> 3;
    if (pipe(ends) != 0)
        return 2;
    announce = ends[1];
    /* What the children inherit is evicted and shared with them. */
    inherited = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (inherited == MAP_FAILED)
        return 3;
    for (size_t i = 0; i < words; i++)
        inherited[i] = word_of(0, i);
    signal(SIGUSR2, on_rest);
    int parent = 1;
    for (int i = 0; i < children && parent; i++)
        parent = fork() != 0;
    if (parent)
        signal(SIGUSR1, leave);
    for (long i = 1; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, churn, (void *)i) != 0)
            return 6;
    }
    if (parent) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, churn, NULL) != 0)
            return 6;
        for (int i = 0; i < (children + 1) * threads; i++) {
            char byte;
            if (read(ends[0], &byte, 1) != 1)
                return 7;
        }
        if (write(1, "ready\n", 6) != 6)
            return 8;
        for (;;)
            check_inherited();
    }
    churn(NULL);
}
