/* What a program can ask of Ebb by ebb.h: in one thread and in several, in handlers, in children, and with arguments that make no
 * sense. Alone it asks nobody, and every function says so. */
#include "pressure.h"
#include "filter.h"
#include <sched.h>
#include "../../include/ebb.h"
#include <sys/time.h>
#define LEN (4 * MIB)
#define THREADS 4

static uint64_t ram;
static volatile sig_atomic_t handled;

static struct ebb_stats now(void)
{
    struct ebb_stats stats;
    REQUIRE(ebb_stats(&stats) == 0);
    return stats;
}

/* Nobody is there, and memory stays as it is. */
static void nobody(void)
{
    unsigned char *m = fresh(LEN);
    struct ebb_stats stats, none;
    fill(m, LEN, 1);
    memset(&stats, 1, sizeof stats);
    memset(&none, 0, sizeof none);
    errno = 0;
    REQUIRE(ebb_stats(&stats) == -1 && errno == ENOSYS && memcmp(&stats, &none, sizeof none) == 0);
    errno = 0;
    REQUIRE(ebb_set_ram(64 * MIB) == -1 && errno == ENOSYS);
    errno = 0;
    REQUIRE(ebb_reclaim(LEN) == 0 && ebb_advise(m, LEN, EBB_DEAD) == 0 && ebb_advise(m + 1, 5, EBB_SOON) == 0 && errno == 0);
    check(m, LEN, 1, "advised memory");
    MUST(munmap(m, LEN));
}

static void figures_are_sane(void)
{
    unsigned char *m = fresh(LEN);
    struct ebb_stats before = now(), after;
    fill(m, LEN, 2);
    after = now();
    REQUIRE(after.size == sizeof after && after.tree_ram_bytes == ram);
    REQUIRE(after.wanted_bytes >= before.wanted_bytes + LEN && after.wanted_bytes < before.wanted_bytes + LEN + 2 * MIB);
    REQUIRE(after.held_bytes == after.resident_bytes + after.staged_bytes + after.pool_bytes);
    REQUIRE(after.tree_held_bytes <= ram + 2 * MIB && after.tree_peak_bytes >= LEN && after.faults > before.faults);
    REQUIRE(ebb_reclaim(LEN) > 0);
    before = after;
    after = now();
    REQUIRE(after.held_bytes < before.held_bytes && after.swapped_bytes > before.swapped_bytes);
    REQUIRE(after.tree_swapped_out_bytes >= before.tree_swapped_out_bytes + LEN / 4);
    check(m, LEN, 2, "reclaimed memory");
    REQUIRE(now().tree_faults_pool + now().tree_faults_device + now().tree_faults_staged >
            before.tree_faults_pool + before.tree_faults_device + before.tree_faults_staged);
    MUST(munmap(m, LEN));
}

/* Dead pages cost neither a write nor a compression, and what is written to them afterwards stays. */
static void the_dead_are_not_stored(void)
{
    unsigned char *m = fresh(LEN);
    fill(m, LEN, 3);
    REQUIRE(ebb_advise(m, LEN, EBB_DEAD) == 0);
    uint64_t before = now().tree_swapped_out_bytes;
    ebb_reclaim(LEN);
    REQUIRE(now().tree_swapped_out_bytes - before < MIB);
    for (size_t page = 0; page < LEN; page += PAGE)
        for (size_t i = page; i < page + PAGE; i++)
            REQUIRE(m[i] == 0 || m[i] == pattern(i, 3));
    fill(m, LEN, 4);
    evict(m, LEN);
    check(m, LEN, 4, "memory that was dead");
    MUST(munmap(m, LEN));
}

static void the_cold_go_first_and_come_back_soon(void)
{
    unsigned char *cold = fresh(LEN), *warm = fresh(LEN);
    fill(cold, LEN, 5);
    fill(warm, LEN, 6);
    size_t out_before = absent(warm, LEN);
    REQUIRE(ebb_advise(cold, LEN, EBB_COLD) == 0);
    REQUIRE(absent(cold, LEN) < LEN / PAGE / 8);
    REQUIRE(ebb_reclaim(LEN / 4) >= (int64_t)LEN / 8);
    REQUIRE(absent(cold, LEN) >= LEN / PAGE / 4 && absent(warm, LEN) <= out_before + LEN / PAGE / 16);
    ebb_reclaim(2 * LEN);
    REQUIRE(absent(cold, LEN) > LEN / PAGE / 2);
    REQUIRE(ebb_advise(cold, LEN, EBB_SOON) == 0);
    REQUIRE(absent(cold, LEN) < LEN / PAGE / 16);
    uint64_t faults = now().faults;
    check(cold, LEN, 5, "memory that was wanted soon");
    REQUIRE(now().faults - faults < LEN / PAGE / 8);
    check(warm, LEN, 6, "memory beside it");
    MUST(munmap(cold, LEN));
    MUST(munmap(warm, LEN));
}

/* The call must fail with EINVAL. */
#define INVALID(call) do { errno = 0; REQUIRE((call) == -1 && errno == EINVAL); } while (0)

static void senseless_advice_is_refused(void)
{
    unsigned char *m = fresh(3 * PAGE), *text = mmap(NULL, PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(text != MAP_FAILED);
    fill(m, 3 * PAGE, 7);
    for (int advice = EBB_COLD; advice <= EBB_SOON; advice++) {
        INVALID(ebb_advise(m + 8, PAGE, advice));
        INVALID(ebb_advise(m, PAGE - 1, advice));
        INVALID(ebb_advise(m, SIZE_MAX - PAGE + 1, advice));
        INVALID(ebb_advise(m, (uintptr_t)0 - (uintptr_t)m, advice));
        INVALID(ebb_advise((void *)~(uintptr_t)(PAGE - 1), PAGE, advice));
        REQUIRE(ebb_advise(m, 0, advice) == 0);
    }
    INVALID(ebb_advise(m, PAGE, (enum ebb_advice)0));
    INVALID(ebb_advise(m, PAGE, (enum ebb_advice)4));
    INVALID(ebb_advise(text, PAGE, EBB_DEAD));
    check(m, 3 * PAGE, 7, "memory that was not advised");
    MUST(munmap(m + PAGE, PAGE));
    for (int advice = EBB_COLD; advice <= EBB_SOON; advice++) {
        INVALID(ebb_advise(m, 3 * PAGE, advice));
        INVALID(ebb_advise(m + PAGE, PAGE, advice));
    }
    INVALID(ebb_set_ram(0));
    INVALID(ebb_set_ram(4 * MIB - 1));
    REQUIRE(ebb_reclaim(0) == 0 && now().tree_ram_bytes == ram);
}

/* Programs and agents of other versions: a shorter structure, a longer one, and a question that nobody knows yet. */
static void versions_get_along(void)
{
    int64_t (*call)(uint32_t, uint64_t, uint64_t, uint64_t) = ebb_private_agent();
    uint64_t words[64];
    REQUIRE(call);
    memset(words, 0xaa, sizeof words);
    REQUIRE(call(1, (uintptr_t)words, 20, 0) == 16 && words[0] == 16 && words[1] != 0xaaaaaaaaaaaaaaaau && words[2] == 0xaaaaaaaaaaaaaaaau);
    REQUIRE(call(1, (uintptr_t)words, sizeof words, 0) == sizeof(struct ebb_stats) && words[0] == sizeof(struct ebb_stats));
    REQUIRE(words[sizeof(struct ebb_stats) / 8] == 0xaaaaaaaaaaaaaaaau);
    REQUIRE(call(1, (uintptr_t)words, 8, 0) == -EINVAL && call(1, 8, 160, 0) == -EFAULT && call(99, 0, 0, 0) == -ENOSYS);
}

static void *work(void *argument)
{
    unsigned seed = 20 + (unsigned)(uintptr_t)argument;
    unsigned char *m = fresh(MIB);
    for (unsigned round = 0; round < 8; round++) {
        fill(m, MIB, seed + round);
        REQUIRE(ebb_advise(m, MIB, EBB_COLD) == 0 && ebb_reclaim(MIB / 2) >= 0);
        REQUIRE(now().held_bytes > 0 && ebb_advise(m, MIB / 2, EBB_SOON) == 0);
        check(m, MIB, seed + round, "a thread's memory");
        REQUIRE(ebb_advise(m, MIB, EBB_DEAD) == 0);
    }
    MUST(munmap(m, MIB));
    return NULL;
}

static void work_in_child(void *argument)
{
    work(argument);
}

static void threads_ask_at_once(void)
{
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        ZERO(pthread_create(&threads[i], NULL, work, (void *)(i * 100)));
    for (int i = 0; i < 4; i++)
        wait_ok(child_of(work_in_child, (void *)900));
    for (int i = 0; i < THREADS; i++)
        ZERO(pthread_join(threads[i], NULL));
}

static unsigned char *of_handler;

static void on_signal(int signal UNUSED, siginfo_t *info UNUSED, void *context UNUSED)
{
    struct ebb_stats stats;
    int saved = errno;
    if (ebb_stats(&stats) == 0 && ebb_advise(of_handler, PAGE, EBB_COLD) == 0 && ebb_reclaim(PAGE) >= 0)
        handled++;
    errno = saved;
}

static void handlers_ask(void)
{
    unsigned char *m = fresh(LEN);
    of_handler = fresh(PAGE);
    of_handler[0] = 9;
    fill(m, LEN, 8);
    handle(SIGALRM, on_signal, SA_RESTART);
    for (double end = now_s() + PATIENCE_S; handled < 20 && now_s() < end;) {
        /* Once: on a busy machine the handler takes longer than the time between two signals. */
        struct itimerval once = { { 0, 0 }, { 0, 500 + 100 * handled } };
        MUST(setitimer(ITIMER_REAL, &once, NULL));
        REQUIRE(ebb_reclaim(LEN) >= 0);
        check(m, LEN, 8, "memory while handlers ask");
    }
    REQUIRE(handled >= 20 && of_handler[0] == 9);
    MUST(munmap(m, LEN));
}

static void in_child(void *memory)
{
    REQUIRE(ebb_active() == 1 && ebb_reclaim(LEN) >= 0);
    check(memory, LEN, 10, "the child's memory");
    REQUIRE(ebb_advise(memory, LEN, EBB_DEAD) == 0 && now().tree_ram_bytes == ram);
    REQUIRE(ebb_set_ram(ram + 8 * MIB) == 0 && now().tree_ram_bytes == ram + 8 * MIB);
}

static void children_ask(void)
{
    unsigned char *m = fresh(LEN);
    fill(m, LEN, 10);
    wait_ok(child_of(in_child, m));
    check(m, LEN, 10, "the parent's memory");
    REQUIRE(now().tree_ram_bytes == ram + 8 * MIB && ebb_set_ram(ram) == 0);
    volatile int busy = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        busy = ebb_active() == 1 && ebb_reclaim(MIB) == -1 && errno == EBUSY && ebb_set_ram(ram) == -1 && errno == EBUSY;
        _exit(0);
    }
    wait_ok(MUST(pid));
    REQUIRE(busy);
    MUST(munmap(m, LEN));
}

static void a_smaller_budget_is_kept(void)
{
    unsigned char *m = fresh(ram / 2);
    fill(m, ram / 2, 11);
    REQUIRE(ebb_set_ram(ram / 4 * 3) == 0);
    struct ebb_stats stats = now();
    REQUIRE(stats.tree_ram_bytes == ram / 4 * 3 && stats.tree_held_bytes <= ram / 4 * 3 + MIB);
    check(m, ram / 2, 11, "memory under a smaller budget");
    REQUIRE(ebb_set_ram(ram) == 0);
    MUST(munmap(m, ram / 2));
}

static volatile int over;

static void *touches(void *memory)
{
    while (!over)
        for (size_t i = 0; i < 4 * LEN && !over; i += PAGE)
            ((volatile unsigned char *)memory)[i]++;
    return NULL;
}

/* All that is held is finite, though others bring it in again. */
static void everything_is_an_amount(void)
{
    pthread_t threads[2];
    unsigned char *m = fresh(4 * LEN);
    fill(m, 4 * LEN, 12);
    over = 0;
    for (int i = 0; i < 2; i++)
        ZERO(pthread_create(&threads[i], NULL, touches, m));
    int64_t held = (int64_t)now().held_bytes + (int64_t)MIB * 16, given = ebb_reclaim(UINT64_MAX);
    REQUIRE(given > 0 && given <= held);
    over = 1;
    for (int i = 0; i < 2; i++)
        ZERO(pthread_join(threads[i], NULL));
    MUST(munmap(m, 4 * LEN));
}

static void *reclaims(void *memory)
{
    while (!over) {
        for (size_t i = 0; i < 2 * LEN; i += PAGE)
            ((volatile unsigned char *)memory)[i]++;
        ebb_reclaim(2 * LEN);
    }
    return NULL;
}

/* Waits for a child for some seconds; the first process of a namespace takes no alarm. */
static void wait_soon(pid_t pid)
{
    int status = 0;
    for (double end = now_s() + PATIENCE_S; waitpid(pid, &status, WNOHANG | __WALL) != pid; usleep(500))
        if (now_s() > end) {
            kill(pid, SIGKILL);
            fail("a child does not end");
        }
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static pid_t fork_with(unsigned long flags)
{
    return (pid_t)syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
}

/* A child that is made while a thread reclaims, with the number of its parent: both are the first of their namespaces. */
static void children_of_the_same_number_ask(void)
{
    pid_t outer = fork_with(CLONE_NEWPID);
    if (outer < 0)
        return;
    if (outer == 0) {
        pthread_t thread;
        over = 0;
        ZERO(pthread_create(&thread, NULL, reclaims, fresh(2 * LEN)));
        for (int i = 0; i < 8; i++) {
            usleep(300 * (i % 7));
            pid_t inner = MUST(fork_with(CLONE_NEWPID));
            if (inner == 0)
                _exit(getpid() != 1 || ebb_reclaim(PAGE) < 0);
            wait_soon(inner);
        }
        over = 1;
        ZERO(pthread_join(thread, NULL));
        _exit(0);
    }
    wait_soon(outer);
}

static void under_filter(void *action)
{
    unsigned char *m = fresh(PAGE);
    /* Ebb says why a managed process ends. */
    MUST(dup2(MUST(open("/dev/null", O_WRONLY)), 2));
    if (!answer_with(SYS_madvise, (unsigned)(uintptr_t)action))
        return;
    /* A small process stays small for good. */
    REQUIRE(ebb_active() == 0 && ebb_reclaim(PAGE) == 0 && ebb_set_ram(64 * MIB) == -1 && errno == ENOSYS);
    for (int advice = EBB_COLD; advice <= EBB_SOON; advice++)
        REQUIRE(ebb_advise(m, PAGE, advice) == 0);
}

/* Where Ebb is not, advice makes no call for which a filter could kill. A managed process ends as it loads such a filter. */
static void the_filtered_ask_nobody(void)
{
    const unsigned actions[] = { SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ERRNO | EPERM };
    for (int i = 0; i < 2; i++) {
        int status = 0;
        MUST(waitpid(child_of(under_filter, (void *)(uintptr_t)actions[i]), &status, 0));
        REQUIRE(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || (managed() && WEXITSTATUS(status) == 125)));
    }
}

int main(void)
{
    errno = 0;
    REQUIRE(ebb_active() == managed());
    /* What the program did not ask for left no trace. */
    REQUIRE(errno == 0 && dlerror() == NULL);
    the_filtered_ask_nobody();
    if (!managed()) {
        nobody();
        return ok();
    }
    ram = budget();
    figures_are_sane();
    the_dead_are_not_stored();
    the_cold_go_first_and_come_back_soon();
    senseless_advice_is_refused();
    versions_get_along();
    threads_ask_at_once();
    handlers_ask();
    children_ask();
    everything_is_an_amount();
    children_of_the_same_number_ask();
    a_smaller_budget_is_kept();
    return ok();
}
