/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - one rank's shard of the training state: masters and moments (types: state_types.h), their copy in the
 * compute type for gathering (the shadow), expert biases in fp32, and four numbers with the run's progress. layout.h
 * defines order and cuts. A snapshot is in fp32 for all types. The way out is exact. The way back rounds to nearest
 * even, or encodes. The values of whole blocks of codes give the same codes again.
 * Masters and moments are device memory or, offloaded, host memory with full-speed device copies. */
#ifndef TITAN_WORKER_STATE_STATE_H
#define TITAN_WORKER_STATE_STATE_H

#include "worker/device/device.h"
#include "worker/program/state_types.h"
#include "worker/state/skipped.h"
#include "worker/state/staging.h"
#include "worker/tensor/layout.h"

struct buffer; /* program/program.h */

struct train_state {
    const struct device_handle *device; /* borrowed */
    struct layout *layout;              /* owned */
    int rank;
    int64_t total; /* masters: layout_total */
    int64_t kept;  /* elements of the optimizer's kinds of state */
    struct state_types types;
    bool offload;
    bool copy;       /* a copy of another rank's shard, which no computation uses */
    void *values;    /* (state_bytes) masters and kinds of state, unit by unit */
    float *biases;   /* (layout_biases); NULL: the model has none */
    void *shadow;    /* (total) types.compute. NULL in a copy, and if the masters themselves are gathered: masters of
                      * that type, not offloaded */
    uint8_t *errors; /* device: layout_error_bytes() of each unit that this rank adds to; NULL: none are kept. They are
                      * no part of snapshots and copies, and zero when the state is opened */
    bool settled;    /* all ranks ended the epoch behind `step`, so that their errors belong together */
    uint8_t *replica_errors; /* the same of codes between replicas: layout_replica_error_bytes() of each unit */
    uint64_t *hashes;        /* device (2), scratch for the state's hash */
    struct staging *staging;
    uint64_t epoch;  /* the layout's epoch */
    uint64_t step;   /* last committed */
    uint64_t tokens; /* trained on up to that step */
    struct skipped_steps skipped;
};

struct state_options {
    const struct device_handle *device; /* borrowed */
    struct layout *layout;              /* taken over on success */
    int rank;
    struct state_types types;
    bool offload;        /* a copy is offloaded in any case if the device has its own memory */
    bool copy;           /* a copy of another rank's shard, without a shadow */
    bool errors;         /* keep errors of codes of gradients; not of a copy */
    bool replica_errors; /* the same of codes between replicas */
};
/* Opens the zeroed state of one rank. */
titan_status state_open(const struct state_options *options, struct train_state **ret,
                        struct titan_error *err) TITAN_MUST_USE;
void state_close(struct train_state *state); /* NULL is fine */

/* Sets the masters from the seed; moments and numbers stay zero. */
titan_status state_init(struct train_state *state, uint64_t seed, struct stream *s,
                        struct titan_error *err) TITAN_MUST_USE;
/* Fills the shadow from the masters; enqueued. Call after masters were loaded. */
titan_status state_refresh_shadow(struct train_state *state, struct stream *s) TITAN_MUST_USE;
/* A unit's errors, in a state that keeps some; the rank adds to the unit (layout_adds). */
uint8_t *state_errors(const struct train_state *state, int unit);
/* Enqueued: gradients' codes have lost nothing so far. */
titan_status state_zero_errors(const struct train_state *state, struct stream *s) TITAN_MUST_USE;
/* Sets the run's progress, for a state that was filled by others. */
void state_set_numbers(struct train_state *state, uint64_t step, uint64_t tokens, struct skipped_steps skipped);
/* The epoch ended at a step that all ranks have agreed on. */
void state_settle(struct train_state *state);
/* Counts one more committed step with its tokens; skipped: it made no update. */
void state_count_step(struct train_state *state, uint64_t tokens, bool skipped);
/* Copies values (layout_state), then biases, into host memory as fp32; waits for the stream. One thread at a time may
 * call this and the functions that fill the state from the host. */
titan_status state_snapshot(const struct train_state *state, float *host, struct stream *s,
                            struct titan_error *err) TITAN_MUST_USE;
/* The reverse of state_snapshot, shadow included; waits for the stream. */
titan_status state_upload(struct train_state *state, const float *host, struct stream *s,
                          struct titan_error *err) TITAN_MUST_USE;
/* Like state_snapshot, but in the state's own types: values, then biases, unconverted. host: state_copy_bytes; pinned:
 * bytes of each part of host that is pinned as one, 0 = not pinned. */
titan_status state_copy(const struct train_state *state, void *host, size_t pinned, struct stream *s,
                        struct titan_error *err) TITAN_MUST_USE;
size_t state_copy_bytes(const struct layout *layout, int rank, struct state_types types);
/* Offset of a slice of layout_slices in a state_copy, in bytes, and its type. DTYPE_U8: of the block that has the
 * slice's first element, which is element `at` % MOMENT_BLOCK of it. */
size_t state_copy_place(const struct layout *layout, int rank, struct state_types types,
                        const struct shard_slice *slice, enum dtype *ret_type);
/* Number of elements of a snapshot. */
int64_t state_snapshot_size(const struct layout *layout, int rank);

/* Bytes of all masters and kinds of state; of a unit's. */
size_t state_bytes(const struct train_state *state);
size_t state_unit_bytes(const struct train_state *state, int unit);
/* A unit's masters, with its kinds of state behind them. */
/* What the rank keeps as an owner of matrices: layout_owned() elements in the kinds' type. */
void *state_owned(const struct train_state *state);
void *state_unit(const struct train_state *state, int unit);
/* Address of a slice of layout_slices in the state, and its stored type. DTYPE_U8: of the blocks of a matrix that this
 * rank owns; not for blocks of codes of ranges. */
void *state_slice(const struct train_state *state, const struct shard_slice *slice, enum dtype *ret_type);
/* Address of a tensor's block of codes of a kind of state. from: the block's first element in the unit's flat buffer;
 * it is in the rank's range. */
void *state_block(const struct train_state *state, int tensor, int kind, int64_t from);

/* Memory of a program's external buffers (exec.h): SHARD, STATE, STATE_HOST, BIAS, ERROR; NULL for others. */
void *state_bind(const struct train_state *state, const struct buffer *buffer);

#endif
