// What a program learns of the size of RAM, by every way that there is, and of the files that tell it. Prints one fact a
// line. Where the size is meant to be told, the line says `right`, or what is told instead: so the lines are the same
// with any size, and with and without Ebb.
//
// Usage: facts KIB        all facts; KIB is the size
//        facts KIB FD     only that a file which was inherited tells it
//        facts KIB -      only that the file can be read under a filter that kills for what Ebb calls to recognize it
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEXT_BYTES 16384
#define FILE_NAME "/proc/meminfo"

static unsigned long long size_kib;
extern char **environ;

// A system call of the program's own code.
static long direct(long nr, long a, long b, long c, long d) {
    long ret;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return ret;
}

static void fact(const char *name, const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("%s: ", name);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

// The value of a line, in KiB; -1 if there is none.
static long long line(const char *text, const char *name) {
    const char *at = strstr(text, name);
    return at ? atoll(at + strlen(name)) : -1;
}

// Whether the text is whole and tells the size: every line is complete, and the parts fit together.
static const char *judge(const char *text) {
    static __thread char why[200];
    long long total = line(text, "MemTotal:"), left = line(text, "MemFree:"), swap = line(text, "SwapTotal:");
    size_t len = strlen(text);
    if (len < 200 || text[len - 1] != '\n' || strncmp(text, "MemTotal: ", 10) != 0) {
        snprintf(why, sizeof why, "not a whole text, %zu bytes: %.80s", len, text);
        return why;
    }
    for (const char *at = text; *at; at = strchr(at, '\n') + 1) {
        const char *colon = strchr(at, ':'), *end = strchr(at, '\n');
        if (!colon || colon > end || strspn(colon + 1, " 0123456789kB") != (size_t)(end - colon - 1)) {
            snprintf(why, sizeof why, "a torn line: %.40s", at);
            return why;
        }
    }
    if (total != (long long)size_kib || left <= 0 || left > total || swap < 0 || line(text, "MemAvailable:") > total) {
        snprintf(why, sizeof why, "total %lld free %lld", total, left);
        return why;
    }
    return "right";
}

// Reads to the end, `piece` bytes at a time.
static const char *read_all(int fd, char *text, size_t piece) {
    size_t len = 0;
    ssize_t n;
    while ((n = read(fd, text + len, piece)) > 0)
        len += n;
    text[len] = 0;
    return n < 0 ? strerror(errno) : judge(text);
}

static void opened(const char *name, int fd) {
    char text[TEXT_BYTES];
    if (fd < 0) {
        fact(name, "%s", strerror(errno));
        return;
    }
    fact(name, "%s", read_all(fd, text, 4096));
    close(fd);
}

static int made(long ret) {
    if (ret < 0)
        errno = -ret;
    return ret < 0 ? -1 : (int)ret;
}

static void ways_to_open(void) {
    char path[64], link[] = "/tmp/showram-XXXXXX";
    struct open_how how = {.flags = O_RDONLY};
    int proc = open("/proc", O_RDONLY | O_DIRECTORY), fd;
    opened("open", open(FILE_NAME, O_RDONLY));
    opened("openat", openat(AT_FDCWD, FILE_NAME, O_RDONLY));
    opened("openat below a directory", openat(proc, "meminfo", O_RDONLY));
    opened("openat around", openat(proc, ".//self/.././meminfo", O_RDONLY));
    opened("a path with doubled slashes", open("//proc//self/..///meminfo", O_RDONLY));
    opened("openat2", syscall(SYS_openat2, proc, "meminfo", &how, sizeof how));
    opened("syscall(SYS_open)", syscall(SYS_open, FILE_NAME, O_RDONLY));
    opened("open, direct", made(direct(SYS_open, (long)FILE_NAME, O_RDONLY, 0, 0)));
    opened("openat, direct", made(direct(SYS_openat, proc, (long)"meminfo", O_RDONLY, 0)));
    opened("openat2, direct", made(direct(SYS_openat2, proc, (long)"meminfo", (long)&how, sizeof how)));
    FILE *stream = fopen(FILE_NAME, "r");
    char text[TEXT_BYTES];
    text[fread(text, 1, sizeof text - 1, stream)] = 0;
    fact("fopen", "%s", judge(text));
    fclose(stream);
    int dir = mkstemp(link);
    close(dir);
    unlink(link);
    fact("symlink", "%d", symlink(FILE_NAME, link));
    opened("a symbolic link", open(link, O_RDONLY));
    unlink(link);
    fd = open(FILE_NAME, O_RDONLY);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    opened("opened again by its number", open(path, O_RDONLY));
    opened("dup", dup(fd));
    lseek(fd, 0, SEEK_SET);
    opened("dup2", dup2(fd, 200));
    lseek(fd, 0, SEEK_SET);
    opened("dup3", dup3(fd, 201, O_CLOEXEC));
    lseek(fd, 0, SEEK_SET);
    opened("F_DUPFD", fcntl(fd, F_DUPFD, 300));
    close(fd);
    fact("chdir", "%d", chdir("/proc"));
    opened("a relative path", open("meminfo", O_RDONLY));
    opened("a relative path around", open("./sys/../meminfo", O_RDONLY));
    close(proc);
}

static void ways_to_read(void) {
    static const size_t PIECES[] = {1, 7, 100, 1000};
    char text[TEXT_BYTES], name[40];
    int fd = open(FILE_NAME, O_RDONLY);
    for (size_t i = 0; i < sizeof PIECES / sizeof *PIECES; i++) {
        lseek(fd, 0, SEEK_SET);
        snprintf(name, sizeof name, "read in pieces of %zu", PIECES[i]);
        fact(name, "%s", read_all(fd, text, PIECES[i]));
    }
    fact("read at the end", "%zd %zd", read(fd, text, 100), read(fd, text, 100));
    for (int i = 0; i < 3; i++) {
        lseek(fd, 0, SEEK_SET);
        fact("read again from the beginning", "%s", read_all(fd, text, TEXT_BYTES - 1));
    }
    size_t len = 0;
    ssize_t n;
    while ((n = pread(fd, text + len, 50, len)) > 0)
        len += n;
    text[len] = 0;
    fact("pread in pieces", "%s", judge(text));
    fact("pread keeps the position", "%d", lseek(fd, 0, SEEK_CUR) == (off_t)len || lseek(fd, 0, SEEK_CUR) > 0);
    n = pread(fd, text, 10, 5);
    fact("pread in the middle", "%zd %d", n, memcmp(text, "tal:      ", 10) == 0);
    fact("pread beyond the end", "%zd", pread(fd, text, 10, 1 << 20));
    n = pread(fd, text, 10, -1);
    fact("pread before the beginning", "%zd %d", n, errno);
    lseek(fd, 0, SEEK_SET);
    struct iovec iov[3] = {{text, 10}, {text + 10, 0}, {text + 10, TEXT_BYTES - 11}};
    memset(text, 0, sizeof text);
    n = readv(fd, iov, 3);
    fact("readv", "%s %d", judge(text), lseek(fd, 0, SEEK_CUR) == n);
    memset(text, 0, sizeof text);
    preadv(fd, iov, 3, 0);
    fact("preadv", "%s", judge(text));
    memset(text, 0, sizeof text);
    lseek(fd, 0, SEEK_SET);
    preadv2(fd, iov, 3, -1, 0);
    fact("preadv2", "%s", judge(text));
    lseek(fd, 0, SEEK_SET);
    direct(SYS_read, fd, (long)text, 10, 0);
    direct(SYS_pread64, fd, (long)(text + 10), TEXT_BYTES - 11, 10);
    fact("read and pread, direct", "%s", judge(text));
    long at = lseek(fd, 5, SEEK_SET);
    n = read(fd, text, 4);
    fact("seek to the middle", "%ld %zd %d", at, n, memcmp(text, "tal:", 4) == 0);
    n = lseek(fd, 0, SEEK_END);
    fact("seek to the end", "%zd %d", n, errno);
    n = lseek(fd, -5, SEEK_SET);
    fact("seek before the beginning", "%zd %d", n, errno);
    fact("read nothing", "%zd", read(fd, text, 0));
    len = pread(fd, text, sizeof text, 0);
    int only_path = open(FILE_NAME, O_PATH), only_write = open(FILE_NAME, O_WRONLY);
    n = pread(only_path, text, 1, len);
    fact("pread at the end, of what is only a path", "%zd %d", n, errno);
    n = only_write < 0 ? -1 : pread(only_write, text, 1, len);
    fact("pread at the end, of what is only written", "%zd", n);
    close(only_path);
    close(only_write);
    n = direct(SYS_pread64, fd, (long)text, -1, 0);
    fact("pread of more than can be", "%zd", n);
    fact("preadv2, at high priority", "%zd", preadv2(fd, iov, 3, 0, RWF_HIPRI) > 200 ? (ssize_t)1 : (ssize_t)0);
    close(fd);
    n = read(fd, text, 10);
    fact("read when it is closed", "%zd %d", n, errno);
}

static void bad_memory(void) {
    char text[TEXT_BYTES];
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(page + 4096, 4096);
    int fd = open(FILE_NAME, O_RDONLY);
    ssize_t n = read(fd, page + 4096, 100);
    fact("read into no memory", "%zd %d, at %ld", n, errno, (long)lseek(fd, 0, SEEK_CUR));
    n = read(fd, page + 4086, 100);
    fact("read across the end of memory", "%zd %d, at %ld", n, errno, (long)lseek(fd, 0, SEEK_CUR));
    struct iovec iov = {page + 4096, 100};
    n = readv(fd, &iov, 1);
    fact("readv into no memory", "%zd %d", n, errno);
    n = readv(fd, (struct iovec *)(page + 4096), 1);
    fact("readv without a vector", "%zd %d", n, errno);
    n = syscall(SYS_readv, fd, &iov, 5000);
    fact("readv with too long a vector", "%zd %d", n, errno);
    lseek(fd, 0, SEEK_SET);
    fact("then the whole text", "%s", read_all(fd, text, 4096));
    close(fd);
    n = open(page + 4096, O_RDONLY);
    fact("open without a path", "%zd %d", n, errno);
    memset(page, '/', 4096);
    n = open(page, O_RDONLY);
    fact("open with a path that runs out", "%zd %d", n, errno);
    // System calls of the program's own: libc may read the structure.
    fact("sysinfo into no memory", "%ld", direct(SYS_sysinfo, (long)(page + 4096), 0, 0, 0));
    munmap(page, 4096);
}

static void the_file(void) {
    static const int FLAGS[] = {O_WRONLY, O_RDWR, O_RDONLY | O_TRUNC, O_RDONLY | O_DIRECTORY, O_RDONLY | O_CREAT | O_EXCL,
                                O_RDONLY | O_CREAT, O_PATH, O_RDONLY | O_NONBLOCK, O_RDONLY | O_CLOEXEC, O_RDONLY | O_APPEND,
                                O_RDONLY | O_DIRECT, O_RDONLY | O_NOFOLLOW};
    char text[TEXT_BYTES], path[64], name[40];
    struct stat a, b;
    int fd = open(FILE_NAME, O_RDONLY), ret;
    fstat(fd, &a);
    stat(FILE_NAME, &b);
    fact("fstat", "%o %ld %d", a.st_mode, (long)a.st_size, a.st_dev == b.st_dev && a.st_ino == b.st_ino);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    text[readlink(path, text, sizeof text - 1)] = 0;
    fact("its name", "%s", text);
    void *at = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    fact("mmap", "%d %d", at == MAP_FAILED, errno);
    struct pollfd polled = {fd, POLLIN | POLLPRI | POLLOUT, 0};
    ret = poll(&polled, 1, 0);
    fact("poll", "%d %x", ret, polled.revents);
    ret = write(fd, "x", 1);
    fact("write", "%d %d", ret, errno);
    close(fd);
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++) {
        snprintf(name, sizeof name, "open with %#o", FLAGS[i]);
        errno = 0;
        fd = open(FILE_NAME, FLAGS[i], 0600);
        if (fd < 0) {
            fact(name, "%d", errno);
            continue;
        }
        int flags = fcntl(fd, F_GETFL), closes = fcntl(fd, F_GETFD);
        memset(text, 0, sizeof text);
        ret = read(fd, text, sizeof text - 1);
        const char *how = ret > 0 ? judge(text) : strerror(errno);
        errno = 0;
        ret = write(fd, "x", 1);
        fact(name, "number %d, flags %#o %d, %s, write %d %d", fd, flags, closes, how, ret, errno);
        close(fd);
    }
}

static void numbers(void) {
    int fds[20], least = 1 << 20, most = 0;
    for (int i = 0; i < 20; i++) {
        fds[i] = open(i % 2 ? FILE_NAME : "/dev/null", O_RDONLY);
        least = fds[i] < least ? fds[i] : least;
        most = fds[i] > most ? fds[i] : most;
    }
    fact("numbers of descriptors", "%d to %d", least, most);
    for (int i = 0; i < 20; i++)
        close(fds[i]);
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        count++;
    closedir(dir);
    fact("open descriptors", "%d", count);
}

static void processes(const char *own) {
    char text[TEXT_BYTES], size[32], number[16];
    int fd = open(FILE_NAME, O_RDONLY), ends[2], status;
    memset(text, 0, sizeof text);
    size_t len = read(fd, text, 100);
    fact("pipe", "%d", pipe(ends));
    pid_t child = fork();
    if (child == 0) {
        char part[100];
        ssize_t n = read(fd, part, sizeof part);
        _exit(write(ends[1], part, n) != n);
    }
    waitpid(child, &status, 0);
    len += read(ends[0], text + len, 100);
    ssize_t n;
    while ((n = read(fd, text + len, 500)) > 0)
        len += n;
    text[len] = 0;
    // The parts of the two processes are not of the same moment.
    fact("read by turns with a child", "%d %lld", status, line(text, "MemTotal:") - (long long)size_kib);
    child = fork();
    if (child == 0) {
        opened("in a child", open(FILE_NAME, O_RDONLY));
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, &status, 0);
    lseek(fd, 0, SEEK_SET);
    dup2(fd, 250);
    snprintf(size, sizeof size, "%llu", size_kib);
    for (int i = 0; i < 2; i++) {
        snprintf(number, sizeof number, "%d", i ? 250 : fd);
        char *args[] = {(char *)own, size, number, NULL};
        lseek(fd, 0, SEEK_SET);
        fflush(stdout);
        // By vfork, and with an environment that names nothing of Ebb's.
        char *none[] = {NULL};
        int failure = posix_spawn(&child, own, NULL, NULL, args, i ? none : environ);
        waitpid(child, &status, 0);
        fact("an executed program", "%d %d", failure, status);
    }
    close(250);
    close(fd);
}

static void *reads(void *fd) {
    char text[TEXT_BYTES];
    const char *how = "right";
    for (int i = 0; i < 100 && strcmp(how, "right") == 0; i++) {
        int own = open(FILE_NAME, O_RDONLY);
        how = read_all(own, text, i % 3 ? 4096 : 90);
        close(own);
        memset(text, 0, sizeof text);
        if (strcmp(how, "right") == 0 && pread((long)fd, text, sizeof text - 1, 0) > 0)
            how = judge(text);
    }
    return strdup(how);
}

static volatile int over;
static int swapped[3]; // A file of the program's, the kernel's, and the number that changes hands between them.

static void *swaps(void *unused) {
    while (!over) {
        dup2(swapped[0], swapped[2]);
        dup2(swapped[1], swapped[2]);
    }
    return unused;
}

// While a number changes hands, the program's own file keeps its content and its position, whatever it looks like.
static void numbers_that_change_hands(void) {
    static const char OWN[] = "MemTotal:       12345678 kB\nMemFree:        11111111 kB\nOwn:\n";
    static char text[TEXT_BYTES];
    const char *how = "right";
    char name[] = "/tmp/facts-XXXXXX";
    pthread_t thread;
    ssize_t n;
    swapped[0] = mkstemp(name);
    unlink(name);
    swapped[1] = open(FILE_NAME, O_RDONLY);
    swapped[2] = dup(swapped[1]);
    n = write(swapped[0], OWN, sizeof OWN - 1);
    pthread_create(&thread, NULL, swaps, NULL);
    for (int own = 0, kernels = 0; n > 0 && (own < 20000 || kernels < 500) && strcmp(how, "right") == 0;) {
        n = pread(swapped[2], text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = 0;
        int is_own = strstr(text, "Own:") != NULL;
        if (is_own && strcmp(text, OWN) != 0)
            how = "altered";
        own += is_own;
        kernels += !is_own;
    }
    over = 1;
    pthread_join(thread, NULL);
    fact("a number that changes hands", "%s %d", how, lseek(swapped[0], 0, SEEK_CUR) == sizeof OWN - 1);
    for (int i = 0; i < 3; i++)
        close(swapped[i]);
}

// A process that shares the memory reads until it is killed.
static volatile int is_shared;

static int shares(void *fd) {
    char text[TEXT_BYTES];
    is_shared = 1;
    while (is_shared)
        pread((long)fd, text, sizeof text, 0);
    return 0;
}

static void a_sharer_is_killed(void) {
    static char stack[1 << 16] __attribute__((aligned(16)));
    char text[TEXT_BYTES];
    const char *how = "right";
    long fd = open(FILE_NAME, O_RDONLY);
    alarm(30);
    for (int i = 0; i < 60; i++) {
        is_shared = 0;
        pid_t child = clone(shares, stack + sizeof stack, CLONE_VM | SIGCHLD, (void *)fd);
        while (child > 0 && !is_shared)
            usleep(10);
        usleep(50 + i * 7);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        lseek(fd, 0, SEEK_SET);
        if (strcmp(how, "right") == 0)
            how = read_all(fd, text, 500);
    }
    alarm(0);
    fact("after one that shared the memory was killed", "%s", how);
    close(fd);
}

static volatile int alarms;

static void on_alarm(int signal) {
    int fd = open(FILE_NAME, O_RDONLY);
    char part[10];
    alarms += signal == SIGALRM && read(fd, part, sizeof part) == sizeof part && memcmp(part, "MemTotal: ", 10) == 0;
    close(fd);
}

static void threads_and_signals(void) {
    pthread_t threads[4];
    long fd = open(FILE_NAME, O_RDONLY);
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, reads, (void *)fd);
    for (int i = 0; i < 4; i++) {
        void *how;
        while (pthread_join(threads[i], &how))
            ;
        fact("a thread, with signals", "%s", (char *)how);
        free(how);
    }
    while (!alarms)
        usleep(100);
    setitimer(ITIMER_REAL, &never, NULL);
    fact("a handler", "%d", alarms > 0);
    close(fd);
}

static const char *judge_sysinfo(long ret, const struct sysinfo *info) {
    static char why[100];
    unsigned long long total = (unsigned long long)info->totalram * info->mem_unit >> 10;
    if (ret == 0 && total == size_kib && info->freeram > 0 && info->freeram <= info->totalram && info->uptime > 0
        && info->sharedram <= info->totalram && info->freeswap <= info->totalswap)
        return "right";
    snprintf(why, sizeof why, "%ld, total %llu", ret, total);
    return why;
}

static void by_call(void) {
    struct sysinfo info;
    long unit = sysconf(_SC_PAGESIZE) >> 10;
    fact("sysinfo", "%s", judge_sysinfo(sysinfo(&info), &info));
    memset(&info, 0, sizeof info);
    fact("sysinfo, direct", "%s", judge_sysinfo(direct(SYS_sysinfo, (long)&info, 0, 0, 0), &info));
    long long pages = sysconf(_SC_PHYS_PAGES), left = sysconf(_SC_AVPHYS_PAGES);
    fact("_SC_PHYS_PAGES", "%lld", pages * unit - (long long)size_kib);
    fact("_SC_AVPHYS_PAGES", "%d", left > 0 && left <= pages);
    fact("get_phys_pages", "%lld %d", get_phys_pages() * unit - (long long)size_kib, get_avphys_pages() <= pages);
}

static void filtered(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fstatfs, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_readlink, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    fact("filter", "%d", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
    opened("under a filter", open(FILE_NAME, O_RDONLY));
}

static void after_closing_all(void) {
    int out = fcntl(1, F_DUPFD, 100);
    for (int fd = 0; fd < 4096; fd++)
        if (fd != out)
            close(fd);
    int fd = open(FILE_NAME, O_RDONLY);
    char text[TEXT_BYTES];
    const char *how = read_all(fd, text, 4096);
    dprintf(out, "after all were closed: number %d, %s\n", fd, how);
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    size_kib = strtoull(argv[1], NULL, 10);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 2 && strcmp(argv[2], "-") == 0) {
        filtered();
        return 0;
    }
    if (argc > 2) {
        int fd = atoi(argv[2]);
        char text[TEXT_BYTES];
        lseek(fd, 0, SEEK_SET);
        fact("inherited", "%s", read_all(fd, text, 300));
        by_call();
        return 0;
    }
    const char *own = realpath(argv[0], NULL);
    by_call();
    ways_to_open();
    ways_to_read();
    bad_memory();
    the_file();
    numbers();
    processes(own);
    threads_and_signals();
    numbers_that_change_hands();
    a_sharer_is_killed();
    fflush(stdout);
    after_closing_all();
    return 0;
}
