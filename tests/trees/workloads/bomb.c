/* Short processes in great number: bomb TOTAL WIDTH.
 *
 * At most WIDTH at once. Each takes 1 to 12 MiB, fills it, waits a moment, verifies it, and ends; some become another
 * program then. Prints how many ended well; the status is 0 when all did.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/* A quarter of a page is noise, the rest compresses. */
static uint64_t word_of(uint64_t seed, size_t at)
{
    return at % 4 == 0 ? mixed(seed * 1000003 + at) : seed + at / 512;
}

static int child(uint64_t seed)
{
    size_t words = (1 + mixed(seed) % 12) * (1 << 20) / sizeof(uint64_t);
    uint64_t *memory;
    if (mixed(seed) & 256)
        memory = malloc(words * sizeof *memory);
    else
        memory = mmap(0, words * sizeof *memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!memory || memory == MAP_FAILED)
        return 2;
    for (size_t i = 0; i < words; i++)
        memory[i] = word_of(seed, i);
    struct timespec pause = {.tv_nsec = (long)(mixed(seed + 1) % 900) * 1000000};
    nanosleep(&pause, 0);
    for (size_t i = 0; i < words; i++) {
        if (memory[i] != word_of(seed, i)) {
            fprintf(stderr, "bomb: child %lu: word %zu is wrong\n", (unsigned long)seed, i);
            return 3;
        }
    }
    if (seed % 8 == 3)
        execl("/bin/true", "true", (char *)0);
    if (seed % 8 == 5)
        execl("/bin/sh", "sh", "-c", "exit 0", (char *)0);
    return 0;
}

int main(int count, char **words)
{
    if (count != 3)
        return 2;
    int total = atoi(words[1]), width = atoi(words[2]), started = 0, alive = 0, good = 0;
    while (started < total || alive > 0) {
        while (started < total && alive < width) {
            pid_t pid = fork();
            if (pid == 0)
                _exit(child(started + 1));
            if (pid < 0) {
                perror("bomb: fork");
                return 4;
            }
            started++;
            alive++;
        }
        int status;
        pid_t pid = wait(&status);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid < 0) {
            perror("bomb: wait");
            return 5;
        }
        alive--;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            good++;
        else
            fprintf(stderr, "bomb: %d ended with %#x\n", (int)pid, status);
    }
    printf("%d of %d ended well\n", good, total);
    return good != total;
}
