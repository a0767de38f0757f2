/* An alternate signal stack in the heap, long unused, takes a handler; the program sees its own stack only. */
#include "pressure.h"
static unsigned char *m, *stack;
static volatile int ran;
#define SIZE (64 * 1024)
static void handler(int signal)
{
    unsigned char local[2 * PAGE];
    stack_t now;
    (void)signal;
    REQUIRE(local > stack && local < stack + SIZE);
    fill(local, sizeof local, 3);
    MUST(sigaltstack(NULL, &now));
    REQUIRE((now.ss_flags & SS_ONSTACK) && now.ss_sp == stack && now.ss_size == SIZE);
    REQUIRE(sigaltstack(&(stack_t){ .ss_sp = stack, .ss_size = SIZE }, NULL) == -1 && errno == EPERM);
    evict(m, MIB);
    check(m, MIB, 1, "in a handler on the alternate stack");
    check(local, sizeof local, 3, "the alternate stack");
    ran++;
}
static void *body(void *argument)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
    stack_t set, now;
    (void)argument;
    MUST(sigaltstack(NULL, &now));
    REQUIRE(now.ss_flags & SS_DISABLE);
    stack = malloc(SIZE);
    memset(stack, 0x5a, SIZE);
    set = (stack_t){ .ss_sp = stack, .ss_size = SIZE };
    MUST(sigaltstack(&set, &now));
    REQUIRE(now.ss_flags & SS_DISABLE);
    MUST(sigaction(SIGUSR1, &action, NULL));
    for (int i = 0; i < 3; i++) {
        evict(stack, SIZE);
        raise(SIGUSR1);
    }
    REQUIRE(stack[0] == 0x5a);
    set.ss_size = 100;
    REQUIRE(sigaltstack(&set, NULL) == -1 && errno == ENOMEM);
    set = (stack_t){ .ss_flags = SS_DISABLE };
    MUST(sigaltstack(&set, &now));
    REQUIRE(now.ss_sp == stack && now.ss_size == SIZE);
    return NULL;
}
int main(void)
{
    pthread_t thread;
    m = fresh(MIB);
    fill(m, MIB, 1);
    body(NULL);
    ZERO(pthread_create(&thread, NULL, body, NULL));
    ZERO(pthread_join(thread, NULL));
    REQUIRE(ran == 6);
    return ok();
}
