/* closer FILE: closes descriptors in every way there is, and puts its own files in the places of Ebb's, until FILE is
 * there. Says how often. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The sockets and nameless files among the descriptors: not the counters and the lifeline, which a program may take. */
static int find(int *fds, int most) {
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    if (!dir)
        return 0;
    while (n < most && (entry = readdir(dir))) {
        char path[300], target[300];
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        ssize_t len = readlink(path, target, sizeof target - 1);
        if (atoi(entry->d_name) <= 2 || len <= 0)
            continue;
        target[len] = 0;
        if (strstr(target, ".ebb-control-") || (strstr(target, "/#") && strstr(target, "(deleted)")))
            fds[n++] = atoi(entry->d_name);
    }
    closedir(dir);
    return n;
}

int main(int argc, char **argv) {
    long rounds = 0, taken = 0;
    size_t len = 48 << 20;
    unsigned char *data = malloc(len);
    if (argc < 2 || !data)
        return 2;
    unsigned x = 1;
    for (size_t i = 0; i < len; i++)
        data[i] = (x = x * 1664525 + 1013904223) >> 24;
    printf("ready closer %d\n", (int)getpid());
    fflush(stdout);
    while (access(argv[1], F_OK)) {
        int fds[64];
        for (int fd = 3; fd < 4096; fd++)
            close(fd);
        int n = find(fds, 64);
        for (int i = 0; i < n; i++)
            if (dup2(1, fds[i]) == fds[i])
                taken++;
        close_range(3, ~0U, 0);
        closefrom(3);
        /* The socket itself has no name that says so: each number from 900 on is taken once. */
        for (int fd = 900 + rounds % 64; fd < 1000; fd += 64) {
            char path[64], target[64] = "";
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            if (readlink(path, target, sizeof target - 1) > 0 && !strncmp(target, "socket:", 7) && fd > 903)
                if (dup2(1, fd) == fd)
                    taken++;
        }
        close_range(3, ~0U, 0);
        rounds++;
    }
    x = 1;
    for (size_t i = 0; i < len; i++)
        if (data[i] != (unsigned char)((x = x * 1664525 + 1013904223) >> 24)) {
            printf("WRONG byte %zu\n", i);
            return 3;
        }
    printf("done %ld rounds, %ld taken\n", rounds, taken);
    return 0;
}
