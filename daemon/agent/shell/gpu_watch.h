/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_watch.h - the GPUs of an agent's slots, as NVML reports them: memory, temperature, faults.
 *
 * NVML calls can block, so an own thread makes them; the loop reads its last results. A GPU takes its slot out of use
 * when it reports a critical Xid or an uncorrected ECC error, is lost, or needs a reset; gpu_watch_release() or the
 * next start ends that. A GPU not checked for GPU_WATCH_OLD_MS also takes its slot out of use, until NVML answers. All
 * functions run on the loop's thread, and accept NULL, which means that there is nothing to watch. */
#ifndef TITAN_DAEMON_AGENT_SHELL_GPU_WATCH_H
#define TITAN_DAEMON_AGENT_SHELL_GPU_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/error.h"

#ifndef GPU_WATCH_OLD_MS /* a test builds with less */
#define GPU_WATCH_OLD_MS 30000
#endif

enum gpu_health {
    GPU_WELL,
    GPU_UNSEEN, /* not checked since this start, or since gpu_watch_look() */
    GPU_OUT,    /* out of use; reason is set */
};
struct gpu_state {
    char name[96], uuid[96];
    uint64_t memory_used, memory_total; /* bytes; total 0 = unknown */
    uint64_t ecc_errors;                /* uncorrected, since the driver was loaded */
    bool ecc;                           /* the GPU counts ECC errors */
    uint32_t celsius;                   /* 0 = unknown */
    uint32_t xid;                       /* last Xid since this start; 0 = none */
    enum gpu_health health;
    char reason[256]; /* why its slot is out of use; "" = in use */
};

struct gpu_watch;

struct gpu_watch_options {
    uint32_t slots;              /* number of slots; slot i has GPU i (machine_gpu()) */
    const char *library;         /* a path; NULL = NVML's own name */
    void (*changed)(void *data); /* runs on the loop after each change */
    void *data;
};

/* TITAN_ENOTFOUND: there is no NVML. */
titan_status gpu_watch_open(uv_loop_t *loop, const struct gpu_watch_options *options, struct gpu_watch **ret,
                            struct titan_error *err) TITAN_MUST_USE;
/* done runs on the loop. A thread that blocks in NVML is abandoned. */
void gpu_watch_close(struct gpu_watch *w, void (*done)(void *data), void *data);
/* Returns false if there is no data on GPUs; then the slot is used without it. */
bool gpu_watch_get(const struct gpu_watch *w, uint32_t slot, struct gpu_state *ret);
/* Puts the slot back in use at an operator's request, and checks its GPU at once. */
void gpu_watch_release(struct gpu_watch *w, uint32_t slot);
/* A worker in the slot ended with a device failure: the GPU is checked at once, and out of use until then. */
void gpu_watch_look(struct gpu_watch *w, uint32_t slot);

#endif
