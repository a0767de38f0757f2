/* A statically linked program, which no library can be preloaded into, still runs. (Built by this one.) */
#include "pressure.h"
int main(void)
{
    char directory[] = "/tmp/ebb-static-XXXXXX", command[400];
    unsigned char *m = fresh(MIB);
    fill(m, MIB, 1);
    REQUIRE(mkdtemp(directory));
    snprintf(command, sizeof command,
             "cd %s && printf '#include <stdio.h>\\nint main(void){puts(\"static\");return 4;}' > s.c && "
             "gcc -static -o s s.c >/dev/null 2>&1", directory);
    int built = system(command);
    evict(m, MIB);
    snprintf(command, sizeof command, "test \"$(%s/s; echo $?)\" = \"$(printf 'static\\n4')\"", directory);
    int result = built == 0 ? system(command) : -1;
    check(m, MIB, 1, "at the end");
    char remove[100];
    snprintf(remove, sizeof remove, "rm -r %s", directory);
    REQUIRE(system(remove) == 0);
    if (built != 0)
        return skip("no static C library");
    REQUIRE(result == 0);
    return ok();
}
