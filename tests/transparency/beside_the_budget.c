/* Memory that nobody manages (thread stacks, data of programs, what the kernel writes for them) is counted from outside, and
   what is managed makes room for it. */
#include "pressure.h"
#define STACKS (12 * MIB)
#define ALLOWED (16 * MIB)
int main(void)
{
    const char *force = getenv("EBB_FORCE");
    if (force && strstr(force, "no-background"))
        return skip("without Ebb's thread, what lies beside the budget pushes nothing out that sleeps");
    size_t limit = budget(), size = limit ? limit * 2 : 64 * MIB, most = limit ? limit + ALLOWED : (size_t)-1;
    unsigned char *heap = fresh(size);
    fill(heap, size, 1);
    for (int i = 0; i < 3; i++) {
        unsigned char *stack = MUST(mmap(NULL, STACKS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0));
        fill(stack, STACKS, i);
    }
    /* It is seen late, so for a minute at most; then it has to stay. */
    double start = now_s();
    for (int fitting = 0; fitting < 5; fitting = held() <= most ? fitting + 1 : 0) {
        REQUIRE(now_s() - start < 60);
        for (size_t i = 0; i < size; i += 64 * PAGE)
            REQUIRE(heap[i] == ((volatile unsigned char *)heap)[i]);
        sleep_ms(100);
    }
    check(heap, size, 1, "at the end");
    return ok();
}
