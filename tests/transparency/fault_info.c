/* What a SIGSEGV handler is told: address, code, the instruction, the kind of access. */
#include "pressure.h"
static unsigned char *none, *readonly, *hole;
static volatile int count;
static void handler(int signal, siginfo_t *info, void *context)
{
    ucontext_t *state = context;
    greg_t *regs = state->uc_mcontext.gregs;
    unsigned char *at = info->si_addr;
    REQUIRE(signal == SIGSEGV && info->si_signo == SIGSEGV);
    REQUIRE((unsigned char *)regs[REG_CR2] == at && regs[REG_TRAPNO] == 14);
    REQUIRE((unsigned char *)regs[REG_RDI] == at);
    if (at == none + 8)
        REQUIRE(info->si_code == SEGV_ACCERR && (regs[REG_ERR] & 4));
    else if (at == readonly + 16)
        REQUIRE(info->si_code == SEGV_ACCERR && (regs[REG_ERR] & 2));
    else if (at == hole + 24)
        REQUIRE(info->si_code == SEGV_MAPERR && (regs[REG_ERR] & 2));
    else
        fail("a fault at %p", (void *)at);
    /* The two instructions used below are three bytes long: skip the one that faulted. */
    const unsigned char *code = (const unsigned char *)regs[REG_RIP];
    REQUIRE((code[0] == 0x48 && code[1] == 0x8b && code[2] == 0x07) || (code[0] == 0x48 && code[1] == 0x89 && code[2] == 0x07));
    regs[REG_RIP] += 3;
    count++;
}
static void load(void *at) { __asm__ volatile("mov (%%rdi), %%rax" : : "D"(at) : "rax", "memory"); }
static void store(void *at) { __asm__ volatile("mov %%rax, (%%rdi)" : : "D"(at), "a"(1) : "memory"); }
int main(void)
{
    unsigned char *m = fresh(MIB);
    none = fresh(PAGE);
    readonly = fresh(PAGE);
    /* Nothing is ever mapped so low, unless asked for. */
    hole = (unsigned char *)0x200000000;
    fill(m, MIB, 1);
    fill(readonly, PAGE, 2);
    fill(none, PAGE, 3);
    MUST(mprotect(none, PAGE, PROT_NONE));
    MUST(mprotect(readonly, PAGE, PROT_READ));
    handle(SIGSEGV, handler, 0);
    for (int i = 0; i < 3; i++) {
        evict(m, MIB);
        load(none + 8);
        store(readonly + 16);
        store(hole + 24);
    }
    REQUIRE(count == 9);
    check(readonly, PAGE, 2, "the read-only page");
    check(m, MIB, 1, "other memory");
    return ok();
}
