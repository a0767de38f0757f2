/* Address space reserved without access and made usable piece by piece, given back and used again, as run-times do. */
#include "pressure.h"
#define RESERVE (1024 * MIB)
#define PIECE (512 * 1024)
int main(void)
{
    unsigned char *base = MUST(mmap(NULL, RESERVE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (unsigned round = 0; round < 3; round++) {
        for (size_t i = 0; i < 8; i++) {
            unsigned char *at = base + i * 97 * MIB + round * 3 * PAGE;
            MUST(mprotect(at, PIECE, PROT_READ | PROT_WRITE));
            check_zero(at, PIECE, "a piece made usable");
            fill(at, PIECE, round * 8 + i);
        }
        evict(base + round * 3 * PAGE, PIECE);
        for (size_t i = 0; i < 8; i++) {
            unsigned char *at = base + i * 97 * MIB + round * 3 * PAGE;
            check(at, PIECE, round * 8 + i, "a piece");
            MUST(mprotect(at, PIECE, PROT_NONE));
        }
        evict(base + round * 3 * PAGE, PIECE);
        for (size_t i = 0; i < 8; i++) {
            unsigned char *at = base + i * 97 * MIB + round * 3 * PAGE;
            MUST(mprotect(at, PIECE, PROT_READ));
            check(at, PIECE, round * 8 + i, "a piece that was out of reach");
            if (i % 2) {
                MUST(madvise(at, PIECE, MADV_DONTNEED));
                MUST(mprotect(at, PIECE, PROT_NONE));
            } else {
                REQUIRE(mmap(at, PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at);
            }
        }
    }
    return ok();
}
