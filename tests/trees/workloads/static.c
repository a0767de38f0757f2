/* Holds memory until it is told to end: static MIB DIRECTORY. Makes DIRECTORY/held, then waits for DIRECTORY/release; in
 * between nothing of its memory changes. Built without a dynamic loader: nothing is loaded into it. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int count, char **words)
{
    if (count != 3)
        return 2;
    size_t size = strtoul(words[1], 0, 10) << 20;
    uint64_t *memory = malloc(size);
    if (!memory)
        return 3;
    for (size_t i = 0; i < size / 8; i++)
        memory[i] = i * 0x9E3779B97F4A7C15ull;
    char held[4096], release[4096];
    snprintf(held, sizeof held, "%s/held", words[2]);
    snprintf(release, sizeof release, "%s/release", words[2]);
    int fd = open(held, O_CREAT | O_WRONLY, 0644);
    if (fd < 0)
        return 4;
    close(fd);
    while (access(release, F_OK) != 0) {
        struct timespec pause = {.tv_nsec = 20000000};
        nanosleep(&pause, 0);
    }
    for (size_t i = 0; i < size / 8; i++) {
        if (memory[i] != i * 0x9E3779B97F4A7C15ull)
            return 5;
    }
    printf("static: held %s MiB\n", words[1]);
    return 0;
}
