/* A program that Ebb does not manage has no descriptor of the file that the tree shares, and what it starts has one again
   where Ebb manages that. */
#include "pressure.h"
#include <dirent.h>
#include <spawn.h>
#include <sys/stat.h>
static char directory[] = "/tmp/ebb-unmanaged-XXXXXX", static_one[64], dynamic_one[64], privileged_one[64];
static const char *source =
    "#include <dirent.h>\\n#include <stdio.h>\\n#include <string.h>\\n#include <unistd.h>\\n"
    "int main(int argc, char **argv) {\\n"
    "    if (argc > 1 && !strcmp(argv[1], \"wait\")) { char c; return write(1, \"x\", 1) != 1 || read(0, &c, 1) != 1; }\\n"
    "    if (argc > 1) { execv(argv[1], (char *[]){argv[1], \"wait\", NULL}); return 126; }\\n"
    "    int found = 0; DIR *d = opendir(\"/proc/self/fd\"); struct dirent *e;\\n"
    "    while ((e = readdir(d))) { char path[300], to[100] = \"\"; sprintf(path, \"/proc/self/fd/%%s\", e->d_name);\\n"
    "        if (readlink(path, to, sizeof to - 1) > 0) found += strstr(to, \"ebb-stats\") != NULL; }\\n"
    "    return 40 + found; }\\n";
static int status_of(pid_t pid)
{
    int status;
    MUST(waitpid(pid, &status, 0));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
/* Each way into the program finds none. */
static void finds_none(const char *program)
{
    char *arguments[] = {(char *)program, NULL}, shell[200];
    pid_t pid = MUST(fork());
    if (pid == 0) {
        execv(program, arguments);
        _exit(126);
    }
    REQUIRE(status_of(pid) == 40);
    ZERO(posix_spawn(&pid, program, NULL, NULL, arguments, environ));
    REQUIRE(status_of(pid) == 40);
    if ((pid = MUST(vfork())) == 0) {
        execv("/none/such", arguments);
        execv(program, arguments);
        _exit(126);
    }
    REQUIRE(status_of(pid) == 40);
    /* From a small process, and from one that was such a program before. */
    snprintf(shell, sizeof shell, "%s; test $? = 40 && exec %s", program, program);
    REQUIRE(WEXITSTATUS(system(shell)) == 40);
}
/* How many descriptors of that file the program has that `first`, `second` lead to. */
static int seen_in(char *first, char *second)
{
    int in[2], out[2], found = 0;
    char c, path[300];
    MUST(pipe2(in, O_CLOEXEC));
    MUST(pipe2(out, O_CLOEXEC));
    pid_t pid = MUST(fork());
    if (pid == 0) {
        MUST(dup2(in[0], 0));
        MUST(dup2(out[1], 1));
        execv(first, (char *[]){first, second, NULL});
        _exit(126);
    }
    REQUIRE(read(out[0], &c, 1) == 1);
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *list = opendir(path);
    REQUIRE(list);
    for (struct dirent *entry; (entry = readdir(list));) {
        char to[100] = "";
        snprintf(path, sizeof path, "/proc/%d/fd/%s", pid, entry->d_name);
        if (readlink(path, to, sizeof to - 1) > 0)
            found += strstr(to, "ebb-stats") != NULL;
    }
    closedir(list);
    REQUIRE(write(in[1], "x", 1) == 1);
    REQUIRE(status_of(pid) == 0);
    for (int i = 0; i < 2; i++)
        close(in[i]), close(out[i]);
    return found;
}
static void as_nobody(void *argument)
{
    (void)argument;
    MUST(setresgid(65534, 65534, 65534));
    MUST(setresuid(65534, 65534, 65534));
    finds_none(privileged_one);
}
static void on_loan(void *argument)
{
    (void)argument;
    /* The new program is as privileged as one with the bit in its mode. */
    MUST(seteuid(65534));
    finds_none(dynamic_one);
}
int main(void)
{
    char command[4000];
    int is_managed = getenv("EBB_STATS_FD") != NULL;
    REQUIRE(mkdtemp(directory));
    MUST(chmod(directory, 0755));
    snprintf(static_one, sizeof static_one, "%s/static", directory);
    snprintf(dynamic_one, sizeof dynamic_one, "%s/dynamic", directory);
    snprintf(privileged_one, sizeof privileged_one, "%s/privileged", directory);
    snprintf(command, sizeof command,
             "cd %s && printf '%s' > p.c && gcc -o dynamic p.c && cp dynamic privileged && gcc -static -o static p.c 2>/dev/null",
             directory, source);
    int built = system(command);
    unsigned char *m = fresh(MIB);
    fill(m, MIB, 1);
    evict(m, MIB);
    if (built == 0) {
        finds_none(static_one);
        REQUIRE(seen_in(dynamic_one, "wait") == is_managed);
        REQUIRE(seen_in(static_one, dynamic_one) == is_managed);
        REQUIRE(seen_in(dynamic_one, dynamic_one) == is_managed);
        if (geteuid() == 0) {
            /* To be executed, not to be read. */
            MUST(chmod(privileged_one, 04711));
            wait_ok(child_of(as_nobody, NULL));
            wait_ok(child_of(on_loan, NULL));
            MUST(chown(privileged_one, 65534, 65534));
            MUST(chmod(privileged_one, 04755));
            finds_none(privileged_one);
            MUST(chown(privileged_one, 0, 65534));
            MUST(chmod(privileged_one, 02755));
            finds_none(privileged_one);
        }
    }
    snprintf(command, sizeof command, "rm -r %s", directory);
    REQUIRE(system(command) == 0);
    if (built != 0)
        return skip("no static C library");
    check(m, MIB, 1, "at the end");
    return ok();
}
