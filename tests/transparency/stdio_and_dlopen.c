/* The C library's own blocks under pressure: streams, environment, locale, libraries loaded late. */
#include "pressure.h"
#include <dlfcn.h>
#include <locale.h>
int main(void)
{
    char path[] = "/tmp/ebb-stdio-XXXXXX", line[100];
    close(MUST(mkstemp(path)));
    FILE *file = fopen(path, "w+");
    unlink(path);
    REQUIRE(file);
    char *buffer = malloc(3 * PAGE);
    REQUIRE(setvbuf(file, buffer, _IOFBF, 3 * PAGE) == 0);
    for (int i = 0; i < 20000; i++) {
        if (i % 5000 == 0)
            evict(buffer, 3 * PAGE);
        REQUIRE(fprintf(file, "line %d\n", i) > 0);
    }
    REQUIRE(fflush(file) == 0);
    rewind(file);
    for (int i = 0; i < 20000; i++) {
        int n;
        if (i % 5000 == 0)
            evict(buffer, 3 * PAGE);
        REQUIRE(fgets(line, sizeof line, file) && sscanf(line, "line %d", &n) == 1 && n == i);
    }
    REQUIRE(fclose(file) == 0);
    evict(buffer, 3 * PAGE);
    void *library = dlopen("libm.so.6", RTLD_NOW);
    REQUIRE(library);
    double (*root)(double) = (double (*)(double))dlsym(library, "sqrt");
    REQUIRE(root && root(81) == 9);
    REQUIRE(dlclose(library) == 0);
    evict(buffer, 3 * PAGE);
    REQUIRE(setlocale(LC_ALL, "C") && setenv("NEW", "value", 1) == 0 && strcmp(getenv("NEW"), "value") == 0);
    time_t now = 0;
    struct tm *parts = gmtime(&now);
    REQUIRE(parts->tm_year == 70);
    return ok();
}
