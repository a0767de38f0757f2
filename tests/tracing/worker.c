/* Uses more memory than fits, by itself and by system calls, and checks each byte, while somebody traces or interrupts it.
 *   worker SEED SECONDS [profile] [keys] [tiles]
 * profile: a timer that fires as often as it can; keys: a protection-key register of the thread's own; tiles: AMX state.
 * Prints one line, which depends on the seed alone. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#define PAGES 8192
#define THREADS 2
static uint64_t *m, seed;
static double until;
static volatile int with_keys;
static _Atomic uint64_t ticks;
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
static uint32_t read_keys(void)
{
    uint32_t low, high;
    __asm__ volatile("rdpkru" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}
static void on_tick(int number)
{
    (void)number;
    ticks++;
}
static void *work(void *argument)
{
    uint64_t me = (uint64_t)argument, step = 0, state = mix(seed + me);
    int ends[2];
    uint64_t buffer[512], back[512];
    uint32_t keys = with_keys ? read_keys() & ~0xf0u : 0;
    if (pipe(ends))
        die("pipe", 0);
    do {
        for (int i = 0; i < 64; i++, step++) {
            state = mix(state + step);
            uint64_t page = state % (PAGES / THREADS) * THREADS + me, *at = m + page * 512;
            if (with_keys) {
                keys = (keys & ~0xf0u) | (uint32_t)(state & 0xf0);
                __asm__ volatile("wrpkru" : : "a"(keys), "d"(0), "c"(0));
            }
            if (at[0] != at[511] || (at[0] && mix(at[0] ^ page) != at[256]))
                die("memory", page);
            switch (state >> 40 & 3) {
            case 0: /* by the kernel, from one page to another buffer */
                if (write(ends[1], at, 4096) != 4096 || read(ends[0], buffer, 4096) != 4096 || memcmp(buffer, at, 4096))
                    die("pipe", page);
                break;
            case 1: /* by an instruction of the program's own */
                {
                    long n;
                    __asm__ volatile("syscall" : "=a"(n) : "a"(SYS_write), "D"(ends[1]), "S"(at), "d"(4096L) : "rcx", "r11", "memory");
                    if (n != 4096 || read(ends[0], back, 4096) != 4096 || memcmp(back, at, 4096))
                        die("system call", page);
                }
                break;
            default:
                at[0] = at[511] = state | 1;
                at[256] = mix((state | 1) ^ page);
            }
            if (with_keys && read_keys() != keys)
                die("protection keys", page);
        }
    } while (now() < until);
    return NULL;
}
int main(int count, char **words)
{
    pthread_t threads[THREADS];
    int profile = 0;
    seed = strtoull(words[1], NULL, 10);
    until = now() + atof(words[2]);
    for (int i = 3; i < count; i++) {
        profile |= !strcmp(words[i], "profile");
        with_keys |= !strcmp(words[i], "keys");
    }
    if (with_keys && syscall(SYS_pkey_alloc, 0, 0) < 0)
        with_keys = 0;
    m = mmap(NULL, (size_t)PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        die("mmap", 0);
    if (profile) {
        struct sigaction action = { .sa_handler = on_tick, .sa_flags = SA_RESTART };
        struct itimerval time = { { 0, 100 }, { 0, 100 } };
        sigaction(SIGPROF, &action, NULL);
        setitimer(ITIMER_PROF, &time, NULL);
    }
    for (uint64_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i))
            die("thread", i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    if (profile && !ticks)
        die("no tick", 0);
    printf("whole %lu\n", seed);
    return 0;
}
