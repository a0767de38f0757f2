// A member of a tree that wishes it harm: becomes another user where it can, and then stores, truncates, punches and locks at
// random in the area that the tree shares.   member SEED SECONDS
// Linked statically, so that nothing of Ebb's is in it.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/falloc.h>
#include <linux/futex.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NOBODY = 65534 };
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
// Where the area has something: counters and members, then the masks of its shares, 4 GiB for each, then seven times as much for
// each share's further holders.
#define HEAD_BYTES (4 * MIB)
#define SHARES_AT (4 * GIB)
#define SHARE_BYTES (4 * GIB)
#define SHARES 12
#define PLANES_AT (SHARES_AT + 240 * SHARE_BYTES)
#define PLANES 7
#define WINDOW_BYTES (2 * MIB)
// Where processes lock bytes.
#define LOCKS_AT ((uint64_t)1 << 43)
// Pages that it makes the file have at most.
#define PAGES_MAX 16384

static uint64_t state;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t below(uint64_t n) { return next() % n; }

static int area(void) {
    char link[256];
    DIR *all = opendir("/proc/self/fd");
    for (struct dirent *entry; all && (entry = readdir(all));) {
        ssize_t len = readlinkat(dirfd(all), entry->d_name, link, sizeof link - 1);
        if (len > 0) {
            link[len] = 0;
            if (strstr(link, "ebb-stats")) return atoi(entry->d_name);
        }
    }
    fprintf(stderr, "member: it has no area\n");
    exit(2);
}

static uint64_t value(uint64_t was) {
    switch (below(10)) {
    case 0: return 0;
    case 1: return UINT64_MAX;
    case 2: return (uint64_t)1 << 63;
    case 3: return INT64_MAX;
    case 4: return (uint64_t)1 << below(64);
    case 5: return was + 1;
    case 6: return was - 1;
    case 7: return was ^ (uint64_t)1 << below(64);
    case 8: return below(1 << 20);
    default: return next();
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void *window_of(int fd, uint64_t at, uint64_t bytes) {
    void *window = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
    if (window == MAP_FAILED) {
        perror("member: mmap");
        exit(2);
    }
    return window;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    state = strtoull(argv[1], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
    int fd = area();
    if (geteuid() == 0 && (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY))) {
        perror("member: setresuid");
        return 2;
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct stat before, after;
    fstat(fd, &before);
    volatile uint64_t *head = window_of(fd, 0, HEAD_BYTES);
    volatile uint64_t *window = window_of(fd, SHARES_AT, WINDOW_BYTES);
    uint64_t pages = 0;
    double end = now() + atof(argv[2]);
    for (uint64_t i = 0; i % 64 || now() < end; i++) {
        uint64_t kind = below(1000);
        if (kind < 600) {
            // What says something is the best to change.
            uint64_t at = below(HEAD_BYTES / 8);
            for (int tries = 0; tries < 64 && !head[at]; tries++) at = below(HEAD_BYTES / 8);
            head[at] = value(head[at]);
        } else if (kind < 900 && pages < PAGES_MAX) {
            uint64_t at = below(WINDOW_BYTES / 8);
            window[at] = value(window[at]);
            pages++;
        } else if (kind < 960) {
            munmap((void *)window, WINDOW_BYTES);
            uint64_t share = below(4) ? SHARES_AT + below(SHARES) * SHARE_BYTES : PLANES_AT + below(SHARES * PLANES) * SHARE_BYTES;
            // The words before the masks, then masks.
            window = window_of(fd, share + (below(3) ? below(16) : below(1000)) * WINDOW_BYTES, WINDOW_BYTES);
        } else if (kind < 970) {
            struct flock lock = {.l_type = below(3) ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET};
            lock.l_start = LOCKS_AT - 1 + (below(2) ? below(64) : (1 << 20) + below(SHARES));
            lock.l_len = 1 + below(4);
            fcntl(fd, F_SETLK, &lock);
        } else if (kind < 980) {
            if (ftruncate(fd, below(2) ? 0 : below(HEAD_BYTES)) == 0 || truncate(path, 0) == 0) {
                fprintf(stderr, "member: it was cut off\n");
                return 1;
            }
        } else if (kind < 990) {
            int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
            uint64_t from = below(8) ? (below(4) ? SHARES_AT : PLANES_AT) + below(SHARES) * SHARE_BYTES : 0;
            fallocate(fd, mode, from + below(512) * 4096, (1 + below(64)) * 4096);
        } else {
            syscall(SYS_futex, &head[below(HEAD_BYTES / 8)], FUTEX_WAKE, 1, NULL, NULL, 0);
        }
    }
    fstat(fd, &after);
    if (before.st_size != after.st_size) {
        fprintf(stderr, "member: %lld bytes are %lld\n", (long long)before.st_size, (long long)after.st_size);
        return 1;
    }
    return 0;
}
