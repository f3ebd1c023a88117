/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_watch.h - the GPUs of an agent's slots, as NVML sees them: what they hold, how warm they are, what is wrong.
 *
 * A thread of its own asks NVML, as its calls can block; the loop reads what that has found last. A GPU that reports a
 * critical Xid or an uncorrected ECC error, is lost, or needs a reset, takes its slot out of use until
 * gpu_watch_release() or the next start. So does, until NVML answers, a GPU that has not been looked at for
 * GPU_WATCH_OLD_MS. All functions are for the loop's thread, and take NULL for "there is nothing to watch". */
#ifndef TITAN_DAEMON_AGENT_SHELL_GPU_WATCH_H
#define TITAN_DAEMON_AGENT_SHELL_GPU_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/error.h"

#ifndef GPU_WATCH_OLD_MS /* a test has a build with less */
#define GPU_WATCH_OLD_MS 30000
#endif

enum gpu_health {
    GPU_WELL,
    GPU_UNSEEN, /* since this start, or gpu_watch_look() */
    GPU_OUT,    /* reason says why */
};
struct gpu_state {
    char name[96], uuid[96];
    uint64_t memory_used, memory_total; /* bytes; total 0 = not known */
    uint64_t ecc_errors;                /* uncorrected, since the driver was loaded */
    bool ecc;                           /* it counts them */
    uint32_t celsius;                   /* 0 = not known */
    uint32_t xid;                       /* the last one since this start; 0 = none */
    enum gpu_health health;
    char reason[256]; /* why its slot is out of use; "" = it is not */
};

struct gpu_watch;

/* Watches the GPUs of slots 0 to slots - 1 (machine_gpu()). changed is called on the loop when there is something new.
 * library: a path, NULL = NVML's own name. TITAN_ENOTFOUND: there is no NVML. */
titan_status gpu_watch_open(uv_loop_t *loop, uint32_t slots, const char *library, void (*changed)(void *data),
                            void *data, struct gpu_watch **ret, struct titan_error *err) TITAN_MUST_USE;
/* done on the loop. A thread that NVML holds is left to itself. */
void gpu_watch_close(struct gpu_watch *w, void (*done)(void *data), void *data);
/* false: nothing is known of GPUs here, the slot is used as it is. */
bool gpu_watch_get(const struct gpu_watch *w, uint32_t slot, struct gpu_state *ret);
/* An operator has seen to it: what took the slot out of use is forgotten, and its GPU is looked at at once. */
void gpu_watch_release(struct gpu_watch *w, uint32_t slot);
/* A worker there has ended as its device failed: the GPU is looked at at once, and out of use until it has been. */
void gpu_watch_look(struct gpu_watch *w, uint32_t slot);

#endif
