/* Mutexes of every kind, conditions, semaphores, barriers and bare futexes that lie in evicted memory. */
#include "pressure.h"
#include <linux/futex.h>
#include <semaphore.h>
struct locks {
    char front[3000];
    pthread_mutex_t plain, robust, inherit, recursive;
    pthread_cond_t condition;
    pthread_rwlock_t rwlock;
    pthread_barrier_t barrier;
    sem_t semaphore;
    int word, stage;
    char back[9000];
};
static struct locks *l;
static void *owner(void *argument)
{
    ZERO(pthread_mutex_lock(&l->robust));
    return argument; /* ends while it holds the mutex */
}
static void *waiter(void *argument)
{
    ZERO(pthread_mutex_lock(&l->plain));
    while (l->stage < 1)
        ZERO(pthread_cond_wait(&l->condition, &l->plain));
    ZERO(pthread_mutex_unlock(&l->plain));
    ZERO(pthread_mutex_lock(&l->inherit));
    l->stage++;
    ZERO(pthread_mutex_unlock(&l->inherit));
    ZERO(pthread_rwlock_rdlock(&l->rwlock));
    ZERO(pthread_rwlock_unlock(&l->rwlock));
    int result = pthread_barrier_wait(&l->barrier);
    REQUIRE(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
    MUST(sem_wait(&l->semaphore));
    while (__atomic_load_n(&l->word, __ATOMIC_SEQ_CST) == 0)
        REQUIRE(syscall(SYS_futex, &l->word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0) == 0 || errno == EAGAIN || errno == EINTR);
    return argument;
}
int main(void)
{
    for (int round = 0; round < 2; round++) {
        pthread_mutexattr_t attributes;
        pthread_t thread, dead;
        l = (struct locks *)fresh(8 * PAGE);
        ZERO(pthread_mutex_init(&l->plain, NULL));
        ZERO(pthread_mutexattr_init(&attributes));
        ZERO(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST));
        ZERO(pthread_mutex_init(&l->robust, &attributes));
        ZERO(pthread_mutexattr_init(&attributes));
        ZERO(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT));
        ZERO(pthread_mutex_init(&l->inherit, &attributes));
        ZERO(pthread_mutexattr_init(&attributes));
        ZERO(pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE));
        ZERO(pthread_mutex_init(&l->recursive, &attributes));
        ZERO(pthread_cond_init(&l->condition, NULL));
        ZERO(pthread_rwlock_init(&l->rwlock, NULL));
        ZERO(pthread_barrier_init(&l->barrier, NULL, 2));
        MUST(sem_init(&l->semaphore, 0, 0));
        for (int i = 0; i < 5; i++)
            ZERO(pthread_mutex_lock(&l->recursive));

        ZERO(pthread_create(&dead, NULL, owner, NULL));
        ZERO(pthread_join(dead, NULL));
        evict(l, sizeof *l);
        REQUIRE(pthread_mutex_lock(&l->robust) == EOWNERDEAD);
        ZERO(pthread_mutex_consistent(&l->robust));
        ZERO(pthread_mutex_unlock(&l->robust));

        ZERO(pthread_mutex_lock(&l->inherit));
        ZERO(pthread_rwlock_wrlock(&l->rwlock));
        ZERO(pthread_create(&thread, NULL, waiter, NULL));
        sleep_ms(20);
        evict(l, sizeof *l);
        ZERO(pthread_mutex_lock(&l->plain));
        l->stage = 1;
        ZERO(pthread_cond_signal(&l->condition));
        ZERO(pthread_mutex_unlock(&l->plain));
        sleep_ms(20);
        evict(l, sizeof *l);
        ZERO(pthread_mutex_unlock(&l->inherit));
        sleep_ms(20);
        evict(l, sizeof *l);
        ZERO(pthread_rwlock_unlock(&l->rwlock));
        evict(l, sizeof *l);
        int result = pthread_barrier_wait(&l->barrier);
        REQUIRE(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
        evict(l, sizeof *l);
        MUST(sem_post(&l->semaphore));
        sleep_ms(20);
        evict(l, sizeof *l);
        __atomic_store_n(&l->word, 1, __ATOMIC_SEQ_CST);
        MUST(syscall(SYS_futex, &l->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0));
        ZERO(pthread_join(thread, NULL));
        REQUIRE(l->stage == 2);
        for (int i = 0; i < 5; i++)
            ZERO(pthread_mutex_unlock(&l->recursive));
        /* A wait with a time limit that lies in evicted memory too. */
        struct timespec *limit = (struct timespec *)l->back;
        *limit = (struct timespec){ 0, 20000000 };
        evict(l, sizeof *l);
        REQUIRE(syscall(SYS_futex, &l->word, FUTEX_WAIT_PRIVATE, 1, limit, NULL, 0) == -1 && errno == ETIMEDOUT);
        REQUIRE(syscall(SYS_futex, &l->word, FUTEX_WAIT_PRIVATE, 2, limit, NULL, 0) == -1 && errno == EAGAIN);
        int *other = (int *)(l->back + 4096);
        evict(l, sizeof *l);
        REQUIRE(syscall(SYS_futex, &l->word, FUTEX_CMP_REQUEUE_PRIVATE, 1, (void *)1, other, 1) == 0);
        evict(l, sizeof *l);
        REQUIRE(syscall(SYS_futex, &l->word, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1, other, FUTEX_OP(FUTEX_OP_ADD, 3, FUTEX_OP_CMP_EQ, 0)) == 0);
        REQUIRE(*other == 3);
    }
    return ok();
}
