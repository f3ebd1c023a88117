/* SPDX-License-Identifier: Apache-2.0 */
#include "base/resident.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

#define TRIM_GROWN (32 << 20)

void resident_trim(bool resident)
{
    static size_t begun, left_free; /* bytes resident at the first call; bytes free in the allocator after a trim */
    char text[64] = "", *second = NULL;
    _cleanup_fd_ int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0)
        return;
    (void)strtoul(text, &second, 10); /* the first number is the size of the address space */
    const size_t now = strtoul(second, NULL, 10) * (size_t)sysconf(_SC_PAGESIZE), free_bytes = mallinfo2().fordblks;
    begun = begun ? begun : now;
    left_free = MIN(left_free, free_bytes);
    if (now < begun + TRIM_GROWN || free_bytes < left_free + TRIM_GROWN / 2)
        return;
    if (resident)
        (void)munlockall();
    (void)malloc_trim(0);
    if (resident)
        (void)resident_set();
    left_free = mallinfo2().fordblks; /* mallinfo2() counts returned pages as free, too */
}

bool resident_set(void)
{
    const struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {0};
    const bool lifted = syscall(SYS_capget, &header, sets) == 0 &&
                        (sets[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK));
    /* With CAP_IPC_LOCK the limit does not apply. */
    return (lifted || setrlimit(RLIMIT_MEMLOCK, &unlimited) == 0) &&
           mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0;
}
