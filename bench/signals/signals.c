/* What the kernel takes for a fault that it answers with a signal, by threads that fault at once, with a handler that blocks every
 * signal and with one that leaves the mask as it is. Prints nanoseconds a fault and thread, and millions of faults a second. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { THREADS_MAX = 64, STACK_BYTES = 1 << 16 };
static const double SECONDS = 0.5;

static char *closed;
static atomic_long faults;
static atomic_int ready, begun, ended;

/* Goes on behind the load. */
static void pass(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void *fault(void *argument)
{
    (void)argument;
    stack_t stack = {.ss_sp = malloc(STACK_BYTES), .ss_size = STACK_BYTES};
    sigaltstack(&stack, NULL);
    ready++;
    while (!begun)
        ;
    long count = 0;
    for (; !ended; count++)
        __asm__ volatile("movb (%%rax), %%al" ::"a"(closed) : "memory");
    faults += count;
    return NULL;
}

int main(void)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    closed = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("threads   blocks all          leaves the mask\n");
    for (int threads = 1; threads <= processors && threads <= THREADS_MAX; threads *= 2) {
        printf("%7d", threads);
        for (int leaves = 0; leaves < 2; leaves++) {
            struct sigaction action = {.sa_sigaction = pass, .sa_flags = SA_SIGINFO | SA_ONSTACK};
            if (leaves)
                action.sa_flags |= SA_NODEFER;
            else
                sigfillset(&action.sa_mask);
            sigaction(SIGSEGV, &action, NULL);
            pthread_t all[THREADS_MAX];
            faults = ready = begun = ended = 0;
            for (int i = 0; i < threads; i++)
                pthread_create(&all[i], NULL, fault, NULL);
            while (ready < threads)
                ;
            begun = 1;
            double start = now();
            usleep(SECONDS * 1e6);
            ended = 1;
            for (int i = 0; i < threads; i++)
                pthread_join(all[i], NULL);
            double took = now() - start;
            printf("   %6.0f ns %5.2f M/s", took * 1e9 * threads / faults, faults / took / 1e6);
        }
        printf("\n");
    }
    return 0;
}
