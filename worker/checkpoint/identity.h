/* SPDX-License-Identifier: Apache-2.0 */
/* identity.h - a run's identity beside its recipe: the content of its data and tokenizer (independent of paths), the
 * number of samples read, its line of checkpoints, and held scales. Checkpoints store it in their manifests. When a run
 * starts from a checkpoint of any run, the stored identity is compared with the new run's identity. */
#ifndef TITAN_WORKER_CHECKPOINT_IDENTITY_H
#define TITAN_WORKER_CHECKPOINT_IDENTITY_H

#include "base/checkpoint_line.h"
#include "base/recipe.h"
#include "worker/data/dataset.h"
#include "worker/tensor/held_scales.h"

#define IDENTITY_RUN_BYTES 128 /* size of a run's id (folder_owner.id) */

struct run_identity {
    bool known;         /* false: the checkpoint is of an earlier version, which stores only the line */
    uint64_t tokenizer; /* tokenizer_hash */
    struct data_identity data;
    uint64_t samples; /* samples read by the run up to step `step` */
    uint64_t step;
    bool moved; /* `samples` is not step times batch, or the order is not the sources' own; written only */
    struct checkpoint_line line;
    char from_run[IDENTITY_RUN_BYTES]; /* run that wrote the checkpoint this run resumed from; "" = none or unknown */
    uint64_t from_step;                /* step of that checkpoint */
    struct held_scales scales;
};

/* Samples that a run of this identity and recipe has read after a step. */
static inline uint64_t identity_samples(const struct run_identity *identity, const struct recipe *r, uint64_t step)
{
    return identity->samples + (step - identity->step) * (uint64_t)r->training.global_batch_size;
}

struct identity_check {
    const struct recipe *recipe;     /* resolved recipe of the new run */
    const struct run_identity *here; /* identity of the new run; NULL: only recipes are compared */
    const char *path;                /* path of the checkpoint, for messages */
    bool own;                        /* true: path is in the run's own folder; false: in another run's folder */
    bool progress;                   /* the run keeps the step, and so the place in the data */
    bool moments;                    /* the run takes the optimizer's state */
};
#define IDENTITY_NOTES_MAX 640

struct checkpoint_info; /* checkpoint.h */

/* Compares the new run with a checkpoint's recipe (hash and text), identity and step. TITAN_ECONFLICT names all
 * differences that are not accepted (checkpoint.accept_changed), each with both values. notes gets a line per accepted
 * difference that changes the place in the data or the learning rate, and a line per item that cannot be compared. ret:
 * the number of samples the run has read, as far as the manifest or its recipe shows it. */
titan_status identity_compare(const struct identity_check *check, const struct checkpoint_info *there,
                              char notes[IDENTITY_NOTES_MAX], struct run_identity *ret,
                              struct titan_error *err) TITAN_MUST_USE;

#endif
