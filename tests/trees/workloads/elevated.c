/* Lives for two seconds, so that who looks from outside sees it, and says whose rights it has: for a file with the set-user-ID bit, the owner's. The loader then loads nothing it is asked to. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

int main(void)
{
    char *memory = malloc(8 << 20);
    if (!memory)
        return 2;
    memset(memory, 7, 8 << 20);
    sleep(2);
    printf("elevated: %d %lu %d\n", (int)geteuid(), getauxval(AT_SECURE), memory[5 << 20]);
    return 0;
}
