/* exec.h - runs a step program on a device and its communicators.
 *
 * The executor knows no model structure and no parallelism beyond the program's actions: it binds buffers to memory
 * (arena, tables, what the caller gives), walks the array, enqueues each action on its stream and places an event where
 * another stream waits. What differs between ranks of one kind it takes from the rank: samples, first row of the
 * vocabulary, place in the report.
 *
 * One thread. After a failure (TITAN_EREVOKED, TITAN_EPEER, ...) parameters and moments are as before the step, because
 * the update begins only when the host has learned of a successful reduction of everything else. AGREE is the last
 * action that needs a peer, and the host lets it begin only when all before it has succeeded here: from then on the
 * step is *prepared*, and whoever brings the report can finish it (exec_finish), with the communicators gone. */
#ifndef TITAN_WORKER_EXEC_EXEC_H
#define TITAN_WORKER_EXEC_EXEC_H

#include <stdatomic.h>

#include "worker/comm/comm.h"
#include "worker/plan/program.h"
#include "worker/plan/sequence.h"

struct exec;

struct exec_options {
    const struct program *program; /* borrowed, finished and checked */
    int rank;                      /* of the mesh */
    struct sequence_cut cut;       /* of a microbatch, for the tables */
    const struct device_handle *device;
    struct stream *streams[STREAM_COUNT]; /* borrowed; those in program->streams */
    const struct comm_ops *comm_ops;      /* NULL when world is 1 */
    /* Borrowed; those in program->channels whose group has several members. Of a point-to-point channel comms is the
     * edge SEND goes out by, inbound the one RECV comes in by; both have two members (mesh_edge). */
    struct comm *comms[CHANNEL_COUNT], *inbound[CHANNEL_COUNT];
    /* Memory of an external buffer other than TABLE. */
    void *(*bind)(void *arg, const struct buffer *buffer);
    /* OPTIMISE: update a unit's n elements. state: masters, m and v one after the other where the program staged them
     * (offload), otherwise NULL: the caller knows where it keeps them. shard: the compute type's copy. */
    titan_status (*optimise)(void *arg, int unit, float *state, void *shard, const float *grad, int64_t n,
                             struct stream *s);
    /* Both or neither. reduced: a unit's gradient shard (n) is final when s has come here; nothing writes to it before
     * the next step. settle: wait until all that was started with them has succeeded; called when everything else
     * before AGREE has. */
    titan_status (*reduced)(void *arg, int unit, const float *grad, int64_t n, struct stream *s,
                            struct titan_error *err);
    titan_status (*settle)(void *arg, struct titan_error *err);
    /* Every rank has begun this step, so each has the report of the one before (program_meeting). Once a step, on the
     * thread of a stream, before exec_run returns TITAN_OK; it must not call the device. Not when alone. NULL: not
     * wanted. */
    titan_status (*met)(void *arg, struct titan_error *err);
    void *arg;
    /* Non-zero: a step that has not come to AGREE is not worth finishing, TITAN_EREVOKED. NULL: never. */
    const atomic_int *revoked;
};

struct exec_step {
    const int32_t *tokens; /* [slot][5][N], host: as LOAD wants them */
    const double *counts;  /* [slot] counted tokens of this cp rank */
    unsigned orders;       /* bits, see membership.h */
    /* At DECIDE: the report (program.h), summed over all ranks. *ret_skip: leave the state alone. */
    titan_status (*decide)(void *arg, const double *report, bool *ret_skip, struct titan_error *err);
    void *arg;
};

titan_status exec_open(const struct exec_options *options, struct exec **ret, struct titan_error *err) TITAN_MUST_USE;
/* The streams must be idle. NULL is fine. */
void exec_close(struct exec *e);
/* One step. Its update may still be running on the compute stream on return. */
titan_status exec_run(struct exec *e, const struct exec_step *step, struct titan_error *err) TITAN_MUST_USE;
/* The step that failed is prepared. False after a step that was decided. */
bool exec_prepared(const struct exec *e);
/* Decide and update with the report that AGREE would have given; of step only decide and arg are looked at. The streams
 * must be idle and without failures; neither communicators nor the batch are needed any more. */
titan_status exec_finish(struct exec *e, const struct exec_step *step, const double *report,
                         struct titan_error *err) TITAN_MUST_USE;
/* The report (program->report.size) of the last step that was decided; NULL: none was. */
const double *exec_report(const struct exec *e);
/* The units whose gradient shards this rank's program makes, in the order in which they become final and `reduced` is
 * called. Owned (free). */
titan_status exec_reduced_order(const struct program *program, int **ret, int *ret_n,
                                struct titan_error *err) TITAN_MUST_USE;
/* Address of a buffer while the program has it (tests, generation). */
void *exec_address(const struct exec *e, int buffer);

#endif
