/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - one rank's part of the training state: masters and moments in fp32, what is gathered of them in the compute
 * type (the shadow), expert biases, and four numbers that say how far the run is. Order and cuts are layout.h's.
 *
 * Masters and moments are device memory or, offloaded, host memory the device copies from and to at full speed. */
#ifndef TITAN_WORKER_STATE_STATE_H
#define TITAN_WORKER_STATE_STATE_H

#include "worker/device/device.h"
#include "worker/tensor/layout.h"

struct buffer; /* program/program.h */

struct train_state {
    const struct device_handle *device; /* borrowed */
    struct layout *layout;              /* owned */
    int rank;
    int64_t total; /* layout_total */
    enum dtype dt; /* of computing */
    bool offload;
    bool copy;        /* of another rank's part: nothing is computed with it */
    float *values;    /* (3 * total) masters, m and v, unit by unit */
    float *biases;    /* (layout_biases); NULL: the model has none */
    void *shadow;     /* (total) dt; NULL where masters themselves are gathered: fp32, not offloaded; and in a copy */
    uint64_t epoch;   /* whose layout it has */
    uint64_t step;    /* last committed */
    uint64_t tokens;  /* seen up to it */
    uint64_t skipped; /* steps without update among them */
};

/* Zeroed state of one rank. Takes layout when it succeeds. */
titan_status state_open(const struct device_handle *device, struct layout *layout, int rank, enum dtype dt,
                        bool offload, struct train_state **ret, struct titan_error *err) TITAN_MUST_USE;
/* The same for a copy of a rank's part, without a shadow. offload: as above, and always where the device's memory is
 * not the host's. */
titan_status state_open_copy(const struct device_handle *device, struct layout *layout, int rank, bool offload,
                             struct train_state **ret, struct titan_error *err) TITAN_MUST_USE;
void state_close(struct train_state *state); /* NULL is fine */

/* Masters from the seed; moments and numbers stay zero. */
titan_status state_init(struct train_state *state, uint64_t seed, struct stream *s,
                        struct titan_error *err) TITAN_MUST_USE;
/* Shadow from the masters; enqueued. After loading masters from elsewhere. */
titan_status state_refresh_shadow(struct train_state *state, struct stream *s) TITAN_MUST_USE;
/* How far the run is, with a state that was filled from elsewhere. */
void state_set_numbers(struct train_state *state, uint64_t step, uint64_t tokens, uint64_t skipped);
/* One more step is committed, in which so many tokens were seen; skipped: without an update. */
void state_count_step(struct train_state *state, uint64_t tokens, bool skipped);
/* Values (3 * total) and then biases into host memory; waits for the stream. */
titan_status state_snapshot(const struct train_state *state, float *host, struct stream *s,
                            struct titan_error *err) TITAN_MUST_USE;
/* The reverse, shadow included; waits for the stream. */
titan_status state_upload(struct train_state *state, const float *host, struct stream *s,
                          struct titan_error *err) TITAN_MUST_USE;
/* Elements of a snapshot. */
int64_t state_snapshot_size(const struct layout *layout, int rank);

/* What a program's external buffers are (exec.h): SHARD, STATE, STATE_HOST, BIAS; NULL for others. */
void *state_bind(const struct train_state *state, const struct buffer *buffer);

#endif
