/* What a program gives up it gives up in each task of its process, whoever made that task; and what Linux asks of a process
 * with one thread it can have. Each change at each stage of a life: small, grown, after fork, with threads, after exec.
 *
 * ROUNDS in the environment: so many changes in a row, drawn at random from SEED, at each stage. */
#include "pressure.h"
#include "filter.h"
#include <grp.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/personality.h>
#include <sys/resource.h>
#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_restrict_self 446
#endif
#define THREADS 3
static unsigned char *m;
static size_t size;

/* One change: 0 when it was made, -1 when this machine or this user may not. */
struct change {
    const char *name;
    int (*make)(void);
    enum { EACH, DIFFERS, ONE } kind;
};
static int set_uid(void) { return syscall(SYS_setuid, 65534); }
static int set_gid(void) { return syscall(SYS_setgid, 65534); }
static int set_reuid(void) { return syscall(SYS_setreuid, -1, 65534); }
static int set_regid(void) { return syscall(SYS_setregid, -1, 65534); }
static int set_resuid(void) { return syscall(SYS_setresuid, 65534, 65534, 65534); }
static int set_resgid(void) { return syscall(SYS_setresgid, 65534, 65534, 65534); }
static int set_groups(void)
{
    static gid_t one = 7;
    return syscall(SYS_setgroups, 1, &one);
}
/* They answer with what was. */
static int set_fsuid(void) { return syscall(SYS_setfsuid, 65534), syscall(SYS_setfsuid, -1) == 65534 ? 0 : -1; }
static int set_fsgid(void) { return syscall(SYS_setfsgid, 65534), syscall(SYS_setfsgid, -1) == 65534 ? 0 : -1; }
static int drop_capabilities(void)
{
    static struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    static struct __user_cap_data_struct none[2];
    return syscall(SYS_capset, &header, none);
}
static int drop_from_bounds(void) { return prctl(PR_CAPBSET_DROP, 30, 0, 0, 0); }
static int clear_ambient(void) { return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); }
static int keep_capabilities(void) { return prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0); }
static int secure_bits(void) { return prctl(PR_SET_SECUREBITS, 1 << 2, 0, 0, 0); }
static int no_new_rights(void) { return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); }
static int filter(void) { return answer_with(SYS_socket, SECCOMP_RET_ERRNO | EPERM) ? 0 : -1; }
static int filter_by_seccomp(void)
{
    static struct sock_filter code[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    static struct sock_fprog program = { 1, code };
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}
static int landlock(void)
{
    uint64_t writes = 1 << 1;
    int ruleset = syscall(SYS_landlock_create_ruleset, &writes, sizeof writes, 0);
    if (ruleset < 0)
        return -1;
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    int result = syscall(SYS_landlock_restrict_self, ruleset, 0);
    close(ruleset);
    return result;
}
static int own_names(void) { return unshare(CLONE_NEWUTS); }
static int own_mounts(void) { return unshare(CLONE_NEWNS); }
static int own_network(void) { return unshare(CLONE_NEWNET); }
static int own_files(void) { return unshare(CLONE_FS | CLONE_FILES | CLONE_SYSVSEM); }
static int joined_names(void)
{
    int fd = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC), result = fd < 0 ? -1 : setns(fd, CLONE_NEWUTS);
    close(fd);
    return result;
}
static int own_keyring(void) { return syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 ? -1 : 0; }
static int other_personality(void) { return personality(ADDR_NO_RANDOMIZE) < 0 ? -1 : 0; }
/* Only where all threads make them: then they are alike. */
static int one_processor(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    return sched_setaffinity(0, sizeof set, &set);
}
static int nicer(void) { return setpriority(PRIO_PROCESS, 0, 7); }
static int batch(void)
{
    static struct sched_param zero;
    return sched_setscheduler(0, SCHED_BATCH, &zero);
}
static int slack(void) { return prctl(PR_SET_TIMERSLACK, 77777, 0, 0, 0); }
/* These ask for one thread. */
static int own_users(void) { return unshare(CLONE_NEWUSER); }
static int alone(void) { return unshare(CLONE_THREAD | CLONE_SIGHAND | CLONE_VM); }

/* Made by each thread, all are alike; made by one, because each would have its own; or for a process with one thread. */
#define CHANGE(name) { #name, name, EACH }
#define DIFFERENT(name) { #name, name, DIFFERS }
#define FOR_ONE(name) { #name, name, ONE }
static const struct change changes[] = {
    CHANGE(set_uid), CHANGE(set_gid), CHANGE(set_reuid), CHANGE(set_regid), CHANGE(set_resuid), CHANGE(set_resgid),
    CHANGE(set_groups), CHANGE(set_fsuid), CHANGE(set_fsgid), CHANGE(drop_capabilities), CHANGE(drop_from_bounds),
    CHANGE(clear_ambient), CHANGE(keep_capabilities), CHANGE(secure_bits), CHANGE(no_new_rights), CHANGE(filter),
    CHANGE(filter_by_seccomp), CHANGE(landlock), DIFFERENT(own_names), DIFFERENT(own_mounts), DIFFERENT(own_network),
    CHANGE(own_files), CHANGE(joined_names), CHANGE(own_keyring), CHANGE(other_personality), CHANGE(one_processor),
    CHANGE(nicer), CHANGE(batch), CHANGE(slack), FOR_ONE(own_users), FOR_ONE(alone),
};
#define CHANGES (sizeof changes / sizeof changes[0])

/* The program's own tasks. */
static pid_t own[THREADS + 1];
static int is_own(pid_t tid)
{
    for (int i = 0; i <= THREADS; i++)
        if (own[i] == tid)
            return 1;
    return 0;
}
/* All that the kernel tells of what a task may do, and where it runs. Empty when it has just ended. */
static void look(pid_t tid, char *text, size_t room)
{
    static const char *const lines[] = { "Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp", "Speculation",
                                         "Cpus_allowed:", "Mems_allowed:", "FDSize:", "Umask:" };
    static const char *const links[] = { "ns/uts", "ns/mnt", "ns/net", "ns/user", "ns/ipc", "ns/cgroup", "root", "cwd" };
    static const char *const files[] = { "personality", "timerslack_ns" };
    char path[100], line[600];
    size_t used = 0;
    text[0] = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    FILE *status = fopen(path, "re");
    if (!status)
        return;
    while (fgets(line, sizeof line, status))
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
            if (!strncmp(line, lines[i], strlen(lines[i])))
                used += snprintf(text + used, room - used, "%s", line);
    fclose(status);
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        snprintf(path, sizeof path, "/proc/self/task/%d/%s", tid, links[i]);
        ssize_t n = readlink(path, line, sizeof line - 1);
        line[n < 0 ? 0 : n] = 0;
        used += snprintf(text + used, room - used, "%s %s\n", links[i], line);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "/proc/self/task/%d/%s", tid, files[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
        close(fd);
        line[n < 0 ? 0 : n] = 0;
        used += snprintf(text + used, room - used, "%s %s\n", files[i], line);
    }
    cpu_set_t set;
    if (sched_getaffinity(tid, sizeof set, &set) == 0)
        used += snprintf(text + used, room - used, "processors %d\n", CPU_COUNT(&set));
    snprintf(text + used, room - used, "policy %d nice %d\n", sched_getscheduler(tid), getpriority(PRIO_PROCESS, tid));
}
/* All tasks are as this thread is; or those that are not the program's. */
static void expect_identical(const char *stage, const char *name, int only_strangers)
{
    static char first[8000], other[8000];
    pid_t found[64];
    int n = all_tasks(found, 64);
    look(gettid(), first, sizeof first);
    for (int i = 0; i < n; i++) {
        if (only_strangers && is_own(found[i]))
            continue;
        look(found[i], other, sizeof other);
        /* One that has ended meanwhile has nothing. */
        if (syscall(SYS_tgkill, getpid(), found[i], 0) == 0 && strcmp(first, other) != 0) {
            size_t at = 0;
            while (first[at] && first[at] == other[at])
                at++;
            while (at && first[at - 1] != '\n')
                at--;
            fail("%s, %s: task %d of %d has %.60s instead of %.60s", stage, name, found[i], n, other + at, first + at);
        }
    }
}

/* More than fits, so that Ebb has work for threads of its own. */
static void press(void)
{
    size_t len = budget() ? budget() + budget() / 4 : MIB;
    volatile uint64_t *other = (uint64_t *)fresh(len);
    for (size_t i = 0; i < len / 8; i += PAGE / 8)
        other[i] = mix(i);
    pages_evicted += budget() ? absent(m, size) : 0;
    MUST(munmap((void *)other, len));
}

/* The threads of the program: each makes the change that is named, all at once, as libc has its own do for setresuid. */
static pthread_barrier_t begin, end;
static const struct change *volatile named;
static int results[THREADS];
static volatile int is_over;
static void *work(void *number)
{
    int i = (int)(intptr_t)number;
    own[i + 1] = gettid();
    pthread_barrier_wait(&end);
    for (;;) {
        pthread_barrier_wait(&begin);
        if (is_over)
            return NULL;
        results[i] = named->make();
        check(m, size, 1, "a thread's memory after a change");
        pthread_barrier_wait(&end);
    }
}
static int make(const struct change *change, int threads)
{
    pid_t before[64];
    int n = all_tasks(before, 64), result;
    if (threads) {
        named = change;
        pthread_barrier_wait(&begin);
        result = change->make();
        pthread_barrier_wait(&end);
        for (int i = 0; i < threads; i++)
            if (results[i] != result)
                fail("%s: %d in one thread, %d in another", change->name, result, results[i]);
    } else {
        result = change->make();
    }
    /* Who was there before and is not the program's may have kept what nothing tells of. */
    if (result == 0)
        for (int i = 0; i < n; i++)
            if (!is_own(before[i]) && syscall(SYS_tgkill, getpid(), before[i], 0) == 0)
                fail("%s: task %d was there before, and still is", change->name, before[i]);
    return result;
}

struct stage {
    const char *name;
    size_t megabytes;
    int forks, threads, execs;
};
static const struct stage stages[] = {
    { "small", 0, 0, 0, 0 },        { "grown", 3, 0, 0, 0 },         { "after fork", 3, 1, 0, 0 },
    { "with threads", 3, 0, 1, 0 }, { "forked, with threads", 3, 1, 1, 0 }, { "after exec", 3, 0, 0, 1 },
};
#define STAGES (sizeof stages / sizeof stages[0])
static uint64_t seed;
static const struct stage *stage;
static size_t first_change;
static void live(void *unused)
{
    (void)unused;
    pthread_t threads[THREADS];
    memset(own, 0, sizeof own);
    own[0] = gettid();
    int nr_threads = stage->threads ? THREADS : 0;
    if (nr_threads) {
        ZERO(pthread_barrier_init(&begin, NULL, THREADS + 1));
        ZERO(pthread_barrier_init(&end, NULL, THREADS + 1));
        for (intptr_t i = 0; i < nr_threads; i++)
            ZERO(pthread_create(&threads[i], NULL, work, (void *)i));
        /* From here on each is known for the program's own. */
        pthread_barrier_wait(&end);
    }
    const char *rounds = getenv("ROUNDS");
    int n = rounds ? atoi(rounds) : 1;
    for (int i = 0; i < n; i++) {
        size_t at = i ? mix(seed += 0x9e3779b97f4a7c15u) % CHANGES : first_change;
        const struct change *change = &changes[at];
        int by_one = change->kind != EACH && nr_threads;
        int result = make(change, by_one ? 0 : nr_threads);
        if (by_one && change->kind == ONE)
            REQUIRE(result == -1 && errno == EINVAL);
        if (change->make == alone && !nr_threads && result != 0)
            fail("%s: a process with one thread is told that it has more", stage->name);
        expect_identical(stage->name, change->name, by_one);
        check(m, size, 1, change->name);
        press();
        /* What begins again is like the rest. */
        expect_identical(stage->name, change->name, by_one);
        check(m, size, 1, change->name);
        if (by_one)
            break;
    }
    is_over = 1;
    if (nr_threads) {
        pthread_barrier_wait(&begin);
        for (int i = 0; i < nr_threads; i++)
            ZERO(pthread_join(threads[i], NULL));
    }
}
static void grow(void)
{
    size = stage->megabytes ? stage->megabytes * MIB : MIB / 8;
    m = fresh(size);
    fill(m, size, 1);
}
static void enter(void *self)
{
    if (stage->execs) {
        char where[2][20];
        snprintf(where[0], sizeof where[0], "%zu", (size_t)(stage - stages));
        snprintf(where[1], sizeof where[1], "%zu", first_change);
        execl(self, self, where[0], where[1], (char *)NULL);
        fail("exec of itself");
    }
    grow();
    if (stage->forks)
        wait_ok(child_of(live, NULL));
    else
        live(NULL);
}
int main(int count, char **arguments)
{
    const char *text = getenv("SEED");
    seed = text ? strtoull(text, NULL, 0) : 1;
    if (count > 2) {
        stage = &stages[atoi(arguments[1])];
        first_change = atoi(arguments[2]);
        grow();
        live(NULL);
        return 0;
    }
    int is_long = getenv("ROUNDS") != NULL;
    for (first_change = 0; first_change < CHANGES; first_change++)
        for (size_t i = 0; i < STAGES; i++) {
            /* Each change at one stage, each stage with many: all pairs in the long run. */
            if (!is_long && i != 1 && i != first_change % STAGES)
                continue;
            stage = &stages[i];
            wait_ok(child_of(enter, "/proc/self/exe"));
        }
    return ok();
}
