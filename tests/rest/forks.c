// Fills memory with what does not compress, forks children that wait, and waits too.   forks MEGABYTES CHILDREN [exit|more MEGABYTES]
// Says "ready" when all are there. Then `exit` leaves the children to themselves, and `more` fills more.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t state = 88172645463325252u;

static void fill(size_t bytes) {
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) exit(2);
    for (size_t i = 0; i < bytes / 8; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memory[i] = state;
    }
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    fill((size_t)atoi(argv[1]) << 20);
    for (int i = 0; i < atoi(argv[2]); i++) {
        pid_t child = fork();
        if (child < 0) {
            perror("forks: fork");
            return 2;
        }
        if (child == 0) {
            for (;;) pause();
        }
    }
    puts("ready");
    fflush(stdout);
    if (argc > 3 && strcmp(argv[3], "exit") == 0) return 0;
    if (argc > 4 && strcmp(argv[3], "more") == 0) fill((size_t)atoi(argv[4]) << 20);
    for (;;) pause();
}
