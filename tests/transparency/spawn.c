/* posix_spawn with file actions and attributes, system and popen. */
#include "pressure.h"
#include <spawn.h>
extern char **environ;
int main(void)
{
    unsigned char *m = fresh(MIB);
    int ends[2];
    char text[64];
    fill(m, MIB, 1);
    for (int i = 0; i < 3; i++) {
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attributes;
        sigset_t all;
        pid_t pid;
        char *arguments[] = { "sh", "-c", "echo spawned; test \"$0\" = zero && exit 5", "zero", NULL };
        sigfillset(&all);
        MUST(pipe2(ends, O_CLOEXEC));
        ZERO(posix_spawn_file_actions_init(&actions));
        ZERO(posix_spawn_file_actions_adddup2(&actions, ends[1], 1));
        ZERO(posix_spawn_file_actions_addclose(&actions, ends[0]));
        ZERO(posix_spawnattr_init(&attributes));
        ZERO(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF));
        ZERO(posix_spawnattr_setsigmask(&attributes, &all));
        ZERO(posix_spawnattr_setsigdefault(&attributes, &all));
        evict(m, MIB);
        ZERO(posix_spawnp(&pid, "sh", &actions, &attributes, arguments, environ));
        close(ends[1]);
        int status;
        REQUIRE(read(ends[0], text, 64) == 8 && memcmp(text, "spawned\n", 8) == 0);
        REQUIRE(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 5);
        close(ends[0]);
        check(m, MIB, 1, "after posix_spawn");
        pid_t none;
        REQUIRE(posix_spawn(&none, "/nonexistent", NULL, NULL, arguments, environ) == ENOENT);
    }
    evict(m, MIB);
    REQUIRE(WEXITSTATUS(system("exit 7")) == 7);
    FILE *file = popen("cat >/dev/null", "w");
    REQUIRE(file && pclose(file) == 0);
    file = popen("echo read this", "r");
    REQUIRE(file && fgets(text, 64, file) && strcmp(text, "read this\n") == 0 && pclose(file) == 0);
    check(m, MIB, 1, "at the end");
    return ok();
}
