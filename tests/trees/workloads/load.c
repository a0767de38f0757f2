/* Keeps workers alive, each with memory whose content it knows: load DIRECTORY WORKERS MIB.
 *
 * The keeper fills MIB that all inherit. A worker verifies what it inherited, fills MIB of its own, and then goes on
 * verifying all of it, changing some, and forking a child that reads the same and ends. A worker that was killed is
 * replaced after a moment; one that ended otherwise is said. While the file DIRECTORY/pause exists nobody touches anything,
 * and nobody is replaced. When DIRECTORY/stop exists, or the keeper is gone, everybody ends.
 *
 * Says: `ready` once every worker has gone round, `WRONG ...` for what must not be, and `done`
 * with the number of rounds and of workers that were replaced.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS_MAX = 64, PAGE = 4096, WORDS = PAGE / 8 };

static char pause_path[4096], stop_path[4096];
static size_t pages;
static uint64_t *inherited;
/* What the processes tell the keeper; not managed by Ebb, and small. */
static struct { atomic_ulong rounds, forks; atomic_int has_been_round[WORKERS_MAX]; } *shared;

static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static void say(const char *text, long one, long two)
{
    char line[200];
    int length = snprintf(line, sizeof line, "%s %ld %ld\n", text, one, two);
    if (write(1, line, length) != length)
        _exit(7);
}

static void sleep_ms(long ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&pause, 0);
}

static uint64_t word_of(uint64_t seed, uint64_t version, size_t page, size_t at)
{
    uint64_t base = mixed(seed * 1000003 + page * 31 + version);
    return at % 4 == 0 ? mixed(base + at) : base + at;
}

static void fill(uint64_t *memory, size_t page, uint64_t seed, uint64_t version)
{
    for (size_t at = 0; at < WORDS; at++)
        memory[page * WORDS + at] = word_of(seed, version, page, at);
}

static int is_right(const uint64_t *memory, size_t page, uint64_t seed, uint64_t version)
{
    for (size_t at = 0; at < WORDS; at++) {
        if (memory[page * WORDS + at] != word_of(seed, version, page, at))
            return 0;
    }
    return 1;
}

static int exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* While all shall rest, so does the caller; looked at every 64 pages. */
static void rest(size_t page)
{
    while (page % 64 == 0 && exists(pause_path) && getppid() != 1)
        sleep_ms(5);
}

static void check_all(const char *who, const uint64_t *own, const uint32_t *versions, uint64_t seed)
{
    for (size_t page = 0; page < pages; page++) {
        rest(page);
        if (!is_right(inherited, page, 1, 0)) {
            say("WRONG inherited page of", getpid(), page);
            _exit(3);
        }
        if (own && !is_right(own, page, seed, versions[page])) {
            say(who, getpid(), page);
            _exit(3);
        }
    }
}

static void work(int number, uint64_t seed, pid_t keeper)
{
    uint64_t *own = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t *versions = calloc(pages, sizeof *versions);
    if (own == MAP_FAILED || !versions)
        _exit(4);
    for (size_t page = 0; page < pages; page++) {
        rest(page);
        fill(own, page, seed, 0);
    }
    for (uint64_t round = 1; !exists(stop_path) && getppid() == keeper; round++) {
        check_all("WRONG own page of", own, versions, seed);
        for (size_t i = 0; i < pages / 4; i++) {
            rest(i);
            size_t page = mixed(seed + round * pages + i) % pages;
            fill(own, page, seed, ++versions[page]);
        }
        if (mixed(seed + round) % 3 == 0) {
            pid_t child = fork();
            if (child == 0) {
                check_all("WRONG page that a child has of its parent's in", own, versions, seed);
                /* What the child writes is the child's. */
                for (size_t page = 0; page < pages; page += 3) {
                    rest(page);
                    fill(own, page, seed, 1u << 31);
                }
                _exit(0);
            }
            int status;
            if (child > 0 && waitpid(child, &status, 0) == child && status != 0 && status != SIGKILL)
                say("WRONG end of a child", child, status);
            atomic_fetch_add(&shared->forks, child > 0);
        }
        atomic_fetch_add(&shared->rounds, 1);
        atomic_store(&shared->has_been_round[number], 1);
    }
    _exit(0);
}

int main(int count, char **words)
{
    if (count != 4)
        return 2;
    snprintf(pause_path, sizeof pause_path, "%s/pause", words[1]);
    snprintf(stop_path, sizeof stop_path, "%s/stop", words[1]);
    int workers = atoi(words[2]);
    pages = strtoul(words[3], 0, 10) << 8;
    pid_t self = getpid(), pids[WORKERS_MAX] = {0};
    inherited = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    shared = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (workers > WORKERS_MAX || inherited == MAP_FAILED || shared == MAP_FAILED)
        return 2;
    for (size_t page = 0; page < pages; page++)
        fill(inherited, page, 1, 0);
    uint64_t started = 0, replaced = 0;
    int is_ready = 0;
    while (!exists(stop_path)) {
        for (int i = 0; i < workers && !exists(pause_path); i++) {
            if (pids[i] == 0) {
                started++;
                pids[i] = fork();
                if (pids[i] == 0)
                    work(i, 1000 + started, self);
                if (pids[i] < 0)
                    return 5;
            }
        }
        int status, went = 0;
        pid_t pid;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
            for (int i = 0; i < workers; i++) {
                if (pids[i] == pid)
                    pids[i] = 0;
            }
            if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
                replaced++;
            else if (!exists(stop_path))
                say("WRONG end of a worker", pid, status);
        }
        for (int i = 0; i < workers; i++)
            went += atomic_load(&shared->has_been_round[i]);
        if (went == workers && !is_ready) {
            is_ready = 1;
            say("ready", getpid(), 0);
        }
        sleep_ms(20);
    }
    int status;
    pid_t pid;
    while ((pid = wait(&status)) > 0 || errno == EINTR) {
        if (pid > 0 && status != 0 && status != SIGKILL)
            say("WRONG end of a worker", pid, status);
    }
    for (size_t page = 0; page < pages; page++) {
        if (!is_right(inherited, page, 1, 0))
            say("WRONG page of the keeper", getpid(), page);
    }
    say("done", (long)atomic_load(&shared->rounds), (long)replaced);
    return 0;
}
