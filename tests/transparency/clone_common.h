/* A thread or process by the clone system call alone, without the C library. */
#ifndef CLONE_COMMON_H
#define CLONE_COMMON_H
#include "pressure.h"
#include <linux/sched.h>
/* clone(flags, stack, parent tid, child tid, tls); the child calls function(argument) and exits with 0. */
long raw_clone(unsigned long flags, void *stack, int *parent, int *child, void *tls, void (*function)(void *), void *argument);
/* clone3(args, size), likewise. */
long raw_clone3(struct clone_args *args, size_t size, void (*function)(void *), void *argument);
__asm__(
    ".text\n .globl raw_clone, raw_clone3\n"
    "raw_clone:\n"
    "push %rbx\n push %r12\n"
    "mov %rcx, %r10\n mov %r9, %rbx\n mov 24(%rsp), %r12\n"
    "mov $56, %eax\n syscall\n"
    "test %rax, %rax\n jz 1f\n"
    "pop %r12\n pop %rbx\n ret\n"
    "raw_clone3:\n"
    "push %rbx\n push %r12\n"
    "mov %rdx, %rbx\n mov %rcx, %r12\n"
    "mov $435, %eax\n syscall\n"
    "test %rax, %rax\n jz 1f\n"
    "pop %r12\n pop %rbx\n ret\n"
    "1: xor %ebp, %ebp\n and $-16, %rsp\n mov %r12, %rdi\n call *%rbx\n"
    "xor %edi, %edi\n mov $60, %eax\n syscall\n ud2\n");

#define THREAD_FLAGS (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM)
#define STACK_SIZE (256 * 1024)
/* A block of thread-local storage as the ABI wants it: the pointer points to itself, variables lie below. */
static UNUSED void *new_tls(void)
{
    unsigned char *block = fresh(128 * 1024);
    void **pointer = (void **)(block + 96 * 1024);
    pointer[0] = pointer;
    pointer[2] = pointer;
    return pointer;
}
/* Waits until the kernel has cleared the thread's id. */
static UNUSED void wait_cleared(volatile int *id)
{
    for (int now; (now = *id) != 0;)
        syscall(SYS_futex, id, 0 /* FUTEX_WAIT, shared: that is how the kernel wakes */, now, NULL, NULL, 0);
}
#endif
