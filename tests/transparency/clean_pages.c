/* Memory that was read in order and not written since keeps its swap slot while it is in memory, write-protected. Every
 * way to write to it must go through: by instruction, by the kernel, in a child, in a parent, after mremap, after
 * mprotect, and beside memory that is dropped. */
#include "pressure.h"
#include <sys/uio.h>
#define LEN (24 * MIB)
static unsigned char *memory;

/* Each page has a seed of its own, because check() wants a pattern from its start. */
static void fill_pages(void)
{
    for (size_t i = 0; i < LEN; i += PAGE)
        fill(memory + i, PAGE, i / PAGE);
}

/* Reads everything in order, twice: what is in memory then is clean. Leaves out every so many pages. */
static void read_pages(size_t except, const char *what)
{
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < LEN; i += PAGE)
            if (except == 0 || i / PAGE % except != 0)
                check(memory + i, PAGE, i / PAGE, what);
}

static void by_instruction(void)
{
    for (size_t i = 0; i < LEN; i += 16 * PAGE) {
        volatile uint64_t *word = (uint64_t *)(memory + i);
        uint64_t before = *word;
        __atomic_fetch_add(word, 3, __ATOMIC_SEQ_CST);
        REQUIRE(*word == before + 3);
    }
    read_pages(16, "pages beside those written by an instruction");
    for (size_t i = 0; i < LEN; i += 16 * PAGE) {
        *(uint64_t *)(memory + i) -= 3;
        check(memory + i, PAGE, i / PAGE, "pages written twice");
    }
}

static void by_kernel(void)
{
    int ends[2];
    MUST(pipe(ends));
    for (size_t i = 0; i < LEN; i += 16 * PAGE) {
        unsigned char *page = memory + i;
        check(page, PAGE, i / PAGE, "a page before the kernel writes to it");
        switch (i / (16 * PAGE) % 5) {
        case 0:
            REQUIRE(write(ends[1], "0123456789", 10) == 10);
            REQUIRE(read(ends[0], page, PAGE) == 10 && memcmp(page, "0123456789", 10) == 0);
            break;
        case 1: {
            struct iovec parts[2] = { { page, 4 }, { page + PAGE / 2, 6 } };
            REQUIRE(write(ends[1], "0123456789", 10) == 10);
            REQUIRE(readv(ends[0], parts, 2) == 10 && memcmp(page + PAGE / 2, "456789", 6) == 0);
            break;
        }
        case 2:
            REQUIRE(syscall(SYS_getrandom, page, 16, 0) == 16);
            break;
        case 3:
            REQUIRE(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, page) == 0);
            break;
        default:
            REQUIRE(syscall(SYS_getcwd, page, PAGE) > 0);
        }
    }
    close(ends[0]);
    close(ends[1]);
    read_pages(16, "pages beside those the kernel wrote to");
    for (size_t i = 0; i < LEN; i += 16 * PAGE)
        fill(memory + i, PAGE, i / PAGE);
}

static void child(void *argument)
{
    (void)argument;
    read_pages(0, "pages in a child");
    for (size_t i = 0; i < LEN; i += 7 * PAGE)
        fill(memory + i, PAGE, i / PAGE + 1);
    read_pages(7, "pages a child left alone");
    for (size_t i = 0; i < LEN; i += 7 * PAGE)
        check(memory + i, PAGE, i / PAGE + 1, "pages a child wrote to");
}

int main(void)
{
    memory = fresh(LEN);
    fill_pages();
    read_pages(0, "pages read in order");
    by_instruction();
    read_pages(0, "pages before the kernel writes");
    by_kernel();
    read_pages(0, "pages before a fork");
    pid_t pid = child_of(child, NULL);
    for (size_t i = 0; i < LEN; i += 5 * PAGE)
        fill(memory + i, PAGE, i / PAGE);
    wait_ok(pid);
    read_pages(0, "pages after a fork");
    memory = MUST(mremap(memory, LEN, LEN + 64 * MIB, MREMAP_MAYMOVE));
    by_instruction();
    read_pages(0, "pages after mremap");
    MUST(mprotect(memory, LEN, PROT_READ));
    read_pages(0, "pages that cannot be written");
    MUST(mprotect(memory, LEN, PROT_READ | PROT_WRITE));
    by_instruction();
    read_pages(0, "pages before a part is dropped");
    MUST(madvise(memory + LEN / 2, LEN / 4, MADV_DONTNEED));
    check_zero(memory + LEN / 2, LEN / 4, "dropped pages");
    for (size_t i = LEN / 2; i < LEN / 4 * 3; i += PAGE)
        fill(memory + i, PAGE, i / PAGE);
    read_pages(0, "pages at the end");
    pages_evicted += absent(memory, LEN);
    return ok();
}
