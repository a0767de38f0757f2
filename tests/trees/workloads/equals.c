// Two processes that do the same: each fills memory, then changes words of a part of it at random, and checks what it finds.
//   equals WARM_SECONDS SECONDS ROUNDS HOT_MEGABYTES MEGABYTES MEGABYTES
// The second begins when the first has all of its memory. WARM_SECONDS later a line for each of ROUNDS times SECONDS says how
// many words each has changed.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct told {
    volatile uint64_t ready, changed, pad[6];
};

static uint64_t word(uint64_t at, uint64_t times) {
    uint64_t x = (at + 1) * 0x9e3779b97f4a7c15u + times;
    return (x ^ (x >> 31)) & ~0xffull;
}

// The low byte of each word says how often it was changed.
static void work(size_t bytes, size_t hot, struct told *told, uint64_t seed) {
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) _exit(2);
    size_t words = bytes / 8;
    for (size_t i = 0; i < words; i++) memory[i] = word(i, 0);
    told->ready = 1;
    for (uint64_t x = seed;; told->changed++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        size_t i = x % (hot / 8);
        uint64_t times = memory[i] & 0xff, next = (times + 1) & 0xff;
        if (memory[i] != (word(i, times) | times)) {
            fprintf(stderr, "equals: word %zu is wrong\n", i);
            _exit(3);
        }
        memory[i] = word(i, next) | next;
    }
}

static void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

int main(int argc, char **argv) {
    if (argc != 7) return 2;
    size_t hot = (size_t)atoi(argv[4]) << 20;
    struct told *told = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        if (children[i] == 0) work((size_t)atoi(argv[5 + i]) << 20, hot, told + i, 88172645463325252u + (uint64_t)i);
        while (!told[i].ready) {
            if (waitpid(children[i], NULL, WNOHANG) != 0) return 3;
            sleep_ms(1);
        }
    }
    sleep_ms(1000 * atol(argv[1]));
    for (int round = atoi(argv[3]); round > 0; round--) {
        uint64_t before[2] = {told[0].changed, told[1].changed};
        sleep_ms(1000 * atol(argv[2]));
        printf("%llu %llu\n", (unsigned long long)(told[0].changed - before[0]),
               (unsigned long long)(told[1].changed - before[1]));
        fflush(stdout);
    }
    for (int i = 0; i < 2; i++) {
        int status;
        if (waitpid(children[i], &status, WNOHANG) != 0) return 3;
        kill(children[i], 9);
        waitpid(children[i], &status, 0);
    }
    return 0;
}
