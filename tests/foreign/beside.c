/* beside MIB COMMAND ARGS...: runs a command beside a hog, which holds so many MiB, walks through them over and over and
 * verifies every word. Its budget is the command's, too: what the command does not touch for a moment goes out. Ends with
 * the status of the command (128 + the signal that ended it), or with 99 if the hog lost anything.
 *
 * beside 0 COMMAND ARGS...: without a hog. As the first process of a pid namespace it takes away whoever is left to it. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, BETWEEN_RESTS = 64 };

static uint64_t word_of(uint64_t page, uint64_t at, uint64_t round)
{
    uint64_t x = (page * 0x9e3779b97f4a7c15u ^ at ^ round << 40) * 0xbf58476d1ce4e5b9u;
    /* A quarter of it does not compress. */
    return at % 4 ? x & 0xff : x ^ x >> 29;
}

static void hog(size_t pages, int ready)
{
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        _exit(98);
    for (uint64_t round = 0;; round++) {
        for (size_t page = 0; page < pages; page++) {
            for (size_t at = 0; at < WORDS; at++) {
                uint64_t *word = memory + page * WORDS + at;
                if (round > 0 && *word != word_of(page, at, round - 1)) {
                    fprintf(stderr, "hog: word %zu of page %zu is %#lx in round %lu\n", at, page, *word, round);
                    _exit(99);
                }
                *word = word_of(page, at, round);
            }
            /* Others have something to do, too. */
            struct timespec rest = { 0, 1000000 };
            if (round > 0 && page % BETWEEN_RESTS == 0)
                nanosleep(&rest, NULL);
        }
        if (round == 0 && write(ready, "r", 1) != 1)
            _exit(98);
    }
}

static int status_of(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 98;
    size_t pages = strtoul(argv[1], NULL, 10) << 8;
    pid_t hungry = 0;
    if (pages > 0) {
        int ends[2];
        char byte;
        if (pipe(ends) != 0 || (hungry = fork()) < 0)
            return 98;
        if (hungry == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            hog(pages, ends[1]);
        }
        close(ends[1]);
        if (read(ends[0], &byte, 1) != 1)
            return 98;
        close(ends[0]);
    }
    pid_t command = fork();
    if (command < 0)
        return 98;
    if (command == 0) {
        setsid();
        execvp(argv[2], argv + 2);
        fprintf(stderr, "beside: %s: %s\n", argv[2], strerror(errno));
        _exit(127);
    }
    for (int result = -1;;) {
        int status;
        pid_t ended = wait(&status);
        if (ended < 0 && errno != EINTR)
            return 98;
        if (ended == command) {
            result = status_of(status);
            if (!hungry)
                return result;
            kill(hungry, SIGKILL);
        }
        if (hungry && ended == hungry)
            return result >= 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? result : 99;
    }
}
