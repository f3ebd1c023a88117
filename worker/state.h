/* state.h - one rank's part of the training state: masters and moments in fp32, and in bf16 the shadow that is
 * gathered. Device memory, in the order of layout.h; everything else about a run's progress is four numbers. */
#ifndef TITAN_WORKER_STATE_H
#define TITAN_WORKER_STATE_H

#include "worker/device/device.h"
#include "worker/plan/layout.h"

struct train_state {
    const struct device_handle *device; /* borrowed */
    struct layout *layout;              /* owned */
    int rank;
    enum dtype dt;         /* of computing */
    float *master, *m, *v; /* (layout->total) */
    void *shadow;          /* (layout->total) bf16; masters themselves when dt is fp32 */
    uint64_t epoch;        /* whose layout it has */
    uint64_t step;         /* last committed */
    uint64_t tokens;       /* seen up to it */
    uint64_t skipped;      /* steps without update among them */
};

/* Zeroed state of one rank of world. */
titan_status state_open(const struct device_handle *device, const struct model *model, int rank, int world,
                        enum dtype dt, struct train_state **ret, struct titan_error *err) TITAN_MUST_USE;
void state_close(struct train_state *state); /* NULL is fine */

/* Masters from the seed; moments and numbers stay zero. */
titan_status state_init(struct train_state *state, uint64_t seed, struct stream *s,
                        struct titan_error *err) TITAN_MUST_USE;
/* Shadow from the masters; enqueued. After loading masters from elsewhere. */
titan_status state_refresh_shadow(struct train_state *state, struct stream *s) TITAN_MUST_USE;
/* Masters and moments and numbers from a checkpoint directory, whatever mesh wrote it. */
titan_status state_load(struct train_state *state, const char *path, uint64_t recipe_hash, struct stream *s,
                        struct titan_error *err) TITAN_MUST_USE;
/* Masters, m and v one after the other (3 * total) into host memory; waits for the stream. */
titan_status state_snapshot(const struct train_state *state, float *host, struct stream *s,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
