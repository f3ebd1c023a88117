/* SPDX-License-Identifier: Apache-2.0 */
/* identity.h - what a run is beside its recipe: what its data and tokenizer hold, whatever the paths, how far it has
 * read, and which line of checkpoints it has come along. Checkpoints have it in their manifests; what is about to run
 * is compared with it on every way into a run. */
#ifndef TITAN_WORKER_CHECKPOINT_IDENTITY_H
#define TITAN_WORKER_CHECKPOINT_IDENTITY_H

#include "base/checkpoint_line.h"
#include "base/recipe.h"
#include "worker/data/dataset.h"

#define IDENTITY_RUN_BYTES 128 /* of a run's id (folder_owner.id) */

struct run_identity {
    bool known;         /* false: a checkpoint of an earlier version, which has none of it but the line */
    uint64_t tokenizer; /* tokenizer_hash */
    struct data_identity data;
    uint64_t samples; /* that the run had read after step `step` */
    uint64_t step;
    bool moved; /* not step times batch, or otherwise than the sources alone say; written only */
    struct checkpoint_line line;
    char from_run[IDENTITY_RUN_BYTES]; /* that wrote the checkpoint it has gone on from; "": none, or not known */
    uint64_t from_step;                /* of that checkpoint */
};

/* That a run of this identity and recipe has read after a step. */
static inline uint64_t identity_samples(const struct run_identity *identity, const struct recipe *r, uint64_t step)
{
    return identity->samples + (step - identity->step) * (uint64_t)r->training.global_batch_size;
}

struct identity_check {
    const struct recipe *recipe;     /* what is about to run, resolved */
    const struct run_identity *here; /* the same; NULL: nothing but recipes is compared */
    const char *path;                /* of the checkpoint, for messages */
    bool own;                        /* of the run's own folder; otherwise another run's */
    bool progress;                   /* the step is taken over, and with it the place in the data */
};
#define IDENTITY_NOTES_MAX 640

/* Compares with a checkpoint of this recipe (hash and text), identity and step. TITAN_ECONFLICT names all that differs
 * and is not accepted (checkpoint.accept_changed), each with both values. What is accepted and changes place in the
 * data or learning rate is a line each of notes, and so is what cannot be compared. ret: how far the run has read, as
 * far as the manifest or its recipe tell. */
titan_status identity_compare(const struct identity_check *check, uint64_t recipe_hash, const char *recipe_text,
                              uint64_t step, const struct run_identity *there, char notes[IDENTITY_NOTES_MAX],
                              struct run_identity *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
