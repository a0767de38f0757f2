/* Prints its LD_PRELOAD, without any library; also as the loader of another program. */
#ifdef __x86_64__
__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call show\n");
static long call3(long nr, long a, long b, long c) {
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(nr), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return r;
}
enum { WRITE = 1, EXIT = 231 };
#else
__asm__(".globl _start\n_start: mov %esp, %eax\n push %eax\n call show\n");
static long call3(long nr, long a, long b, long c) {
    long r;
    __asm__ volatile("int $0x80" : "=a"(r) : "a"(nr), "b"(a), "c"(b), "d"(c) : "memory");
    return r;
}
enum { WRITE = 4, EXIT = 252 };
#endif
__attribute__((used)) void show(long *stack) {
    static const char name[] = "LD_PRELOAD=";
    for (char **at = (char **)(stack + 1 + *stack + 1); *at; at++) {
        int i = 0, n = 0;
        while (i < 11 && (*at)[i] == name[i]) i++;
        while ((*at)[n]) n++;
        if (i == 11) call3(WRITE, 1, (long)*at, n);
    }
    call3(WRITE, 1, (long)".\n", 2);
    call3(EXIT, 0, 0, 0);
}
