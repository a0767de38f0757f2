/* Calls that write their answers to evicted memory, by the C library and by the bare call. */
#include "pressure.h"
#include <dirent.h>
#include <grp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/utsname.h>
#include <linux/stat.h>
int main(void)
{
    unsigned char *m = fresh(MIB);
    static char stack[8192];
    char *at = (char *)m + 20 * PAGE - 24;
    fill(m, MIB, 1);
#define TRY(...) do { memset(at, 0xff, 5000); evict(at, 5000); MUST(__VA_ARGS__); } while (0)
    REQUIRE(getcwd(stack, sizeof stack));
    TRY(syscall(SYS_getcwd, at, 4000));
    REQUIRE(strcmp(at, stack) == 0);
    ssize_t n = MUST(readlink("/proc/self/exe", stack, sizeof stack));
    TRY(readlink("/proc/self/exe", at, 4000));
    REQUIRE(memcmp(at, stack, n) == 0 && (unsigned char)at[n] == 0xff);
    struct stat expected, *status = (struct stat *)at;
    MUST(stat("/", &expected));
    TRY(stat("/", status));
    REQUIRE(status->st_ino == expected.st_ino && S_ISDIR(status->st_mode));
    int fd = MUST(open("/", O_RDONLY | O_DIRECTORY));
    TRY(fstat(fd, status));
    REQUIRE(status->st_ino == expected.st_ino);
    TRY(lstat("/proc/self", status));
    REQUIRE(S_ISLNK(status->st_mode));
    TRY(statx(AT_FDCWD, "/", 0, STATX_BASIC_STATS, (struct statx *)at));
    REQUIRE(((struct statx *)at)->stx_ino == expected.st_ino);
    TRY(statfs("/", (struct statfs *)at));
    REQUIRE(((struct statfs *)at)->f_bsize > 0);
    TRY(syscall(SYS_getdents64, fd, at, 4000));
    REQUIRE(((struct dirent64 *)at)->d_name[0] != 0);
    TRY(uname((struct utsname *)at));
    REQUIRE(strcmp(((struct utsname *)at)->sysname, "Linux") == 0);
    TRY(sysinfo((struct sysinfo *)at));
    REQUIRE(((struct sysinfo *)at)->totalram > 0);
    TRY(getrusage(RUSAGE_SELF, (struct rusage *)at));
    REQUIRE(((struct rusage *)at)->ru_maxrss > 0);
    TRY(times((struct tms *)at));
    TRY(syscall(SYS_gettimeofday, at, NULL));
    REQUIRE(llabs(((struct timeval *)at)->tv_sec - time(NULL)) < 60);
    TRY(gettimeofday((struct timeval *)at, NULL));
    REQUIRE(llabs(((struct timeval *)at)->tv_sec - time(NULL)) < 60);
    TRY(clock_gettime(CLOCK_REALTIME, (struct timespec *)at));
    REQUIRE(llabs(((struct timespec *)at)->tv_sec - time(NULL)) < 60);
    TRY(clock_getres(CLOCK_REALTIME, (struct timespec *)at));
    TRY(syscall(SYS_time, at));
    REQUIRE(llabs(*(time_t *)at - time(NULL)) < 60);
    TRY(sched_getaffinity(0, sizeof(cpu_set_t), (cpu_set_t *)at));
    REQUIRE(CPU_COUNT((cpu_set_t *)at) > 0);
    TRY(getrlimit(RLIMIT_NOFILE, (struct rlimit *)at));
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    REQUIRE(((struct rlimit *)at)->rlim_cur == limit.rlim_cur);
    TRY(prlimit(0, RLIMIT_NOFILE, NULL, (struct rlimit *)at));
    REQUIRE(((struct rlimit *)at)->rlim_cur == limit.rlim_cur);
    TRY(getgroups(100, (gid_t *)at));
    TRY(getresuid((uid_t *)at, (uid_t *)(at + PAGE), (uid_t *)(at + 8)));
    REQUIRE(*(uid_t *)at == getuid() && *(uid_t *)(at + PAGE) == geteuid());
    TRY(sigaltstack(NULL, (stack_t *)at));
    TRY(sigprocmask(SIG_BLOCK, NULL, (sigset_t *)at));
    TRY(sigaction(SIGUSR1, NULL, (struct sigaction *)at));
    REQUIRE(((struct sigaction *)at)->sa_handler == SIG_DFL);
    TRY(getitimer(ITIMER_REAL, (struct itimerval *)at));
    REQUIRE(((struct itimerval *)at)->it_value.tv_sec == 0);
    TRY(pipe((int *)at));
    REQUIRE(((int *)at)[0] > 2 && ((int *)at)[1] == ((int *)at)[0] + 1);
    TRY(syscall(SYS_getrandom, at, 4000, 0));
    TRY(syscall(SYS_getcpu, at, at + PAGE, NULL));
    REQUIRE(*(unsigned *)at < 4096);
    TRY(getpriority(PRIO_PROCESS, 0) == 1000 ? -1 : 0);
    timer_t timer;
    struct sigevent none = { .sigev_notify = SIGEV_NONE };
    MUST(timer_create(CLOCK_MONOTONIC, &none, &timer));
    TRY(timer_gettime(timer, (struct itimerspec *)at));
    REQUIRE(((struct itimerspec *)at)->it_value.tv_sec == 0);
    pid_t pid = MUST(fork());
    if (pid == 0)
        _exit(9);
    TRY(wait4(pid, (int *)at, 0, (struct rusage *)(at + PAGE)));
    REQUIRE(WEXITSTATUS(*(int *)at) == 9 && ((struct rusage *)(at + PAGE))->ru_maxrss > 0);
    pid = MUST(fork());
    if (pid == 0)
        _exit(8);
    TRY(waitid(P_PID, pid, (siginfo_t *)at, WEXITED));
    REQUIRE(((siginfo_t *)at)->si_pid == pid && ((siginfo_t *)at)->si_status == 8);
    for (size_t i = 0; i < 19 * PAGE; i++)
        REQUIRE(m[i] == pattern(i, 1));
    return ok();
}
