/* What a process reads of itself under /proc is its own: maps and what follows them, its descriptors, its memory through mem. A
 * program that tests, drops or closes all that it finds there harms nothing else. */
#include "pressure.h"
#include <dirent.h>
#include <linux/kcmp.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#define LEN (2 * MIB)
#define TEXT_MAX (4 * MIB)
struct range { unsigned long start, end; char prot[5]; char name[200]; };
static struct range *ranges;
static size_t nr_ranges;
static unsigned char *memory;

/* The text of a file, read by so many bytes at a time in one of four ways. */
static size_t text_of(const char *path, char *text, size_t step, int way)
{
    int fd = MUST(open(path, O_RDONLY | O_CLOEXEC));
    size_t have = 0;
    for (ssize_t n = 1; n > 0; have += n) {
        REQUIRE(have + step < TEXT_MAX);
        struct iovec parts[2] = { { text + have, step / 3 }, { text + have + step / 3, step - step / 3 } };
        n = way == 0 ? read(fd, text + have, step) : way == 1 ? pread(fd, text + have, step, have)
            : way == 2 ? readv(fd, parts, 2) : syscall(SYS_read, fd, text + have, step);
        REQUIRE(n >= 0);
    }
    close(fd);
    text[have] = 0;
    return have;
}

/* All lines of maps, each whole; what is to be read is no more than a program of this size has. */
static void read_ranges(const char *path, size_t step, int way)
{
    static char *text;
    if (!text) {
        text = (char *)fresh(TEXT_MAX);
        ranges = (struct range *)fresh(sizeof *ranges * 4096);
    }
    text_of(path, text, step, way);
    nr_ranges = 0;
    unsigned long last = 0;
    for (char *line = text; *line; line = strchr(line, '\n') + 1) {
        struct range *r = &ranges[nr_ranges];
        r->name[0] = 0;
        if (*line >= 'A' && *line <= 'Z' && strchr(line, ':'))
            continue;
        if (sscanf(line, "%lx-%lx %4s %*x %*s %*u %199[^\n]", &r->start, &r->end, r->prot, r->name) < 3 || r->start < last
            || r->end <= r->start || !strchr(line, '\n'))
            fail("%s by %zu bytes: not a line: %.60s", path, step, line);
        last = r->end;
        REQUIRE(++nr_ranges < 4096);
    }
}

static int is_listed(const void *at, const char *prot)
{
    for (size_t i = 0; i < nr_ranges; i++)
        if ((unsigned long)at >= ranges[i].start && (unsigned long)at < ranges[i].end)
            return strcmp(ranges[i].prot, prot) == 0;
    return 0;
}

static void maps(void)
{
    static const size_t steps[] = { 1 << 16, 1024, 77 };
    static const char *const paths[] = { "/proc/self/maps", "/proc/thread-self/maps", "/proc/self/smaps" };
    for (int file = 0; file < 3; file++)
        for (int i = file == 2; i < 3 - (file == 2); i++)
            for (int way = 0; way < 4; way++) {
                read_ranges(paths[file], steps[i], way);
                size_t bytes = 0;
                for (size_t r = 0; r < nr_ranges; r++)
                    if (strchr(ranges[r].prot, 'p') && ranges[r].prot[0] != '-')
                        bytes += ranges[r].end - ranges[r].start;
                if (bytes > 256 * MIB)
                    fail("%s lists %zu MiB of private memory", paths[file], bytes / MIB);
                REQUIRE(is_listed(memory, "rw-p") && is_listed(memory + LEN - 1, "rw-p") && is_listed(&nr_ranges, "rw-p")
                        && is_listed((void *)maps, "r-xp"));
            }
    /* By stdio, duplicates, a second look, and from the midst. */
    char line[300], first[300];
    FILE *stream = fopen("/proc/self/maps", "r");
    REQUIRE(stream && fgets(first, sizeof first, stream));
    rewind(stream);
    REQUIRE(fgets(line, sizeof line, stream) && strcmp(line, first) == 0);
    fclose(stream);
    int fd = MUST(open("/proc/self/maps", O_RDONLY)), copy = MUST(dup(fd)), other = MUST(fcntl(fd, F_DUPFD, 200));
    REQUIRE(read(fd, line, 10) == 10 && read(copy, line + 10, 10) == 10 && read(other, line + 20, 5) == 5);
    REQUIRE(memcmp(line, first, 25) == 0);
    struct stat about;
    MUST(fstat(other, &about));
    REQUIRE(S_ISREG(about.st_mode) && lseek(other, 0, SEEK_SET) == 0 && read(other, line, 5) == 5 && memcmp(line, first, 5) == 0);
    close(fd);
    close(copy);
    close(other);
}

/* As a crash report's memory test does: each word of memory that can be written is written. */
static void test_all(void *unused)
{
    (void)unused;
    read_ranges("/proc/self/maps", 4096, 0);
    struct range *all = ranges;
    for (size_t i = 0; i < nr_ranges; i++) {
        if (strcmp(all[i].prot, "rw-p") != 0 || strstr(all[i].name, "[stack"))
            continue;
        for (volatile uint64_t *word = (uint64_t *)all[i].start; (unsigned long)word < all[i].end; word += 64)
            if ((unsigned long)word < (unsigned long)all || (unsigned long)word >= (unsigned long)(all + nr_ranges))
                *word = ~(*word = ~*word);
    }
    check(memory, LEN, 1, "after each word was written twice");
}

static void nothing(void *unused)
{
    (void)unused;
}

/* Drops all that has no name, cannot be accessed, and is its own. */
static void drop_closed(void *unused)
{
    (void)unused;
    read_ranges("/proc/self/maps", 4096, 0);
    for (size_t i = 0; i < nr_ranges; i++)
        if (strcmp(ranges[i].prot, "---p") == 0 && ranges[i].name[0] == 0)
            munmap((void *)ranges[i].start, ranges[i].end - ranges[i].start);
    evict(memory, LEN);
    check(memory, LEN, 1, "when all closed memory is gone");
    wait_ok(child_of(nothing, NULL));
}

/* The numbers of all open descriptors but the one that they are read from. */
static int open_numbers(const char *path, int *numbers, int max)
{
    DIR *dir = opendir(path);
    REQUIRE(dir);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir) && n < max)
            numbers[n++] = atoi(entry->d_name);
    closedir(dir);
    return n;
}

static void close_all(void *unused)
{
    (void)unused;
    int numbers[64], rounds = 0, n;
    while ((n = open_numbers(rounds % 2 ? "/dev/fd" : "/proc/self/fd", numbers, 64)) > 1) {
        REQUIRE(rounds++ < 10);
        for (int i = 0; i < n; i++)
            if (numbers[i] != 1)
                close(numbers[i]);
    }
    REQUIRE(numbers[0] == 1 && open_numbers("/proc/self/fdinfo", numbers, 64) == 1);
    check(memory, LEN, 1, "with every descriptor closed");
}

static void mem(void)
{
    int fd = MUST(open("/proc/self/mem", O_RDWR | O_CLOEXEC));
    unsigned char *copy = fresh(LEN), byte;
    evict(memory, LEN);
    for (size_t i = 0; i < LEN; i += 37 * PAGE)
        REQUIRE(pread(fd, &byte, 1, (off_t)(memory + i)) == 1 && byte == pattern(i, 1));
    REQUIRE(pread(fd, copy, LEN, (off_t)memory) == (ssize_t)LEN);
    check(copy, LEN, 1, "what was read through mem");
    memset(copy, 0, LEN);
    evict(memory, LEN);
    struct iovec parts[3] = { { copy, 5000 }, { copy + 5000, 1 }, { copy + 5001, LEN - 5001 } };
    REQUIRE(lseek(fd, (off_t)memory, SEEK_SET) == (off_t)memory && readv(fd, parts, 3) == (ssize_t)LEN);
    REQUIRE(lseek(fd, 0, SEEK_CUR) == (off_t)(memory + LEN));
    check(copy, LEN, 1, "what was read through mem by parts");
    /* Written while it is out, and while it is clean; then it goes out once more. */
    for (int pass = 0; pass < 2; pass++) {
        fill(copy, LEN, 5 + pass);
        evict(memory, LEN);
        if (pass)
            for (size_t i = 0; i < LEN; i++)
                REQUIRE(memory[i] == pattern(i, 4 + pass));
        REQUIRE(pwrite(fd, copy, LEN, (off_t)memory) == (ssize_t)LEN);
        evict(memory, LEN);
        check(memory, LEN, 5 + pass, "what was written through mem");
    }
    fill(memory, LEN, 1);
    /* Code that is written where it can only be run, fresh and used. */
    for (int prot = 0; prot < 2; prot++) {
        static const unsigned char code[] = { 0xb8, 42, 0, 0, 0, 0xc3 }, more[] = { 0xb8, 43, 0, 0, 0, 0xc3 };
        unsigned char *run = MUST(mmap(NULL, 64 * PAGE, prot ? PROT_READ : PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        for (int i = 0; i < 64; i++)
            REQUIRE(pwrite(fd, code, sizeof code, (off_t)(run + i * PAGE)) == sizeof code);
        evict(run, 64 * PAGE);
        REQUIRE(memcmp(run, code, sizeof code) == 0);
        for (int i = 0; i < 64; i++)
            REQUIRE(pwrite(fd, more, sizeof more, (off_t)(run + i * PAGE)) == sizeof more);
        evict(run, 64 * PAGE);
        for (int i = 0; i < 64; i++)
            REQUIRE(prot ? memcmp(run + i * PAGE, more, sizeof more) == 0 : ((int (*)(void))(run + i * PAGE))() == 43);
        munmap(run, 64 * PAGE);
    }
    /* The end of a mapping, nothing, and a bad buffer. */
    unsigned char *hole = fresh(3 * PAGE);
    munmap(hole + PAGE, PAGE);
    memset(hole, 3, PAGE);
    REQUIRE(pread(fd, copy, 2 * PAGE, (off_t)(hole + PAGE / 2)) == (ssize_t)PAGE / 2);
    REQUIRE(pread(fd, copy, 10, (off_t)(hole + PAGE)) == -1 && errno == EIO);
    REQUIRE(pwrite(fd, copy, 10, (off_t)(hole + PAGE)) == -1 && errno == EIO);
    REQUIRE(pread(fd, hole + PAGE, 10, (off_t)hole) == -1 && errno == EFAULT);
    REQUIRE(read(fd, copy, 0) == 0);
    close(fd);
    munmap(copy, LEN);
    munmap(hole, 3 * PAGE);
    check(memory, LEN, 1, "after mem");
}

/* What a child inherits is its parent's. */
static void inherited(void *argument)
{
    int fd = *(int *)argument;
    memory[0] ^= 0xff;
    unsigned char byte;
    REQUIRE(pread(fd, &byte, 1, (off_t)memory) == 1 && byte == (unsigned char)~memory[0]);
    read_ranges("/proc/self/maps", 1024, 0);
    REQUIRE(is_listed(memory, "rw-p"));
}

static void epoll(void)
{
    struct kcmp_epoll_slot *slot = (struct kcmp_epoll_slot *)fresh(PAGE);
    int ends[2], set = MUST(epoll_create1(0));
    MUST(pipe(ends));
    struct epoll_event event = { .events = EPOLLIN };
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event));
    *slot = (struct kcmp_epoll_slot){ .efd = set, .tfd = ends[0] };
    evict(slot, PAGE);
    long answer = syscall(SYS_kcmp, getpid(), getpid(), KCMP_EPOLL_TFD, ends[0], slot);
    REQUIRE(answer == 0 || (answer == -1 && errno != EFAULT));
    close(set);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    memory = fresh(LEN);
    fill(memory, LEN, 1);
    evict(memory, LEN);
    maps();
    wait_ok(child_of(test_all, NULL));
    wait_ok(child_of(drop_closed, NULL));
    wait_ok(child_of(close_all, NULL));
    mem();
    int fd = MUST(open("/proc/self/mem", O_RDONLY));
    unsigned char touched = memory[0];
    wait_ok(child_of(inherited, &fd));
    REQUIRE(memory[0] == touched);
    epoll();
    check(memory, LEN, 1, "at the end");
    return ok();
}
