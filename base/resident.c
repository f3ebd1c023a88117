#include "base/resident.h"

#include <linux/capability.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* With this one the limit does not count. */
static bool has_ipc_lock(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {0};
    return syscall(SYS_capget, &header, sets) == 0 &&
           (sets[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK));
}

bool resident_set(void)
{
    const struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    return (has_ipc_lock() || setrlimit(RLIMIT_MEMLOCK, &unlimited) == 0) &&
           mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0;
}
