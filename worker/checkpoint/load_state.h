/* SPDX-License-Identifier: Apache-2.0 */
/* load_state.h - loads a rank's part of the training state from a checkpoint of any mesh, or from a weights folder of
 * transformers (hf_weights.h). */
#ifndef TITAN_WORKER_CHECKPOINT_LOAD_STATE_H
#define TITAN_WORKER_CHECKPOINT_LOAD_STATE_H

#include "base/recipe.h"
#include "worker/checkpoint/apart.h"
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
    const struct run_identity *here; /* identity of the new run; NULL: only recipes are compared */
    bool without_optimizer;          /* moments stay zero, and the count of updates restarts at zero */
    bool without_progress;           /* step 0, no tokens seen, no samples read */
    /* --- found */
    char notes[IDENTITY_NOTES_MAX]; /* accepted differences, one per line */
    struct run_identity identity;   /* identity of the checkpoint */
};

/* Loads masters, moments, biases and numbers. A checkpoint without moments is accepted if no moments are wanted, at
 * step 0, and at the run's last step; otherwise TITAN_EUNSUPPORTED. TITAN_ECONFLICT: the checkpoint is of another model
 * or run (identity.h); the error names the difference. TITAN_EREVOKED and TITAN_ETIMEDOUT: see struct apart_limit. */
titan_status load_state(struct train_state *state, struct load_source *source, const struct recipe *recipe,
                        const struct apart_limit *limit, struct stream *s, struct titan_error *err) TITAN_MUST_USE;

#endif
