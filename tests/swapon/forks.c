/* forks CONTROL MEGABYTES: forks children all the time. Each checks all its memory, changes some of it, says `ready childN
 * PID`, and when it may (CONTROL/goN is there) checks all of it again and ends. CONTROL/stop ends the parent when its
 * children have ended, after one more check: `done parent N`, with N its children.
 *
 * What is in the memory does not compress. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS (4096 / sizeof(uint64_t))
#define AT_ONCE 3

static uint64_t *data, *seeds;
static size_t pages;

static uint64_t next(uint64_t *x) { return *x = *x * 6364136223846793005u + 1442695040888963407u; }

static void say(const char *word, const char *name, long n) {
    char line[80];
    int len = snprintf(line, sizeof line, "%s %s %ld\n", word, name, n);
    if (write(1, line, len) != len)
        _exit(1);
}

static void fill(size_t page, uint64_t seed) {
    seeds[page] = seed;
    for (size_t i = 0; i < WORDS; i++)
        data[page * WORDS + i] = next(&seed);
}

static void check(const char *name) {
    for (size_t page = 0; page < pages; page++) {
        uint64_t seed = seeds[page];
        for (size_t i = 0; i < WORDS; i++)
            if (data[page * WORDS + i] != next(&seed))
                say("WRONG", name, (long)page), _exit(3);
    }
}

static int is_there(const char *control, const char *name) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", control, name);
    return access(path, F_OK) == 0;
}

static void reap(int *running, int options) {
    int status;
    while (*running && waitpid(-1, &status, options) > 0) {
        if (status)
            say("WRONG", "status", status), _exit(3);
        (*running)--;
    }
}

int main(int argc, char **argv) {
    int running = 0;
    long children = 0, rounds = 0;
    uint64_t x = 1;
    if (argc < 3)
        return 2;
    pages = strtoul(argv[2], NULL, 10) << 8;
    data = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    seeds = calloc(pages, sizeof *seeds);
    if (data == MAP_FAILED || !seeds)
        return 2;
    for (size_t page = 0; page < pages; page++)
        fill(page, next(&x));
    say("ready", "parent", getpid());
    while (!is_there(argv[1], "stop")) {
        if (running < AT_ONCE) {
            char name[32], go[32];
            snprintf(name, sizeof name, "child%ld", children);
            snprintf(go, sizeof go, "go%ld", children);
            pid_t pid = fork();
            if (pid < 0)
                return 5;
            if (pid == 0) {
                x += children;
                check(name);
                for (size_t page = 0; page < pages; page += 1 + next(&x) % 7)
                    fill(page, next(&x));
                say("ready", name, getpid());
                while (!is_there(argv[1], go))
                    usleep(5000);
                check(name);
                _exit(0);
            }
            running++, children++;
        }
        for (int i = 0; i < 2000; i++)
            fill((next(&x) >> 20) % pages, x);
        reap(&running, WNOHANG);
        say("round", "parent", ++rounds);
        usleep(20000);
    }
    reap(&running, 0);
    check("parent");
    say("done", "parent", children);
    return 0;
}
