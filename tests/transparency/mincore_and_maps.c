/* Calls that look at memory: mincore, /proc/self/maps, smaps and msync give plausible answers for evicted memory. */
#include "pressure.h"
int main(void)
{
    unsigned char *m = fresh(MIB), vector[257];
    fill(m, MIB, 1);
    evict(m, MIB);
    memset(vector, 0x55, sizeof vector);
    MUST(mincore(m, MIB, vector));
    REQUIRE(vector[256] == 0x55 && (vector[0] & ~1) == 0);
    MUST(msync(m, MIB, MS_SYNC));
    REQUIRE(mincore(m, MIB, NULL) == -1 && errno == EFAULT);
    static char text[1 << 20];
    int fd = MUST(open("/proc/self/maps", O_RDONLY));
    size_t have = 0;
    for (ssize_t n; (n = read(fd, text + have, sizeof text - 1 - have)) > 0;)
        have += n;
    char *line = text;
    int found = 0;
    while (line && *line) {
        unsigned long low, high;
        char prot[5];
        REQUIRE(sscanf(line, "%lx-%lx %4s", &low, &high, prot) == 3);
        if (low <= (uintptr_t)m && (uintptr_t)m < high) {
            REQUIRE(strcmp(prot, "rw-p") == 0);
            found++;
        }
        line = strchr(line, '\n');
        line += line != NULL;
    }
    REQUIRE(found == 1);
    check(m, MIB, 1, "at the end");
    return ok();
}
