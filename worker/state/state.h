/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - one rank's shard of the training state: masters and moments (types: state_types.h), what is gathered of
 * them in the compute type (the shadow), expert biases in fp32, and four numbers that say how far the run is. Order and
 * cuts are layout.h's; a snapshot is in fp32, whatever the types: exact that way, rounded to nearest even the other
 * way.
 *
 * Masters and moments are device memory or, offloaded, host memory the device copies from and to at full speed. */
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
    int64_t total; /* layout_total */
    struct state_types types;
    bool offload;
    bool copy;        /* of another rank's shard: nothing is computed with it */
    void *values;     /* (total * state_types_bytes) masters, m and v, unit by unit */
    float *biases;    /* (layout_biases); NULL: the model has none */
    void *shadow;     /* (total) types.compute; NULL where masters themselves are gathered: of that type, not
                       * offloaded; and in a copy */
    uint64_t *hashes; /* device (2), scratch for its hash */
    struct staging *staging;
    uint64_t epoch;  /* the epoch of its layout */
    uint64_t step;   /* last committed */
    uint64_t tokens; /* seen up to it */
    struct skipped_steps skipped;
};

/* Zeroed state of one rank. Takes layout when it succeeds. */
titan_status state_open(const struct device_handle *device, struct layout *layout, int rank, struct state_types types,
                        bool offload, struct train_state **ret, struct titan_error *err) TITAN_MUST_USE;
/* The same for a copy of a rank's shard, without a shadow. offload: as above, and always where the device's memory is
 * not the host's. */
titan_status state_open_copy(const struct device_handle *device, struct layout *layout, int rank,
                             struct state_types types, bool offload, struct train_state **ret,
                             struct titan_error *err) TITAN_MUST_USE;
void state_close(struct train_state *state); /* NULL is fine */

/* Masters from the seed; moments and numbers stay zero. */
titan_status state_init(struct train_state *state, uint64_t seed, struct stream *s,
                        struct titan_error *err) TITAN_MUST_USE;
/* Shadow from the masters; enqueued. After loading masters from elsewhere. */
titan_status state_refresh_shadow(struct train_state *state, struct stream *s) TITAN_MUST_USE;
/* How far the run is, with a state that was filled from elsewhere. */
void state_set_numbers(struct train_state *state, uint64_t step, uint64_t tokens, struct skipped_steps skipped);
/* One more step is committed, in which so many tokens were seen; skipped: without an update. */
void state_count_step(struct train_state *state, uint64_t tokens, bool skipped);
/* Values (3 * total) and then biases into host memory, as fp32; waits for the stream. This and what fills the state
 * from the host: one thread at a time. */
titan_status state_snapshot(const struct train_state *state, float *host, struct stream *s,
                            struct titan_error *err) TITAN_MUST_USE;
/* The reverse, shadow included; waits for the stream. */
titan_status state_upload(struct train_state *state, const float *host, struct stream *s,
                          struct titan_error *err) TITAN_MUST_USE;
/* The same in the types that the state keeps: values and then biases, as they stand. host: state_copy_bytes; pinned:
 * bytes of which each part of it is pinned as one, from the first on, 0: it is not. */
titan_status state_copy(const struct train_state *state, void *host, size_t pinned, struct stream *s,
                        struct titan_error *err) TITAN_MUST_USE;
size_t state_copy_bytes(const struct layout *layout, int rank, struct state_types types);
/* Where a slice of layout_slices begins in such a copy, in bytes, and its type. */
size_t state_copy_place(const struct layout *layout, int rank, struct state_types types,
                        const struct shard_slice *slice, enum dtype *ret_type);
/* Elements of a snapshot. */
int64_t state_snapshot_size(const struct layout *layout, int rank);

/* Bytes of the masters and moments of n parameters. */
size_t state_bytes(const struct train_state *state, int64_t n);
/* A unit's masters, m and v. */
void *state_unit(const struct train_state *state, int unit);
/* Where a slice of layout_slices begins in the state, and the type it is stored in. */
void *state_slice(const struct train_state *state, const struct shard_slice *slice, enum dtype *ret_type);

/* What a program's external buffers are (exec.h): SHARD, STATE, STATE_HOST, BIAS; NULL for others. */
void *state_bind(const struct train_state *state, const struct buffer *buffer);

#endif
