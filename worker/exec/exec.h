/* SPDX-License-Identifier: Apache-2.0 */
/* exec.h - runs a step program on a device and its communicators.
 *
 * The executor knows no model structure and no parallelism beyond the program's actions: it binds buffers to memory
 * (arena, tables, the caller's buffers) and walks over the actions. It enqueues each action on its stream, and records
 * an event where another stream waits. These values differ between ranks of one program class and follow from the rank:
 * samples, first row of the vocabulary, place in the statistics.
 *
 * A training step is four calls. exec_gradients runs all actions before the program's AGREE and returns when they have
 * succeeded here. exec_agree sums the statistics over all ranks. exec_commit runs the direction section, which needs
 * both the statistics and peers, and then COMMIT: the step's commit point, the last action that needs a peer. A program
 * without a direction section has no COMMIT, and AGREE is its commit point. exec_update updates the state, and needs no
 * peer.
 *
 * One thread. Up to the commit point a failure (TITAN_EREVOKED, TITAN_EPEER, ...) leaves parameters and moments as they
 * were. Once the commit point begins, the step is *prepared*: if it fails, the numbers of any other rank can
 * finish the step without communicators (exec_resume, exec_update). */
#ifndef TITAN_WORKER_EXEC_EXEC_H
#define TITAN_WORKER_EXEC_EXEC_H

#include <stdatomic.h>

#include "worker/comm/comm.h"
#include "worker/optim/update.h"
#include "worker/program/program.h"
#include "worker/tensor/held_scales.h"
#include "worker/tensor/sequence.h"

struct exec;

/* A unit's gradient shard. codes: what the shard is the sum of, for a buddy in place of the shard; NULL: no codes. */
struct exec_reduced {
    int unit;
    const float *grad; /* (n) */
    int64_t n;
    const void *codes;
    size_t bytes; /* of the codes */
};

struct exec_options {
    const struct program *program; /* borrowed, finished and checked */
    int rank;                      /* this rank in the mesh */
    struct sequence_cut cut;       /* cut of a microbatch, for the tables */
    const struct device_handle *device;
    struct stream *streams[STREAM_COUNT]; /* borrowed; the streams in program->streams */
    const struct comm_ops *comm_ops;      /* NULL when world is 1 */
    /* Borrowed; for the channels in program->channels that have several members. For a point-to-point channel, comms is
     * the edge for SEND and inbound the edge for RECV; both have two members (mesh_edge). */
    struct comm *comms[CHANNEL_COUNT], *inbound[CHANNEL_COUNT];
    /* Returns the memory of an external buffer other than TABLE. */
    void *(*bind)(void *arg, const struct buffer *buffer);
    /* Called when a unit's gradient shard is final: once the stream s reaches this point, no action writes to the
     * shard before the next step, nor to its codes before AGREE. NULL = not wanted. */
    titan_status (*reduced)(void *arg, const struct exec_reduced *reduced, struct stream *s, struct titan_error *err);
    /* Called before COMMIT, with the state after the step of the matrices that this rank owns (n; fp32), once it and
     * all directions are final. The directions come by `reduced`, as the gradient shards of their units: such a shard
     * is final with FROM_OWNERS. Not called without a direction section. NULL = not wanted. */
    titan_status (*directed)(void *arg, const float *next, int64_t n, struct titan_error *err);
    /* Called when every rank has begun this step, so that each rank has the previous step's statistics
     * (program_sync_point). It is called once a step, on a stream's thread, before exec_gradients returns TITAN_OK. It
     * must not call the device. It is not called in a world of one. NULL = not wanted. */
    titan_status (*met)(void *arg, struct titan_error *err);
    void *arg;
    /* An executor that lends its arena. The two executors are never in a step at the same time, and the lender lives
     * longer. NULL: this executor has its own arena, of at least arena_least bytes. */
    struct exec *lender;
    size_t arena_least;
    bool window_arena; /* allocate the arena with comm_ops->memory_alloc if possible; exec_window() shows the result */
    /* Launch the computation between transfers in segments, if the device supports them. */
    bool segments;
    uint64_t seed; /* the run's: codes of gradients rounded at random, and codes of weights, are drawn with it */
    /* Non-zero: a step before AGREE is abandoned with TITAN_EREVOKED. NULL = never. */
    const atomic_int *revoked;
};

/* Begin and end of each action of a step on its stream, by clock_mono_ns, waits excluded; 0 = it has not run. */
struct exec_times {
    const int64_t *began, *ended; /* [program->n_actions], borrowed until the next step */
};

struct exec_batch {
    const int32_t *tokens;          /* [slot][batch_rows][N], host, in LOAD's form */
    const double *counts;           /* [slot] counted tokens of this cp rank */
    uint64_t step;                  /* number of the step, for codes of gradients and weights */
    unsigned commands;              /* bits, see elastic/membership.h */
    const struct held_scales *held; /* scales of weights for this step; NULL: it looks for them */
    const double *values;           /* [STATISTICS_SAID] of this rank, read when exec_agree begins; NULL = none */
    /* [units] this rank's masters, fp32 on the device, read when exec_agree begins; NULL: no norms of masters. */
    const float *const *masters;
    bool waits; /* measure exec_waited_ns: two timestamps for each wait */
};

titan_status exec_open(const struct exec_options *options, struct exec **ret, struct titan_error *err) TITAN_MUST_USE;
/* Closes the executor. Waits for its streams, even failed ones, because their queues use the freed memory. NULL is
 * fine. */
void exec_close(struct exec *e);

/* Returns the arena if it can be a window, otherwise NULL. */
void *exec_window(const struct exec *e, size_t *ret_bytes);

/* Gathers n numbers of every rank into all [world][n], in rank order. Every rank calls it at the same point. */
typedef titan_status (*exec_gather_fn)(void *arg, const double *mine, int n, double *all, struct titan_error *err);

struct exec_products {
    int all;     /* products of the program */
    int timed;   /* products that this rank timed */
    int refused; /* products whose chosen implementation does not exist on this device */
};

/* Chooses an implementation for each product, on a device that has several implementations with different bits. Call
 * between exec_open and the first step, on all ranks at the same point. If a product has no choice yet, the first rank
 * with this product times it. All ranks then take the choice of the first rank with a choice. So a product has the same
 * bits on all ranks, and a rank that joins later takes the existing choice. gather NULL: alone. */
titan_status exec_choose_products(struct exec *e, exec_gather_fn gather, void *arg, struct exec_products *ret,
                                  struct titan_error *err) TITAN_MUST_USE;

/* Runs forward, backward and reductions of every microbatch; when it returns, they have succeeded. The program must
 * have an AGREE. batch is borrowed until exec_agree returns. An unfinished step before is dropped. */
titan_status exec_gradients(struct exec *e, const struct exec_batch *batch, struct titan_error *err) TITAN_MUST_USE;
/* After exec_gradients: *ret_statistics are the statistics (program.h), summed over all ranks, the same on each rank;
 * valid until the second exec_agree after this one. The commit point of a program without a direction section. */
titan_status exec_agree(struct exec *e, const double **ret_statistics, struct titan_error *err) TITAN_MUST_USE;
/* After exec_agree: the direction section and COMMIT. The sums of tensors are then behind the statistics; they are zero
 * if update is NULL (the step is skipped, and COMMIT commits that). Does nothing without a direction section. */
titan_status exec_commit(struct exec *e, const struct update *update, struct titan_error *err) TITAN_MUST_USE;
/* Runs the optimizer after exec_commit or exec_resume, on every unit of this rank's shard. update NULL: the step is
 * skipped, and the state stays unchanged. When it returns, the update may still run on the compute stream. */
titan_status exec_update(struct exec *e, const struct update *update, struct titan_error *err) TITAN_MUST_USE;

/* After exec_gradients: how long computation has waited for other streams, which means for transfers (and, with
 * offloading, for copies). A transfer on the compute stream counts with its whole time. -1 = not measured. */
int64_t exec_waited_ns(const struct exec *e);

/* Call after exec_update. Waits until the update has run. */
titan_status exec_wait_for_update(const struct exec *e, struct titan_error *err) TITAN_MUST_USE;

/* Turns timing on or off for steps that begin from now on. Call between steps, with idle streams. */
void exec_take_times(struct exec *e, bool on);
/* Times of the last step, which must have been timed; its streams must be idle. */
titan_status exec_times(struct exec *e, struct exec_times *ret, struct titan_error *err) TITAN_MUST_USE;

/* Has the step begun its commit point, but lacks the numbers of other ranks? Then exec_resume can finish it. */
bool exec_prepared(const struct exec *e);
/* Uses another rank's numbers (statistics_all) of the prepared step instead of the commit point's sums. The streams
 * must be idle and without failures. */
void exec_resume(struct exec *e, const double *statistics);
/* The numbers (statistics_all) of the last committed step; NULL = none. */
const double *exec_statistics(const struct exec *e);

/* Runs a step of a forward-only program. *ret_statistics: as in exec_agree. */
titan_status exec_evaluate(struct exec *e, const struct exec_batch *batch, const double **ret_statistics,
                           struct titan_error *err) TITAN_MUST_USE;
/* Runs a whole program without AGREE (inference). When it returns, the program may still run. */
titan_status exec_run(struct exec *e, const struct exec_batch *batch, struct titan_error *err) TITAN_MUST_USE;

/* The public name of a channel's group in the flight recorder: "dp_shard". */
const char *recorder_group_name(enum channel channel);

#endif
