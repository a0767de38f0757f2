/* A robust mutex shared between processes, whose owner is killed, or ends with a second held mutex in evicted memory
 * in front of it in its list. (Killed with such a list, nobody could bring the memory back: the kernel stops there.) */
#include "pressure.h"
int main(void)
{
    pthread_mutexattr_t attributes;
    pthread_mutex_t *mutex = MUST(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ZERO(pthread_mutexattr_init(&attributes));
    ZERO(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST));
    ZERO(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED));
    ZERO(pthread_mutex_init(mutex, &attributes));
    for (int i = 0; i < 3; i++) {
        int ends[2];
        char byte;
        MUST(pipe(ends));
        pid_t pid = MUST(fork());
        if (pid == 0) {
            pthread_mutex_t *own = (pthread_mutex_t *)fresh(PAGE);
            ZERO(pthread_mutex_init(own, &attributes));
            ZERO(pthread_mutex_lock(mutex));
            if (i == 2)
                ZERO(pthread_mutex_lock(own));
            evict(own, PAGE);
            REQUIRE(write(ends[1], "x", 1) == 1);
            if (i == 0)
                pause();
            syscall(i == 1 ? SYS_exit : SYS_exit_group, 0);
        }
        REQUIRE(read(ends[0], &byte, 1) == 1);
        if (i == 0)
            MUST(kill(pid, SIGKILL));
        int status;
        REQUIRE(waitpid(pid, &status, 0) == pid);
        if (i == 2) {
            struct timespec limit;
            clock_gettime(CLOCK_REALTIME, &limit);
            limit.tv_sec += 2;
            int result = pthread_mutex_timedlock(mutex, &limit);
            if (result != EOWNERDEAD)
                fail("the mutex of a dead process gave %d", result);
        } else {
            REQUIRE(pthread_mutex_lock(mutex) == EOWNERDEAD);
        }
        ZERO(pthread_mutex_consistent(mutex));
        ZERO(pthread_mutex_unlock(mutex));
        close(ends[0]);
        close(ends[1]);
    }
    return ok();
}
