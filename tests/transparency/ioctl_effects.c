/* Requests to devices whose structures lead to further memory: with the structure on the stack or on the heap, and with everything in
 * memory or out, each has its effect once, and none meets a page that is out. What only the kernel knows the size of is larger than
 * a page. TORTURE_SEED repeats a run, TORTURE_SECONDS makes it longer; without /dev/kvm it goes without a guest. */
#include "pressure.h"
#include <linux/ethtool.h>
#include <linux/fs.h>
#include <linux/fiemap.h>
#include <linux/kvm.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#define AREA (2 * MIB)
#define TURNS_MIN 200
/* A slot of the guest, which is no memory of Ebb's, and where it is. */
#define SLOT (512 * MIB)
#define SLOT_AT 0x10000000ul
#define SLOT_PAGES (SLOT / PAGE)
#define LOG_BYTES (SLOT_PAGES / 8)

static uint64_t seed, state;

static __attribute__((noreturn, format(printf, 1, 2))) void fail_seeded(const char *format, ...)
{
    char text[500];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fail("seed %llu: %s", (unsigned long long)seed, text);
}
#define fail fail_seeded

static uint64_t draw(uint64_t below)
{
    state = mix(state + 0x9e3779b97f4a7c15u);
    return state % below;
}

/* Memory that comes and goes; where structures and what they lead to are put, each time elsewhere. */
static unsigned char *area;

static void *somewhere(size_t from, size_t len)
{
    return area + from + draw(AREA / 8 - len) / 8 * 8;
}

/* Some of it goes. */
static void page_out(void)
{
    if (draw(4) == 0)
        return;
    size_t first = draw(2) ? 0 : draw(AREA / PAGE), pages = AREA / PAGE - first;
    MUST(madvise(area + first * PAGE, pages * PAGE, 21 /* MADV_PAGEOUT */));
    pages_evicted += absent(area, 8 * PAGE);
}

/* The structure where the request finds it. */
#define PLACE(type, stack) (draw(2) ? (type *)memcpy(somewhere(0, sizeof(type)), &(stack), sizeof(type)) : &(stack))

static int vm = -1, cpu;
static struct kvm_run *run;

static void make_guest(void)
{
    static const unsigned char code[] = { 0x88, 0x04, 0xf4 }; /* mov [si], al; hlt */
    int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm < 0)
        return;
    vm = MUST(ioctl(kvm, KVM_CREATE_VM, 0));
    unsigned char *low = fresh(64 * PAGE);
    memcpy(low + PAGE, code, sizeof code);
    void *slot = MUST(mmap(NULL, SLOT, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    struct kvm_userspace_memory_region regions[] = {
        { 0, 0, 0, 64 * PAGE, (uintptr_t)low },
        { 1, KVM_MEM_LOG_DIRTY_PAGES, SLOT_AT, SLOT, (uintptr_t)slot },
    };
    for (int i = 0; i < 2; i++)
        MUST(ioctl(vm, KVM_SET_USER_MEMORY_REGION, &regions[i]));
    cpu = MUST(ioctl(vm, KVM_CREATE_VCPU, 0));
    run = MUST(mmap(NULL, MUST(ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0)), PROT_READ | PROT_WRITE, MAP_SHARED, cpu, 0));
}

/* The guest writes to a page of the slot. */
static void write_page(size_t page)
{
    struct kvm_sregs special;
    struct kvm_regs registers = { .rip = PAGE, .rflags = 2, .rax = 1 };
    MUST(ioctl(cpu, KVM_GET_SREGS, &special));
    special.cs.base = special.cs.selector = 0;
    special.ds.base = SLOT_AT + page * PAGE;
    MUST(ioctl(cpu, KVM_SET_SREGS, &special));
    MUST(ioctl(cpu, KVM_SET_REGS, &registers));
    MUST(ioctl(cpu, KVM_RUN, 0));
    REQUIRE(run->exit_reason == KVM_EXIT_HLT);
}

static void dirty_log(void)
{
    static unsigned char wanted[LOG_BYTES];
    size_t pages[6], n = 1 + draw(6);
    memset(wanted, 0, sizeof wanted);
    for (size_t i = 0; i < n; i++) {
        write_page(pages[i] = draw(SLOT_PAGES));
        wanted[pages[i] / 8] |= 1 << pages[i] % 8;
    }
    unsigned char *log = somewhere(AREA / 2, LOG_BYTES);
    memset(log, 0x5a, LOG_BYTES);
    struct kvm_dirty_log here = { .slot = 1, .dirty_bitmap = log }, *there = PLACE(struct kvm_dirty_log, here);
    page_out();
    if (ioctl(vm, KVM_GET_DIRTY_LOG, there) != 0)
        fail("the log is refused");
    for (size_t i = 0; i < LOG_BYTES; i++)
        if (log[i] != wanted[i])
            fail("byte %zu of the log is %#x, not %#x", i, log[i], wanted[i]);
    /* That forgot what it told. */
    page_out();
    MUST(ioctl(vm, KVM_GET_DIRTY_LOG, there));
    for (size_t i = 0; i < LOG_BYTES; i++)
        if (log[i] != 0)
            fail("byte %zu of the second log is %#x", i, log[i]);
}

static void driver_of_network(int socket)
{
    struct ethtool_drvinfo known = { .cmd = ETHTOOL_GDRVINFO }, *info = somewhere(AREA / 2, sizeof known);
    struct ifreq here = { .ifr_name = "lo", .ifr_data = (char *)&known }, *there;
    if (ioctl(socket, SIOCETHTOOL, &here) != 0) {
        REQUIRE(errno == EOPNOTSUPP || errno == ENODEV);
        return;
    }
    memset(info, 0, sizeof known);
    info->cmd = ETHTOOL_GDRVINFO;
    here.ifr_data = (char *)info;
    there = PLACE(struct ifreq, here);
    page_out();
    MUST(ioctl(socket, SIOCETHTOOL, there));
    REQUIRE(memcmp(info, &known, sizeof known) == 0);
}

static void interfaces(int socket)
{
    static char known[64 * sizeof(struct ifreq)];
    struct ifconf here = { .ifc_len = sizeof known, .ifc_buf = known }, *there;
    MUST(ioctl(socket, SIOCGIFCONF, &here));
    int len = here.ifc_len;
    char *list = somewhere(AREA / 2, sizeof known);
    here = (struct ifconf){ .ifc_len = sizeof known, .ifc_buf = list };
    there = PLACE(struct ifconf, here);
    page_out();
    MUST(ioctl(socket, SIOCGIFCONF, there));
    REQUIRE(there->ifc_len == len && memcmp(list, known, len) == 0);
}

static void extents(int file)
{
    struct { struct fiemap map; struct fiemap_extent extents[100]; } *there = somewhere(AREA / 2, sizeof *there);
    memset(there, 0, sizeof *there);
    there->map = (struct fiemap){ .fm_length = ~0ull, .fm_extent_count = 100 };
    page_out();
    if (ioctl(file, FS_IOC_FIEMAP, &there->map) != 0)
        REQUIRE(errno == EOPNOTSUPP || errno == ENOTTY);
}

int main(void)
{
    const char *wanted = getenv("TORTURE_SEED"), *time = getenv("TORTURE_SECONDS");
    seed = state = wanted ? strtoull(wanted, NULL, 10) : mix((uint64_t)(now_s() * 1e9)) >> 32;
    /* More than a process keeps for itself while it is small. */
    unsigned char *more = fresh(budget() ? budget() : 16 * MIB);
    fill(more, budget() ? budget() : 16 * MIB, 1);
    area = fresh(AREA);
    fill(area, AREA, 2);
    make_guest();
    int socket_fd = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)), file = MUST(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    size_t logs = 0;
    double end = now_s() + (time ? atof(time) : 1);
    for (int turn = 0; turn < TURNS_MIN || now_s() < end; turn++)
        switch (draw(vm < 0 ? 3 : 5)) {
        case 0: driver_of_network(socket_fd); break;
        case 1: interfaces(socket_fd); break;
        case 2: extents(file); break;
        default: dirty_log(); logs++; break;
        }
    REQUIRE(vm < 0 || logs > 0);
    REQUIRE(!managed() || pages_evicted > 0);
    char line[200];
    int n = snprintf(line, sizeof line, "ok %s evicted=%zu logs=%zu seed=%llu\n", NAME, pages_evicted, logs,
                     (unsigned long long)seed);
    return write(1, line, n) == n ? 0 : 2;
}
