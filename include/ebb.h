/* ebb.h: what a program can tell Ebb about its memory, and ask of it. C99 and C++11; there is nothing to link.
 *
 * The functions find Ebb at run time. A program that uses them runs without Ebb as well: then they do nothing, and return what
 * is said below. They need Linux on x86-64; elsewhere, and with EBB_DISABLE defined before this file is included, they are
 * compiled to nothing. A statically linked program cannot have Ebb in it, so there they find nothing either. Before glibc 2.34,
 * link with -ldl.
 *
 * Threads: every function may be called by any number of threads at once.
 * Signal handlers: the same, once ebb_active() has returned in some thread of the same source file: the first call of any
 *   function here looks for Ebb by dlsym(), which may take locks. From then on they allocate nothing and take no lock of the
 *   program's. ebb_reclaim() and ebb_set_ram() take long.
 * After fork(): a child may call all of them. Between vfork() and exec, call none but ebb_active() and ebb_advise(): the others
 *   fail with EBUSY.
 *
 * docs/api.md has examples. This file is part of Ebb: MIT or Apache 2.0.
 */
#ifndef EBB_H
#define EBB_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__linux__) && defined(__x86_64__) && defined(__LP64__) && !defined(EBB_DISABLE)
#define EBB_CAN_BE_THERE 1
#include <dlfcn.h>
#else
#define EBB_CAN_BE_THERE 0
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What this process and its tree of processes hold. Sizes are bytes. Fields are only ever added, at the end: an agent that is
 * older than this file leaves the last ones 0, and `size` says how many bytes it knew. */
struct ebb_stats {
    uint64_t size;
    /* This process. */
    uint64_t wanted_bytes;       /* memory with content, wherever the content is */
    uint64_t held_bytes;         /* what counts against the budget: the next three */
    uint64_t resident_bytes;     /* in page tables, with Ebb's own tables */
    uint64_t staged_bytes;       /* unmapped, and not compressed yet */
    uint64_t pool_bytes;         /* the compressed pool */
    uint64_t pool_content_bytes; /* what is in the pool, before compression */
    uint64_t swapped_bytes;      /* content that is neither resident nor staged */
    uint64_t device_bytes;       /* of that, content on devices, before compression */
    uint64_t faults;             /* faults served */
    /* All processes under the same `ebb run`. */
    uint64_t tree_ram_bytes;           /* the budget */
    uint64_t tree_held_bytes;          /* what they hold of it */
    uint64_t tree_peak_bytes;          /* the most they ever held */
    uint64_t tree_faults_staged;       /* faults that found a staged page: nearly free */
    uint64_t tree_faults_pool;         /* faults that decompressed a page */
    uint64_t tree_faults_device;       /* faults that read from a device */
    uint64_t tree_readahead_bytes;     /* brought in before anybody touched it */
    uint64_t tree_swapped_out_bytes;   /* everything that was ever swapped out */
    uint64_t tree_device_write_bytes;  /* everything that was ever written to devices for that */
    uint64_t tree_stall_ns;            /* time that threads lost to swap */
};

/* Advice about memory. */
enum ebb_advice {
    /* Not needed soon: the first to leave RAM when RAM is short. Nothing happens now. */
    EBB_COLD = 1,
    /* The content is not needed any more. It is never compressed or written. Until the program writes to a page, the page reads
     * as its old content or as zeroes, and may change from the first to the second at any time; what is written after this call
     * stays. Only private anonymous memory: EINVAL for anything else, as from MADV_FREE. */
    EBB_DEAD = 2,
    /* Needed soon: what is swapped out comes in, as far as RAM has room. */
    EBB_SOON = 3
};

#if EBB_CAN_BE_THERE
typedef int64_t (*ebb_private_call)(uint32_t what, uint64_t a, uint64_t b, uint64_t c);

/* The agent's function; NULL where there is no agent. It is looked for once: an agent is there from the start, or never. */
static inline ebb_private_call ebb_private_agent(void)
{
    static void *found; /* NULL before the first look, and its own address if there is no agent */
    ebb_private_call function = NULL;
    void *at = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (at == NULL) {
        int saved = errno;
        /* RTLD_DEFAULT, which strict C does not let <dlfcn.h> define. */
        at = dlsym(NULL, "__ebb_call");
        if (at == NULL) {
            /* The program's next dlerror() is not about this. */
            (void)dlerror();
            at = &found;
        }
        errno = saved;
        __atomic_store_n(&found, at, __ATOMIC_RELAXED);
    }
    if (at != (void *)&found)
        memcpy(&function, &at, sizeof function);
    return function;
}
#endif

/* Asks the agent. Without one the answer is `otherwise`. A negative answer becomes -1 and errno. */
static inline int64_t ebb_private_ask(uint32_t what, uint64_t a, uint64_t b, uint64_t c, int64_t otherwise)
{
    int64_t answer = otherwise;
#if EBB_CAN_BE_THERE
    ebb_private_call agent = ebb_private_agent();
    if (agent != NULL)
        answer = agent(what, a, b, c);
    /* The agent is there, and this process is not managed: as if it were not there. */
    if (answer == -ENOSYS)
        answer = otherwise;
#else
    (void)what, (void)a, (void)b, (void)c;
#endif
    if (answer < 0) {
        errno = (int)-answer;
        return -1;
    }
    return answer;
}

/* 1 if Ebb manages the memory of this process, or will once it has grown; otherwise 0. */
static inline int ebb_active(void)
{
    return (int)ebb_private_ask(0, 0, 0, 0, 0);
}

/* Fills in `stats`. 0, or -1 with errno. Without Ebb: -1, ENOSYS, and all fields 0. */
static inline int ebb_stats(struct ebb_stats *stats)
{
    memset(stats, 0, sizeof *stats);
    return ebb_private_ask(1, (uint64_t)(uintptr_t)stats, sizeof *stats, 0, -ENOSYS) < 0 ? -1 : 0;
}

/* Has this process give up `bytes` of RAM now, its coldest memory first: into the compressed pool, or to a device. Returns how
 * many bytes it gave up, which may be fewer if there is no more, or a few more; or -1 with errno. What the program touches again
 * comes back. Without Ebb: 0. */
static inline int64_t ebb_reclaim(uint64_t bytes)
{
    return ebb_private_ask(2, bytes, 0, 0, 0);
}

/* Sets the budget of all processes under this `ebb run`, and waits until they hold no more. 0, or -1 with errno: EINVAL below
 * 4 MiB, EAGAIN if the budget is set but they still hold more, and gave up nothing for five seconds. Without Ebb: -1, ENOSYS. */
static inline int ebb_set_ram(uint64_t bytes)
{
    return (int)ebb_private_ask(3, bytes, 0, 0, -ENOSYS);
}

/* Gives advice about the `bytes` from `start` on: whole pages of 4096 bytes. 0, or -1 with errno: EINVAL if the range is not
 * whole pages, wraps around, or is not wholly mapped (what is mapped of it takes the advice all the same), or if there is no such
 * advice. Without Ebb: 0, and nothing is looked at. */
static inline int ebb_advise(void *start, size_t bytes, enum ebb_advice advice)
{
    return (int)ebb_private_ask(4, (uint64_t)(uintptr_t)start, bytes, (uint64_t)advice, 0);
}

#ifdef __cplusplus
}
#endif

#endif
