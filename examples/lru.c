/* A cache of documents that tells Ebb what it knows: what it drops or what was changed elsewhere is dead, what it may drop next is
 * cold, and what the next requests ask for is needed soon. It serves the same requests twice, first without telling, and prints what telling saved.
 *
 *     gcc -O2 -Iinclude examples/lru.c -o lru && ebb run --ram 24M -- ./lru
 *
 * Alone it runs as well, and saves nothing.
 */
#define _GNU_SOURCE
#include "ebb.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define DOCUMENT (32 * 1024) /* bytes, whole pages */
#define SLOTS 1536           /* documents that the cache holds */
#define DROPPED 384          /* that it drops at once when it is full */
#define BATCH 24             /* requests that it knows ahead */
#define CHANGED 8            /* documents of a batch that change elsewhere afterwards, so that the cache must drop them */
#define BATCHES 120

struct slot {
    int document; /* -1 when free */
    int newer, older;
};

static struct slot slots[SLOTS];
static int newest, oldest;
static int free_slots[SLOTS], first_free, nr_free; /* the one that is free for longest is used first */
static unsigned char *memory;
static int slot_of[SLOTS * 4]; /* by document; -1 when it is not cached */
static int tells;

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    return (x ^ (x >> 27)) * 0x94d049bb133111ebu;
}

static void tell(int slot, enum ebb_advice advice)
{
    if (tells && ebb_advise(memory + (size_t)slot * DOCUMENT, DOCUMENT, advice) != 0) {
        perror("ebb_advise");
        exit(1);
    }
}

static void unlink_slot(int at)
{
    struct slot *s = &slots[at];
    if (s->newer >= 0)
        slots[s->newer].older = s->older;
    else
        newest = s->older;
    if (s->older >= 0)
        slots[s->older].newer = s->newer;
    else
        oldest = s->newer;
}

static void link_newest(int at)
{
    slots[at].newer = -1;
    slots[at].older = newest;
    if (newest >= 0)
        slots[newest].newer = at;
    else
        oldest = at;
    newest = at;
}

/* Drops a document: its content is not needed any more. */
static void drop(int at)
{
    unlink_slot(at);
    slot_of[slots[at].document] = -1;
    slots[at].document = -1;
    free_slots[(first_free + nr_free++) % SLOTS] = at;
    tell(at, EBB_DEAD);
}

/* Makes room: drops the documents that nobody has asked for longest. */
static void drop_some(void)
{
    while (nr_free < DROPPED)
        drop(oldest);
    /* Those that follow stay for now, and are the next to leave RAM. */
    for (int at = oldest, n = 0; at >= 0 && n < DROPPED; at = slots[at].newer, n++)
        tell(at, EBB_COLD);
}

/* Makes a document, as a server would by a query: half of it compresses. */
static void make(int document, int slot)
{
    uint64_t *word = (uint64_t *)(memory + (size_t)slot * DOCUMENT);
    for (size_t i = 0; i < DOCUMENT / 8; i++)
        word[i] = mix((uint64_t)document * DOCUMENT + i / (i & 512 ? 1 : 16));
}

static uint64_t serve(void)
{
    uint64_t sum = 0, random = 1;
    memory = mmap(NULL, (size_t)SLOTS * DOCUMENT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    newest = oldest = -1;
    first_free = 0;
    nr_free = SLOTS;
    for (int i = 0; i < SLOTS; i++)
        free_slots[i] = i;
    for (size_t i = 0; i < sizeof slot_of / sizeof *slot_of; i++)
        slot_of[i] = -1;
    for (int batch = 0; batch < BATCHES; batch++) {
        int asked[BATCH];
        for (int i = 0; i < BATCH; i++) {
            random = mix(random + 0x9e3779b97f4a7c15u);
            /* Every third request is for a document of some time ago, the others go through all of them. */
            int next = batch * BATCH + i;
            asked[i] = (i % 3 ? next : next - (int)(random % 600) * 2) % (SLOTS * 4);
            if (asked[i] < 0)
                asked[i] = next;
            if (slot_of[asked[i]] >= 0)
                tell(slot_of[asked[i]], EBB_SOON);
        }
        for (int i = 0; i < BATCH; i++) {
            int at = slot_of[asked[i]];
            if (at >= 0) {
                unlink_slot(at);
            } else {
                if (nr_free == 0)
                    drop_some();
                at = free_slots[first_free];
                first_free = (first_free + 1) % SLOTS;
                nr_free--;
                make(asked[i], at);
                slots[at].document = asked[i];
                slot_of[asked[i]] = at;
            }
            link_newest(at);
            const uint64_t *word = (const uint64_t *)(memory + (size_t)at * DOCUMENT);
            for (size_t j = 0; j < DOCUMENT / 8; j++)
                sum += word[j] * (j + 1);
        }
        for (int i = 0; i < CHANGED; i++)
            if (slot_of[asked[i * 3 + 1]] >= 0)
                drop(slot_of[asked[i * 3 + 1]]);
    }
    munmap(memory, (size_t)SLOTS * DOCUMENT);
    return sum;
}

/* What serving all requests took. */
static struct ebb_stats cost(int telling, uint64_t *sum)
{
    struct ebb_stats before, after;
    tells = telling;
    ebb_stats(&before);
    *sum = serve();
    ebb_stats(&after);
    after.faults = after.tree_faults_staged + after.tree_faults_pool + after.tree_faults_device - before.tree_faults_staged -
                   before.tree_faults_pool - before.tree_faults_device;
    after.tree_swapped_out_bytes -= before.tree_swapped_out_bytes;
    after.tree_device_write_bytes -= before.tree_device_write_bytes;
    return after;
}

static void line(const char *what, uint64_t without, uint64_t with)
{
    printf("%-26s %10llu %10llu  %3.0f %% saved\n", what, (unsigned long long)without, (unsigned long long)with,
           without ? 100 - 100.0 * (double)with / (double)without : 0);
}

int main(void)
{
    uint64_t sums[2];
    struct ebb_stats without = cost(0, &sums[0]), with = cost(1, &sums[1]);
    if (sums[0] != sums[1]) {
        fprintf(stderr, "lru: the documents differ: %llx and %llx\n", (unsigned long long)sums[0], (unsigned long long)sums[1]);
        return 1;
    }
    printf("all documents: %016llx\n", (unsigned long long)sums[0]);
    if (!ebb_active()) {
        puts("Ebb is not here, and nothing was swapped");
        return 0;
    }
    printf("%-26s %10s %10s\n", "", "untold", "told");
    line("KiB swapped out", without.tree_swapped_out_bytes >> 10, with.tree_swapped_out_bytes >> 10);
    line("KiB written to a device", without.tree_device_write_bytes >> 10, with.tree_device_write_bytes >> 10);
    line("faults on swapped memory", without.faults, with.faults);
    return 0;
}
