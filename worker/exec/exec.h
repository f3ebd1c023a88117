/* exec.h - runs a step program on a device and a communicator.
 *
 * The executor knows no model structure and no parallelism beyond the program's actions: it binds buffers to memory
 * (arena, state), walks the array, enqueues each action on its stream and places an event where another stream waits.
 * One thread. After a failure (TITAN_EREVOKED, TITAN_EPEER, ...) the step is void: parameters and moments are as
 * before, because the update begins only when the host has learned of a successful reduction of everything else. */
#ifndef TITAN_WORKER_EXEC_EXEC_H
#define TITAN_WORKER_EXEC_EXEC_H

#include "worker/comm/comm.h"
#include "worker/model/layers.h"
#include "worker/plan/program.h"
#include "worker/state.h"

struct exec;

struct exec_options {
    const struct program *program; /* borrowed, finished and checked */
    const struct layer_ctx *shape; /* copied; positions and tables are the executor's own */
    const struct device_handle *device;
    struct stream *streams[STREAM_COUNT]; /* borrowed */
    const struct comm_ops *comm_ops;      /* NULL when world is 1 */
    struct comm *comm;
    struct train_state *state; /* borrowed; updated by OPTIMISE */
};

/* What the host decides between reduction and update. */
struct exec_decision {
    bool skip; /* leave the state alone */
    struct adamw_args adamw;
};

struct exec_step {
    const int32_t *batch; /* [own microbatch][inputs (N) | targets (N)], host */
    const double *counts; /* [own microbatch] counted tokens */
    unsigned orders;      /* bits, see membership.h */
    /* reports: of every rank, layout as in program.h. */
    titan_status (*decide)(void *arg, const double *reports, struct exec_decision *ret, struct titan_error *err);
    void *arg;
};

titan_status exec_open(const struct exec_options *options, struct exec **ret, struct titan_error *err) TITAN_MUST_USE;
/* The streams must be idle. NULL is fine. */
void exec_close(struct exec *e);
/* One step. Its update may still be running on the compute stream on return. */
titan_status exec_run(struct exec *e, const struct exec_step *step, struct titan_error *err) TITAN_MUST_USE;

#endif
