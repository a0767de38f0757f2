/* A block that realloc grows by mremap, from one page to many, between evictions. */
#include "pressure.h"
int main(void)
{
    size_t len = 256 * 1024;
    unsigned char *m = malloc(len);
    fill(m, len, 1);
    while (len < 8 * MIB) {
        evict(m, len);
        size_t more = len + len / 2 + 4711;
        m = realloc(m, more);
        REQUIRE(m);
        check(m, len, 1, "a grown block");
        fill(m, more, 1);
        len = more;
    }
    evict(m, len);
    m = realloc(m, MIB);
    check(m, MIB, 1, "a shrunk block");
    free(m);
    return ok();
}
