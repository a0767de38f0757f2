/* Says whose rights it has: for a file with the set-user-ID bit, the owner's. The loader then loads nothing it is asked to. */
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
    printf("elevated: %d %lu %d\n", (int)geteuid(), getauxval(AT_SECURE), memory[5 << 20]);
    return 0;
}
