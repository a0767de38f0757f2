/* Whatever Ebb maps for itself while it swaps is not among the mappings that a program sees. */
#include "pressure.h"
int main(void)
{
    unsigned char *memory = fresh(24 * MIB);
    char line[1024];
    fill(memory, 24 * MIB, 2);
    evict(memory, 24 * MIB);
    check(memory, 24 * MIB, 2, "from a disk");
    FILE *maps = fopen("/proc/self/maps", "r");
    REQUIRE(maps != NULL);
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "[aio]") || strstr(line, "rw-s"))
            fail("a mapping is not the program's: %s", line);
    fclose(maps);
    return ok();
}
