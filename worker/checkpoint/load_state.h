/* SPDX-License-Identifier: Apache-2.0 */
/* load_state.h - a rank's part of the training state from a checkpoint, whatever mesh wrote it, or from a folder of
 * weights of transformers (hf_weights.h). */
#ifndef TITAN_WORKER_CHECKPOINT_LOAD_STATE_H
#define TITAN_WORKER_CHECKPOINT_LOAD_STATE_H

#include <stdatomic.h>

#include "base/recipe.h"
#include "worker/checkpoint/identity.h"
#include "worker/state/state.h"

enum load_from {
    LOAD_OWN,    /* a checkpoint of the run */
    LOAD_OTHER,  /* a checkpoint of another run with the same model */
    LOAD_WEIGHTS /* a Hugging Face directory */
};

struct load_source {
    const char *path;
    enum load_from from;
    const struct run_identity *here; /* what is about to run; NULL: nothing but recipes is compared */
    bool without_optimizer;          /* moments stay zero, and updates are counted anew */
    bool without_progress;           /* step 0, no tokens seen, no sample read */
    /* --- found */
    char notes[IDENTITY_NOTES_MAX]; /* what differs and is taken all the same: lines */
    struct run_identity identity;   /* of the checkpoint */
};

/* Masters, moments, biases and numbers. A checkpoint without moments is taken where none are wanted, at step 0, and at
 * the run's last step; otherwise TITAN_EUNSUPPORTED. Of another model or run (identity.h): TITAN_ECONFLICT names what
 * differs.
 * TITAN_EREVOKED: *stop is not zero any more (NULL: never); TITAN_ETIMEDOUT: nothing more of it was read for still_ms
 * (0: it is waited for). */
titan_status load_state(struct train_state *state, struct load_source *source, const struct recipe *recipe,
                        int still_ms, const atomic_int *stop, struct stream *s, struct titan_error *err) TITAN_MUST_USE;

#endif
