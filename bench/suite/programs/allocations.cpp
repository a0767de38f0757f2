// Threads that allocate, resize and free blocks of many sizes at random. Each block's ends are checked.
//
// allocations THREADS OPERATIONS BLOCKS [STEP]: operations and live blocks are those of one thread. With STEP, a thread that has
// made so many operations waits for the others. Without, the scheduler decides how much of the time all threads' blocks are in
// use: where it prefers one thread to the others, that thread ends sooner, and the rest fit better. Prints a sum over all that
// was checked, which depends on the first three arguments alone.
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

struct Random {
    uint64_t state;
    uint64_t below(uint64_t n)
    {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state % n;
    }
};

struct Block {
    unsigned char *at;
    size_t bytes;
    unsigned char tag;
};

// Adds the block's ends to the sum; ends the program if one is not what was written.
void check(const Block &block, uint64_t &sum)
{
    if (block.at[0] != block.tag || block.at[block.bytes - 1] != block.tag) {
        fprintf(stderr, "allocations: a block of %zu bytes has lost its content\n", block.bytes);
        abort();
    }
    sum = sum * 31 + block.tag + block.bytes;
}

void fill(Block &block, unsigned char *at, size_t bytes, unsigned char tag)
{
    if (!at) {
        fprintf(stderr, "allocations: no memory for %zu bytes\n", bytes);
        abort();
    }
    block = {at, bytes, tag};
    memset(at, tag, bytes);
}

void work(int thread, long operations, long blocks, long step, std::barrier<> &others, uint64_t &sum)
{
    Random random{0x9e3779b97f4a7c15u * (thread + 1)};
    std::vector<Block> live(blocks, Block{nullptr, 0, 0});
    for (long i = 0; i < operations; i++) {
        Block &block = live[random.below(blocks)];
        size_t bytes = 16 + random.below(random.below(16) == 0 ? 65536 : 4096);
        unsigned char tag = random.below(256);
        if (block.at)
            check(block, sum);
        switch (random.below(3)) {
        case 0:
            free(block.at);
            fill(block, static_cast<unsigned char *>(malloc(bytes)), bytes, tag);
            break;
        case 1:
            fill(block, static_cast<unsigned char *>(realloc(block.at, bytes)), bytes, tag);
            break;
        default:
            free(block.at);
            block.at = nullptr;
        }
        if (step && (i + 1) % step == 0)
            others.arrive_and_wait();
    }
    for (Block &block : live)
        if (block.at) {
            check(block, sum);
            free(block.at);
        }
}

} // namespace

int main(int count, char **arguments)
{
    if (count != 4 && count != 5) {
        fprintf(stderr, "Usage: allocations THREADS OPERATIONS BLOCKS [STEP]\n");
        return 2;
    }
    int nr_threads = atoi(arguments[1]);
    long step = count == 5 ? atol(arguments[4]) : 0;
    std::barrier<> others(nr_threads);
    std::vector<uint64_t> sums(nr_threads * 8);
    std::vector<std::thread> threads;
    for (int i = 0; i < nr_threads; i++)
        threads.emplace_back(work, i, atol(arguments[2]), atol(arguments[3]), step, std::ref(others),
                             std::ref(sums[i * 8]));
    uint64_t sum = 0;
    for (int i = 0; i < nr_threads; i++) {
        threads[i].join();
        sum = sum * 31 + sums[i * 8];
    }
    printf("%016llx\n", static_cast<unsigned long long>(sum));
}
