// A process that works, while its children, which wait, share with it what it had when it forked.
//   idlers CHILDREN SHARED_MEGABYTES LOCKED_MEGABYTES OWN_MEGABYTES SECONDS
// It fills SHARED_MEGABYTES, forks, and changes words of other memory at random. The first child locks LOCKED_MEGABYTES of its
// own before that. Says how many words it has changed in SECONDS; then each child looks whether what it shares is what it was.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHILDREN_MAX 16

static uint64_t word(uint64_t at, uint64_t times) {
    uint64_t x = (at + 1) * 0x9e3779b97f4a7c15u + times;
    return (x ^ (x >> 31)) & ~0xffull;
}

static uint64_t *map(size_t bytes) {
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) exit(2);
    return memory;
}

static uint64_t *fill(size_t bytes) {
    uint64_t *memory = map(bytes);
    for (size_t i = 0; i < bytes / 8; i++) memory[i] = word(i, 0);
    return memory;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

// Writes a byte when it is ready, and reads one before it looks at what it shares.
static int child(const uint64_t *shared, size_t bytes, size_t locked, int in, int out) {
    char *own = (char *)map(locked + 1);
    memset(own, 1, locked);
    if (locked > 0 && mlock(own, locked) != 0) return 2;
    char byte = 0;
    if (write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1) return 2;
    for (size_t i = 0; i < bytes / 8; i++) {
        if (shared[i] != word(i, 0)) {
            fprintf(stderr, "idlers: shared word %zu is wrong\n", i);
            return 3;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    int children = atoi(argv[1]);
    size_t shared_bytes = (size_t)atoi(argv[2]) << 20, locked = (size_t)atoi(argv[3]) << 20;
    size_t own_bytes = (size_t)atoi(argv[4]) << 20;
    int down[2], up[2];
    if (children > CHILDREN_MAX || pipe(down) != 0 || pipe(up) != 0) return 2;
    uint64_t *shared = fill(shared_bytes);
    for (int i = 0; i < children; i++) {
        pid_t pid = fork();
        if (pid < 0) return 2;
        if (pid == 0) _exit(child(shared, shared_bytes, i == 0 ? locked : 0, down[0], up[1]));
        char byte;
        if (read(up[0], &byte, 1) != 1) return 2;
    }
    uint64_t *own = fill(own_bytes), changed = 0, x = 88172645463325252u;
    for (double end = now() + atof(argv[5]); changed % 64 != 0 || now() < end; changed++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        size_t i = x % (own_bytes / 8);
        uint64_t times = own[i] & 0xff, next = (times + 1) & 0xff;
        if (own[i] != (word(i, times) | times)) {
            fprintf(stderr, "idlers: word %zu is wrong\n", i);
            return 3;
        }
        own[i] = word(i, next) | next;
    }
    printf("%lu\n", changed);
    char bytes[CHILDREN_MAX] = {0};
    if (write(down[1], bytes, (size_t)children) != children) return 2;
    int wrong = 0;
    for (int status; wait(&status) > 0;) wrong |= status;
    for (size_t i = 0; i < shared_bytes / 8; i++) wrong |= shared[i] != word(i, 0);
    return wrong != 0;
}
