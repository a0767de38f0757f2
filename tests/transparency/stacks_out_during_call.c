/* Calls with buffers that are out, on stacks that are managed memory and go out at any moment, by more threads than
 * there are processors. Each thread has a signal mask of its own, which must be the same after each call, whatever
 * became of the stack that the call was made on; and a handler that is entered in between has the same trouble. */
#include "pressure.h"
#define THREADS 20
#define STACKS 40
#define STACK (8 * PAGE)
#define BUFFER (512 * PAGE)
#define SECONDS 6
static volatile int stop;
static int sink, source;
static long handled;
struct job { unsigned char *stacks, *buffer; unsigned seed; int blocked; long calls; };
static __thread struct job *job;

static unsigned char *some_page(long turn)
{
    return job->buffer + mix(job->seed + turn) % (BUFFER / PAGE - 2) * PAGE;
}

static void check_mask(int also)
{
    sigset_t now;
    MUST(pthread_sigmask(SIG_BLOCK, NULL, &now));
    for (int signal = 1; signal < 65; signal++)
        if (sigismember(&now, signal) != (signal == job->blocked || signal == also) && signal != 32 && signal != 33)
            fail("signal %d is %sblocked after %ld calls", signal, sigismember(&now, signal) ? "" : "not ", job->calls);
}

static void on_timer(int signal, siginfo_t *info, void *context)
{
    (void)info, (void)context;
    if (write(sink, some_page(handled), 700) != 700)
        fail("write in a handler");
    check_mask(signal);
    __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
}

static void some_calls(void)
{
    for (int i = 0; i < 2; i++) {
        unsigned char *at = some_page(2 * job->calls + i);
        REQUIRE(i ? write(sink, at + 10, PAGE) == PAGE : pread(source, at, 9, 0) == 9);
    }
}

/* Calls a function on another stack. */
static void on_stack(unsigned char *top, void (*function)(void))
{
    __asm__ volatile("mov %%rsp, %%rbx\n mov %[top], %%rsp\n call *%[function]\n mov %%rbx, %%rsp"
                     :
                     : [top] "r"(top), [function] "r"(function)
                     : "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
}

static void *thread(void *argument)
{
    job = argument;
    timer_t timer;
    sigset_t mask;
    struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 3 };
    struct itimerspec every = { { 0, 3700000 }, { 0, 1000000 } };
    event._sigev_un._tid = gettid();
    stack_t handlers = { .ss_sp = fresh(STACK), .ss_size = STACK };
    sigemptyset(&mask);
    sigaddset(&mask, job->blocked);
    MUST(pthread_sigmask(SIG_SETMASK, &mask, NULL));
    MUST(sigaltstack(&handlers, NULL));
    MUST(timer_create(CLOCK_MONOTONIC, &event, &timer));
    MUST(timer_settime(timer, 0, &every, NULL));
    do {
        on_stack(job->stacks + (mix(job->calls) % STACKS + 1) * STACK, some_calls);
        if (++job->calls % 8 == 0)
            check_mask(0);
    } while (!stop);
    MUST(timer_delete(timer));
    return NULL;
}

int main(void)
{
    static struct job jobs[THREADS];
    pthread_t threads[THREADS];
    double end = now_s() + SECONDS;
    sink = MUST(open("/dev/null", O_WRONLY | O_CLOEXEC));
    source = MUST(open("/dev/zero", O_RDONLY | O_CLOEXEC));
    handle(SIGRTMIN + 3, on_timer, SA_ONSTACK | SA_RESTART);
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){ .stacks = fresh(STACKS * STACK), .buffer = fresh(BUFFER), .seed = i * 1000,
                                .blocked = SIGRTMIN + 4 + i };
        fill(jobs[i].buffer, BUFFER, i);
        ZERO(pthread_create(&threads[i], NULL, thread, &jobs[i]));
    }
    while (now_s() < end)
        evict(jobs[0].buffer, BUFFER);
    stop = 1;
    for (int i = 0; i < THREADS; i++) {
        ZERO(pthread_join(threads[i], NULL));
        for (size_t j = 0; j < BUFFER; j++)
            if (jobs[i].buffer[j] != pattern(j, i) && (jobs[i].buffer[j] != 0 || j % PAGE >= 9))
                fail("byte %zu of a buffer is %#x", j, jobs[i].buffer[j]);
    }
    REQUIRE(handled > 0);
    return ok();
}
