/* A thread whose stack lies in the heap and sleeps long: its frames come back. */
#include "pressure.h"
#define SIZE (512 * 1024)
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int turn;
static void wait_turn(int wanted)
{
    ZERO(pthread_mutex_lock(&mutex));
    while (turn != wanted)
        ZERO(pthread_cond_wait(&condition, &mutex));
    ZERO(pthread_mutex_unlock(&mutex));
}
static void set_turn(int value)
{
    ZERO(pthread_mutex_lock(&mutex));
    turn = value;
    ZERO(pthread_cond_broadcast(&condition));
    ZERO(pthread_mutex_unlock(&mutex));
}
static void deep(int depth)
{
    unsigned char local[16 * 1024];
    fill(local, sizeof local, depth);
    if (depth < 20)
        deep(depth + 1);
    else
        for (int i = 0; i < 3; i++) {
            set_turn(2 * i + 1);
            wait_turn(2 * i + 2);
        }
    check(local, sizeof local, depth, "a frame on a stack in the heap");
}
static void *body(void *argument)
{
    deep(0);
    return argument;
}
int main(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    unsigned char *stack = aligned_alloc(PAGE, SIZE);
    memset(stack, 0x11, SIZE);
    evict(stack, SIZE);
    ZERO(pthread_attr_init(&attributes));
    ZERO(pthread_attr_setstack(&attributes, stack, SIZE));
    for (int round = 0; round < 2; round++) {
        turn = 0;
        ZERO(pthread_create(&thread, &attributes, body, stack));
        for (int i = 0; i < 3; i++) {
            wait_turn(2 * i + 1);
            evict(stack, SIZE);
            set_turn(2 * i + 2);
        }
        void *result;
        ZERO(pthread_join(thread, &result));
        REQUIRE(result == stack);
        evict(stack, SIZE);
    }
    return ok();
}
