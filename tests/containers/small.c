/* A program that gives up its user, and with an argument its root directory before, while it is small. Then it needs 40 MiB, as a
 * parent and as a child. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 40 << 20, PAGE = 4096 };

static int check(const unsigned char *memory)
{
    for (size_t at = 0; at < BYTES; at += PAGE)
        if (memory[at] != (unsigned char)(at / PAGE))
            return 1;
    return 0;
}

int main(int count, char **arguments)
{
    if (count > 1 && (chroot(arguments[1]) || chdir("/")))
        return 2;
    if (setgid(65534) || setuid(65534))
        return 2;
    unsigned char *memory = malloc(BYTES);
    if (!memory)
        return 3;
    for (size_t at = 0; at < BYTES; at += PAGE)
        memset(memory + at, (int)(at / PAGE), PAGE);
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(check(memory));
    if (child < 0 || waitpid(child, &status, 0) != child || status || check(memory))
        return 4;
    puts("kept");
    return 0;
}
