/* SPDX-License-Identifier: Apache-2.0 */
/* exec.h - runs a step program on a device and its communicators.
 *
 * The executor knows no model structure and no parallelism beyond the program's actions: it binds buffers to memory
 * (arena, tables, what the caller gives), walks the array, enqueues each action on its stream and places an event where
 * another stream waits. What differs between ranks of one program class it takes from the rank: samples, first row of
 * the vocabulary, place in the statistics.
 *
 * A training step is three calls. exec_gradients runs everything that comes before the program's AGREE and returns when
 * it has succeeded here. exec_agree sums the statistics over all ranks: it is the step's commit point, the last thing
 * that needs a peer. exec_update updates the state, and needs no peer.
 *
 * One thread. Up to the commit point a failure (TITAN_EREVOKED, TITAN_EPEER, ...) leaves parameters and moments as they
 * were. When exec_agree has begun the step is *prepared*: should it fail, any rank's statistics finish the step
 * (exec_resume, exec_update), with the communicators gone. */
#ifndef TITAN_WORKER_EXEC_EXEC_H
#define TITAN_WORKER_EXEC_EXEC_H

#include <stdatomic.h>

#include "worker/comm/comm.h"
#include "worker/optim/update.h"
#include "worker/program/program.h"
#include "worker/tensor/sequence.h"

struct exec;

struct exec_options {
    const struct program *program; /* borrowed, finished and checked */
    int rank;                      /* of the mesh */
    struct sequence_cut cut;       /* of a microbatch, for the tables */
    const struct device_handle *device;
    struct stream *streams[STREAM_COUNT]; /* borrowed; those in program->streams */
    const struct comm_ops *comm_ops;      /* NULL when world is 1 */
    /* Borrowed; those in program->channels with several members. Of a point-to-point channel comms is the
     * edge SEND goes out by, inbound the one RECV comes in by; both have two members (mesh_edge). */
    struct comm *comms[CHANNEL_COUNT], *inbound[CHANNEL_COUNT];
    /* Memory of an external buffer other than TABLE. */
    void *(*bind)(void *arg, const struct buffer *buffer);
    /* A unit's gradient shard (n) is final when s has come here; nothing writes to it before the next step. NULL: not
     * wanted. */
    titan_status (*reduced)(void *arg, int unit, const float *grad, int64_t n, struct stream *s,
                            struct titan_error *err);
    /* Every rank has begun this step, so each has the statistics of the one before (program_sync_point). Once a step,
     * on the thread of a stream, before exec_gradients returns TITAN_OK; it must not call the device. Not when alone.
     * NULL: not wanted. */
    titan_status (*met)(void *arg, struct titan_error *err);
    void *arg;
    /* Its arena serves this program too: the two are never in a step at the same time. It outlives this one. NULL: an
     * arena of its own, of arena_least bytes at least. */
    struct exec *lender;
    size_t arena_least;
    bool window_arena; /* the arena is to be of comm_ops->memory_alloc; where it is not, exec_window() tells */
    /* Launch what computes between transfers in segments, where the device has some. */
    bool segments;
    /* Non-zero: a step that has not come to AGREE is not worth finishing, TITAN_EREVOKED. NULL: never. */
    const atomic_int *revoked;
};

/* When each action of a step began and ended on its stream, by clock_mono_ns, without what it waited for there; 0: it
 * has not run. */
struct exec_times {
    const int64_t *began, *ended; /* [program->n_actions], borrowed: until the next step */
};

struct exec_batch {
    const int32_t *tokens; /* [slot][BATCH_ROWS][N], host: as LOAD wants them */
    const double *counts;  /* [slot] counted tokens of this cp rank */
    unsigned commands;     /* bits, see elastic/membership.h */
    const double *values;  /* [STATISTICS_SAID] of this rank, when exec_agree begins; NULL: it says nothing */
    /* [units] this rank's, fp32 on the device, as they are when exec_agree begins; NULL: no norms of them. */
    const float *const *masters;
    bool waits; /* measure exec_waited_ns: two timestamps for each wait */
};

titan_status exec_open(const struct exec_options *options, struct exec **ret, struct titan_error *err) TITAN_MUST_USE;
/* Waits for its streams, which may have failed: what is queued there uses what is closed. NULL is fine. */
void exec_close(struct exec *e);

/* The arena, where it can be a window; NULL: it cannot. */
void *exec_window(const struct exec *e, size_t *ret_bytes);

/* The same n numbers of every rank: all [world][n], in rank order. Every rank calls it at the same point. */
typedef titan_status (*exec_gather_fn)(void *arg, const double *mine, int n, double *all, struct titan_error *err);

struct exec_products {
    int all;     /* products of the program */
    int timed;   /* of those, here */
    int refused; /* the way that was chosen is none of this device */
};

/* Between exec_open and the first step; with others, all at the same point. On a device that knows several ways of a
 * product, which differ in bits: each product that no rank has a choice for is timed by the first rank that has it, and
 * all ranks take the choice of the first one that has some. So those of one product have the same bits everywhere, and
 * a rank that has come later takes what is there. gather NULL: alone. */
titan_status exec_choose_products(struct exec *e, exec_gather_fn gather, void *arg, struct exec_products *ret,
                                  struct titan_error *err) TITAN_MUST_USE;

/* Forward, backward and reductions of every microbatch; on return they have succeeded. batch: borrowed until exec_agree
 * has returned. The program has an AGREE. A step that was not finished is forgotten. */
titan_status exec_gradients(struct exec *e, const struct exec_batch *batch, struct titan_error *err) TITAN_MUST_USE;
/* The commit point, after exec_gradients: *ret_statistics are the statistics (program.h), summed over all ranks, the
 * same on each; valid until the second exec_agree after this one. */
titan_status exec_agree(struct exec *e, const double **ret_statistics, struct titan_error *err) TITAN_MUST_USE;
/* The optimizer, after exec_agree or exec_resume: every unit of this rank's shard is updated. NULL: the step is
 * skipped, the state stays as it is. It may still be running on the compute stream on return. */
titan_status exec_update(struct exec *e, const struct update *update, struct titan_error *err) TITAN_MUST_USE;

/* After exec_gradients: how long computing stood still for other streams, which is for transfers (and, with offloading,
 * copies); transfers on the compute stream count whole. -1: not measured. */
int64_t exec_waited_ns(const struct exec *e);

/* After exec_update: the update has run. */
titan_status exec_wait_for_update(const struct exec *e, struct titan_error *err) TITAN_MUST_USE;

/* Take the times of the steps that begin from now on, or no longer. Between steps, with idle streams. */
void exec_take_times(struct exec *e, bool on);
/* Of the last step, which was timed; its streams are idle. */
titan_status exec_times(struct exec *e, struct exec_times *ret, struct titan_error *err) TITAN_MUST_USE;

/* The step has begun to agree and has no statistics: exec_resume can finish it. */
bool exec_prepared(const struct exec *e);
/* In place of exec_agree's sum, the statistics another rank has of the prepared step. The streams must be idle and
 * without failures. */
void exec_resume(struct exec *e, const double *statistics);
/* The statistics (program->statistics.size) of the last step that was agreed on; NULL: none was. */
const double *exec_statistics(const struct exec *e);

/* A step of a forward-only program: *ret_statistics as of exec_agree. */
titan_status exec_evaluate(struct exec *e, const struct exec_batch *batch, const double **ret_statistics,
                           struct titan_error *err) TITAN_MUST_USE;
/* The whole of a program without AGREE (inference). It may still be running on return. */
titan_status exec_run(struct exec *e, const struct exec_batch *batch, struct titan_error *err) TITAN_MUST_USE;

/* A channel's group in the flight recorder, by the name that people know it by: "dp_shard". */
const char *recorder_group_name(enum channel channel);

/* The units of the gradient shards that this rank's program makes, in the order in which they become final and
 * `reduced` is called. Owned (free). */
titan_status exec_reduced_order(const struct program *program, int **ret, int *ret_n,
                                struct titan_error *err) TITAN_MUST_USE;

#endif
