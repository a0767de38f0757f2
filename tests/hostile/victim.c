// Fills memory that does not fit its budget, checks it, changes it and forks, over and over.   victim MEGABYTES SECONDS
// 3 when it finds what it did not write.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 512 };

static uint64_t word(uint64_t page, uint64_t version, uint64_t at) {
    uint64_t x = (page * 0x9e3779b97f4a7c15u) ^ (version << 40) ^ (at * 0xbf58476d1ce4e5b9u);
    return x ^ x >> 29;
}

static void fill(uint64_t *memory, uint64_t page, uint64_t version) {
    for (uint64_t at = 0; at < WORDS; at++) memory[page * WORDS + at] = word(page, version, at);
}

static void check(const uint64_t *memory, uint64_t page, uint64_t version) {
    for (uint64_t at = 0; at < WORDS; at++) {
        if (memory[page * WORDS + at] != word(page, version, at)) {
            fprintf(stderr, "victim: page %lu word %lu is wrong\n", page, at);
            _exit(3);
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    uint64_t pages = strtoull(argv[1], NULL, 10) << 8;
    uint64_t *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    time_t end = time(NULL) + atoi(argv[2]);
    for (uint64_t page = 0; page < pages; page++) fill(memory, page, 0);
    uint64_t version = 0;
    do {
        pid_t child = fork();
        if (child < 0) return 2;
        if (child == 0) {
            for (uint64_t page = 0; page < pages; page += 3) {
                check(memory, page, version);
                if (page % 4 == 0) fill(memory, page, version + 9);
            }
            for (uint64_t page = 0; page < pages; page += 12) check(memory, page, version + 9);
            _exit(0);
        }
        for (uint64_t page = 0; page < pages; page++) check(memory, page, version);
        version++;
        for (uint64_t page = 0; page < pages; page++) fill(memory, page, version);
        int status;
        if (waitpid(child, &status, 0) != child) return 2;
        // Who finds no memory ends by SIGKILL.
        if (status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
            fprintf(stderr, "victim: its child ended with %#x\n", status);
            return 3;
        }
    } while (time(NULL) < end);
    return 0;
}
