/* A program that dies of its own fault dumps core as far as its limit says, and ends in good time. Without a limit the dump
   holds what is the program's: none of the tables that the process has beside it, in no generation of children. */
#include "pressure.h"
#include <dirent.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#define DUMP_MAX (48L << 20)
static unsigned char *m;
/* Bytes that a core dump of this process would hold at most. */
static long dumped(void)
{
    char line[512], perms[8] = "";
    long total = 0, size = 0, anonymous = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    REQUIRE(maps);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%*x-%*x %7s", perms) == 1 || sscanf(line, "Size: %ld", &size) == 1
            || sscanf(line, "Anonymous: %ld", &anonymous) == 1)
            continue;
        if (strncmp(line, "VmFlags:", 8) == 0 && !strstr(line, " dd") && (perms[3] == 's' || anonymous > 0))
            total += size * 1024;
    }
    fclose(maps);
    return total;
}
/* Bytes of the files in the working directory, holes as well. */
static long files(void)
{
    DIR *here = opendir(".");
    struct dirent *entry;
    struct stat st;
    long total = 0;
    REQUIRE(here);
    while ((entry = readdir(here)))
        if (stat(entry->d_name, &st) == 0 && S_ISREG(st.st_mode))
            total += st.st_size;
    closedir(here);
    return total;
}
static void body(void *argument)
{
    struct rlimit limit = { argument ? RLIM_INFINITY : 0, RLIM_INFINITY };
    if (setrlimit(RLIMIT_CORE, &limit) != 0) {
        limit.rlim_max = limit.rlim_cur;
        setrlimit(RLIMIT_CORE, &limit);
    }
    evict(m, 4 * MIB);
    REQUIRE(dumped() < DUMP_MAX);
    *(volatile int *)8 = 1;
}
static void grandchild(void *argument)
{
    int status;
    pid_t pid = child_of(body, argument);
    REQUIRE(waitpid(pid, &status, 0) == pid);
    REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}
int main(void)
{
    char directory[] = "/tmp/ebb-core-XXXXXX", command[100];
    m = fresh(4 * MIB);
    fill(m, 4 * MIB, 1);
    evict(m, 4 * MIB);
    REQUIRE(dumped() < DUMP_MAX);
    REQUIRE(mkdtemp(directory));
    MUST(chdir(directory));
    for (int dump = 0; dump < 2; dump++) {
        double start = now_s();
        int status;
        pid_t pid = child_of(body, dump ? m : NULL);
        REQUIRE(waitpid(pid, &status, 0) == pid);
        REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
        REQUIRE(!WCOREDUMP(status) || dump);
        REQUIRE(files() < (dump ? DUMP_MAX : 1));
        REQUIRE(now_s() - start < 30);
    }
    wait_ok(child_of(grandchild, m));
    REQUIRE(files() < 3 * DUMP_MAX);
    check(m, 4 * MIB, 1, "at the end");
    MUST(chdir("/"));
    snprintf(command, sizeof command, "rm -r %s", directory);
    REQUIRE(system(command) == 0);
    return ok();
}
