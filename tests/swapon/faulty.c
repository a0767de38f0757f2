/* faulty reads|writes|read-only COMMAND...: runs a command for which each read or write of whole slots, as from and to a spill file,
 * fails: with EIO, or with EROFS. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOAD(at) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at)
#define LOW(i) (offsetof(struct seccomp_data, args) + 8 * (i))
#define HIGH(i) (LOW(i) + 4)
/* Jumps over as many instructions as are left before the last. */
#define UNLESS(value, left) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, left)
#define AND(bits) BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits)

int main(int argc, char **argv) {
    unsigned call = argc > 2 && !strcmp(argv[1], "reads") ? SYS_pread64 : SYS_pwrite64;
    unsigned error = argc > 2 && !strcmp(argv[1], "read-only") ? EROFS : EIO;
    struct sock_filter code[] = {
        LOAD(offsetof(struct seccomp_data, nr)),
        UNLESS(call, 12),
        /* Whole slots, */
        LOAD(LOW(2)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 4096, 0, 10),
        AND(4095),
        UNLESS(0, 8),
        LOAD(LOW(3)),
        AND(4095),
        UNLESS(0, 5),
        /* and not too far into the file: /proc/self/pagemap is read elsewhere. */
        LOAD(HIGH(3)),
        UNLESS(0, 3),
        LOAD(HIGH(2)),
        UNLESS(0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (argc < 3)
        return 2;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("seccomp");
        return 77;
    }
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 2;
}
