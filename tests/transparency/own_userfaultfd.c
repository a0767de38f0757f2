/* A userfaultfd that the program registered while it was small: its faults stay its own, and nobody but the program touches what waits
 * for them. Of a process that is managed already such memory is Ebb's, and the program is told so (EBUSY). */
#include "pressure.h"
#include <linux/landlock.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
/* Pages in a row: with content, with faults of the program's, and what those are filled from. */
enum { BEFORE, WAITING, SOURCE, PAGES };

static unsigned char *m;
static int uffd;

/* A request of which Ebb knows nothing: it looks for addresses in the structure, and at what lies there. */
static void ask_unknown(uint64_t at)
{
    struct landlock_ruleset_attr attr = { .handled_access_fs = LANDLOCK_ACCESS_FS_EXECUTE };
    int fd = syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0);
    if (fd < 0)
        return;
    uint64_t structure[4] = { 7, at, (uintptr_t)m, 8 };
    REQUIRE(ioctl(fd, _IOWR('z', 99, structure), structure) == -1 && errno == ENOTTY);
    ZERO(close(fd));
}

static void *answer(void *unused)
{
    struct uffd_msg *message = malloc(sizeof *message);
    struct pollfd wanted = { .fd = uffd, .events = POLLIN };
    REQUIRE(poll(&wanted, 1, -1) == 1);
    REQUIRE(read(uffd, message, sizeof *message) == sizeof *message && message->event == UFFD_EVENT_PAGEFAULT);
    /* In memory that is managed, and on the stack. */
    struct uffdio_copy *copy = malloc(sizeof *copy), here;
    *copy = (struct uffdio_copy){ .dst = message->arg.pagefault.address & ~(PAGE - 1), .src = (uintptr_t)(m + SOURCE * PAGE), .len = PAGE,
                                  .mode = UFFDIO_COPY_MODE_DONTWAKE };
    here = *copy;
    REQUIRE(here.dst == (uintptr_t)(m + WAITING * PAGE));
    ask_unknown(here.dst);
    here.mode = 1ull << 60;
    REQUIRE(ioctl(uffd, UFFDIO_COPY, &here) == -1 && errno == EINVAL);
    ZERO(ioctl(uffd, UFFDIO_COPY, copy));
    REQUIRE(copy->copy == (long long)PAGE);
    struct uffdio_range range = { .start = copy->dst, .len = PAGE };
    ZERO(ioctl(uffd, UFFDIO_WAKE, &range));
    free(copy);
    free(message);
    return unused;
}
int main(void)
{
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (uffd < 0)
        return skip("no userfaultfd");
    struct uffdio_api api = { .api = UFFD_API };
    ZERO(ioctl(uffd, UFFDIO_API, &api));
    m = fresh(PAGES * PAGE);
    struct uffdio_register of = { .range = { .start = (uintptr_t)(m + WAITING * PAGE), .len = PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
    if (ioctl(uffd, UFFDIO_REGISTER, &of) != 0) {
        REQUIRE(budget() && errno == EBUSY);
        return ok();
    }
    /* It grows. */
    size_t size = 12 * MIB;
    unsigned char *more = fresh(size);
    fill(more, size, 1);
    fill(m, PAGE, 2);
    fill(m + SOURCE * PAGE, PAGE, 3);
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, answer, NULL));
    check(m + WAITING * PAGE, PAGE, 3, "what the program filled in");
    ZERO(pthread_join(thread, NULL));
    check(m, PAGE, 2, "before it");
    check(m + SOURCE * PAGE, PAGE, 3, "behind it");
    check(more, size, 1, "all else");
    return ok();
}
