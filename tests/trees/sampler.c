/* Watches how much anonymous memory a tree of processes holds, pages that several share counted once.
 *
 * sampler ROOT SKIP_ROOT SLACK_BYTES INTERVAL_MS
 *
 * Members are ROOT, the processes of its session, whoever descends from them, and whoever did before its parent ended.
 * With SKIP_ROOT, ROOT itself is not counted. Samples until standard input ends; then prints one line of JSON:
 *
 *   peak          the most bytes all members held at a time, and how many they were then
 *   excess        the most bytes they held beyond SLACK_BYTES each (what a process holds below it counts as nothing)
 *   members       who they were then: name, pid and bytes, the largest first
 *   shared_peak   the most bytes of shared memory (Pss_Shmem) they had mapped at a time
 *   seen, alive   how many processes were seen, and how many of them at a time
 *
 * A process between vfork and exec has the memory of its parent: it is not counted. A sample is not of one moment: when
 * a process comes or goes meanwhile, pages that it shares are counted twice, so what would be a new peak is then
 * sampled again, and the least counts.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PIDS = 1 << 22, MEMBERS = 8192, TRIES = 6, NAMED = 8, KCMP_VM_TYPE = 1 };

struct process {
    int pid, parent, session, is_member, is_alive;
    long long start, held;
    char name[24];
};

struct sample {
    long long total, excess, shared;
    int alive, nr_named;
    struct process named[NAMED];
};

static struct process found[MEMBERS];
static int nr_found;
/* By pid: where it is in `found`, plus one; when a member of that number started, plus one. */
static int place[PIDS];
static long long known[PIDS];

static int root, is_skipping_root;
static long long slack;
static long seen;

static int read_file(const char *path, char *to, int size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int length = 0, got;
    while (length < size - 1 && (got = read(fd, to + length, size - 1 - length)) > 0)
        length += got;
    close(fd);
    to[length] = 0;
    return length;
}

static int parse_stat(int pid, struct process *process)
{
    char path[64], text[1024], state;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (read_file(path, text, sizeof text) <= 0)
        return 0;
    char *open_at = strchr(text, '('), *close_at = strrchr(text, ')');
    if (!open_at || !close_at)
        return 0;
    *close_at = 0;
    memset(process, 0, sizeof *process);
    process->pid = pid;
    for (int i = 0; open_at[1 + i] && i < (int)sizeof process->name - 1; i++) {
        char c = open_at[1 + i];
        process->name[i] = c < ' ' || c == '"' || c == '\\' || c > '~' ? '?' : c;
    }
    if (sscanf(close_at + 1, " %c %d %*d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lld", &state,
               &process->parent, &process->session, &process->start) != 4)
        return 0;
    process->is_alive = state != 'Z' && state != 'X';
    return 1;
}

static int is_counted(const struct process *process)
{
    return process->is_member && process->is_alive && !(is_skipping_root && process->pid == root);
}

/* Fills `found` with all processes and marks the members; a word that changes when a live member comes or goes. */
static unsigned long long list(void)
{
    for (int i = 0; i < nr_found; i++)
        place[found[i].pid] = 0;
    nr_found = 0;
    DIR *proc = opendir("/proc");
    if (!proc) {
        perror("sampler: /proc");
        exit(1);
    }
    struct dirent *entry;
    while ((entry = readdir(proc)) && nr_found < MEMBERS) {
        int pid = atoi(entry->d_name);
        if (pid > 0 && pid < PIDS && parse_stat(pid, &found[nr_found]))
            place[pid] = ++nr_found;
    }
    closedir(proc);
    if (nr_found == MEMBERS) {
        fprintf(stderr, "sampler: more than %d processes\n", MEMBERS);
        exit(1);
    }
    for (int is_changed = 1; is_changed;) {
        is_changed = 0;
        for (int i = 0; i < nr_found; i++) {
            struct process *process = &found[i];
            if (process->is_member)
                continue;
            int above = process->parent > 0 && process->parent < PIDS ? place[process->parent] : 0;
            if (process->pid == root || process->session == root || known[process->pid] == process->start + 1 ||
                (above && found[above - 1].is_member)) {
                process->is_member = is_changed = 1;
                if (known[process->pid] != process->start + 1) {
                    known[process->pid] = process->start + 1;
                    seen += !(is_skipping_root && process->pid == root);
                }
            }
        }
    }
    unsigned long long word = 0;
    for (int i = 0; i < nr_found; i++) {
        if (is_counted(&found[i]))
            word += (unsigned long long)(found[i].pid + found[i].start * PIDS) * 0x9E3779B97F4A7C15ull;
    }
    return word;
}

static long long field(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? atoll(at + strlen(name)) * 1024 : -1;
}

static int has_memory_of_parent(const struct process *process)
{
    return syscall(SYS_kcmp, process->pid, process->parent, KCMP_VM_TYPE, 0ul, 0ul) == 0;
}

static void keep(struct sample *into, const struct process *process)
{
    int at = into->nr_named < NAMED ? into->nr_named++ : NAMED;
    for (; at > 0 && into->named[at - 1].held < process->held; at--) {
        if (at < NAMED)
            into->named[at] = into->named[at - 1];
    }
    if (at < NAMED)
        into->named[at] = *process;
}

static void look(struct process *process, struct sample *into)
{
    char path[64], text[4096];
    long long held = -1;
    if (has_memory_of_parent(process))
        return;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", process->pid);
    if (read_file(path, text, sizeof text) > 0) {
        held = field(text, "Pss_Anon:");
        long long shared = field(text, "Pss_Shmem:");
        into->shared += shared > 0 ? shared : 0;
    }
    if (held < 0) {
        /* Not ours to look into. */
        snprintf(path, sizeof path, "/proc/%d/status", process->pid);
        if (read_file(path, text, sizeof text) > 0)
            held = field(text, "RssAnon:");
    }
    if (held < 0 || has_memory_of_parent(process))
        return;
    process->held = held;
    into->total += held;
    into->excess += held > slack ? held - slack : 0;
    into->alive++;
    keep(into, process);
}

/* One sample; whether the members stayed the same meanwhile. */
static int take(struct sample *into)
{
    memset(into, 0, sizeof *into);
    unsigned long long before = list();
    for (int i = 0; i < nr_found; i++) {
        if (is_counted(&found[i]))
            look(&found[i], into);
    }
    return list() == before;
}

int main(int count, char **words)
{
    if (count != 5) {
        fprintf(stderr, "usage: sampler ROOT SKIP_ROOT SLACK_BYTES INTERVAL_MS\n");
        return 2;
    }
    root = atoi(words[1]);
    is_skipping_root = atoi(words[2]);
    slack = atoll(words[3]);
    int interval = atoi(words[4]);
    static struct sample now, again, peak, excess;
    long long shared = 0;
    long samples = 0;
    int alive = 0;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, interval) == 0) {
        int is_steady = take(&now);
        for (int i = 1; i < TRIES && !is_steady && (now.total > peak.total || now.excess > excess.excess); i++) {
            is_steady = take(&again);
            if (is_steady || again.excess < now.excess || (again.excess == now.excess && again.total < now.total))
                now = again;
        }
        samples++;
        alive = now.alive > alive ? now.alive : alive;
        shared = now.shared > shared ? now.shared : shared;
        if (now.total > peak.total)
            peak = now;
        if (now.excess > excess.excess)
            excess = now;
    }
    printf("{\"samples\": %ld, \"peak\": %lld, \"peak_processes\": %d, \"excess\": %lld, \"excess_total\": %lld, "
           "\"excess_processes\": %d, \"shared_peak\": %lld, \"seen\": %ld, \"alive\": %d, \"members\": [",
           samples, peak.total, peak.alive, excess.excess, excess.total, excess.alive, shared, seen, alive);
    for (int i = 0; i < excess.nr_named; i++)
        printf("%s[\"%s\", %d, %lld]", i ? ", " : "", excess.named[i].name, excess.named[i].pid, excess.named[i].held);
    printf("]}\n");
    return 0;
}
