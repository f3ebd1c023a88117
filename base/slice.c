/* SPDX-License-Identifier: Apache-2.0 */
#include "base/slice.h"

#include <linux/sched.h> /* glibc's sched.h has its own struct sched_param */
#include <linux/sched/types.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool read_attributes(struct sched_attr *ret)
{
    *ret = (struct sched_attr){.size = sizeof(*ret)};
    return syscall(SYS_sched_getattr, 0, ret, sizeof(*ret), 0) == 0;
}

void slice_set(int64_t ns)
{
    struct sched_attr attr;
    /* For real-time and deadline threads sched_runtime has another meaning. */
    if (!read_attributes(&attr) || (attr.sched_policy != SCHED_NORMAL && attr.sched_policy != SCHED_BATCH))
        return;
    attr.sched_runtime = (uint64_t)ns;
    (void)syscall(SYS_sched_setattr, 0, &attr, 0);
}

int64_t slice_get(void)
{
    struct sched_attr attr;
    if (!read_attributes(&attr) || (attr.sched_policy != SCHED_NORMAL && attr.sched_policy != SCHED_BATCH))
        return 0;
    return (int64_t)attr.sched_runtime;
}
