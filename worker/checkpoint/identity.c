/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/identity.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/learning_rate.h"
#include "base/recipe_conflicts.h"
#include "worker/checkpoint/checkpoint.h"

/* Compares the new run (here) with the run that wrote the checkpoint (there). */
struct comparison {
    const struct identity_check *check;
    const struct recipe *here, *there; /* there NULL: the checkpoint's recipe cannot be read */
    const struct run_identity *before;
    uint64_t step;
    struct buf faults, notes;
};

static void add_fault(struct comparison *c, const char *text)
{
    buf_printf(&c->faults, "%s%s", c->faults.len > 0 ? "; " : "", text);
}

/* --- tokenizer and data ------------------------------------------------------------------------------------------- */

static const char *path_of(const struct recipe *r, int k)
{
    if (!r)
        return "";
    return r->training.mixture.n > k ? r->training.mixture.source[k].path : r->training.dataset_path;
}

static void print_source(const struct recipe *r, const struct data_identity *d, int k, char ret[160])
{
    if (k < d->n)
        (void)snprintf(ret, 160, "'%.80s' of %" PRIu64 " tokens (%016" PRIx64 ")", path_of(r, k), d->source[k].tokens,
                       d->source[k].fingerprint);
    else
        (void)snprintf(ret, 160, "%d sources", d->n);
}

/* Compares the contents of the tokenizers and of the data. */
static void compare_contents(struct comparison *c)
{
    const struct run_identity *ours = c->check->here, *theirs = c->before;
    char text[400], of_here[160], of_there[160];
    if (ours->tokenizer != theirs->tokenizer) {
        (void)snprintf(
            text, 320, "the tokenizer '%.80s' gives other ids (%016" PRIx64 "), there '%.80s' (%016" PRIx64 ")",
            c->here->model.tokenizer, ours->tokenizer, c->there ? c->there->model.tokenizer : "", theirs->tokenizer);
        if (!recipe_accepts(c->here, "tokenizer"))
            add_fault(c, text);
        else
            buf_printf(&c->notes, "%s: accepted\n", text);
    }

    const struct data_identity *here = &ours->data, *there = &theirs->data;
    int k = 0; /* first source that differs */
    while (k < MIN(here->n, there->n) && here->source[k].fingerprint == there->source[k].fingerprint)
        k++;
    if (!c->check->progress || c->step == 0 || (k == here->n && k == there->n))
        return;
    print_source(c->here, here, k, of_here);
    print_source(c->there, there, k, of_there);
    (void)snprintf(text, sizeof text, "the training data is another: %s, there %s", of_here, of_there);
    if (!recipe_accepts(c->here, "data"))
        add_fault(c, text);
    else
        buf_printf(&c->notes, "%s: accepted, it is read from sample %" PRIu64 " on\n", text, c->before->samples);
}

/* Compares paths, for checkpoints without fingerprints. */
static void compare_paths(struct comparison *c)
{
    char text[400];
    const char *here = c->here->model.tokenizer, *there = c->there->model.tokenizer;
    if (strcmp(here, there) != 0 && !recipe_accepts(c->here, "tokenizer")) {
        (void)snprintf(text, sizeof text, "model.tokenizer = \"%.120s\", there \"%.120s\"", here, there);
        add_fault(c, text);
    }
    const int sources = (int)MAX(MAX(c->here->training.mixture.n, c->there->training.mixture.n), 1);
    for (int k = 0; k < sources && c->check->progress && !recipe_accepts(c->here, "data"); k++) {
        if (strcmp(path_of(c->here, k), path_of(c->there, k)) == 0)
            continue;
        (void)snprintf(text, sizeof text, "training.dataset_path = \"%.120s\", there \"%.120s\"", path_of(c->here, k),
                       path_of(c->there, k));
        add_fault(c, text);
        return;
    }
}

/* --- recipes ------------------------------------------------------------------------------------------------------ */

titan_status identity_compare(const struct identity_check *check, const struct checkpoint_info *there,
                              char notes[IDENTITY_NOTES_MAX], struct run_identity *ret, struct titan_error *err)
{
    const uint64_t step = there->step;
    _cleanup_free_ struct recipe *other = malloc(sizeof(*other));
    if (!other)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a recipe");
    recipe_init(other);
    const bool read =
        recipe_parse(other, there->recipe, "recipe", NULL) == TITAN_OK && recipe_resolve(other, NULL) == TITAN_OK;
    struct comparison c = {
        .check = check, .here = check->recipe, .there = read ? other : NULL, .before = ret, .step = step};
    _cleanup_(buf_free) struct buf keys = BUF_INIT, rate = BUF_INIT;
    bool mixed = false; /* the state is another optimizer's */
    titan_assert(check->recipe && check->path);
    *ret = there->identity;
    ret->step = step;
    if (!ret->known && c.there) /* a run of that recipe has read this many */
        ret->samples = step * (uint64_t)c.there->training.global_batch_size;

    if (check->own && !recipe_continues(c.here, there->recipe_hash, there->recipe, &keys))
        add_fault(&c, keys.len > 0 ? keys.data : "its recipe is another");
    else if (c.there && !check->own) {
        recipe_model_differences(c.here, c.there, &keys);
        if (keys.len > 0 && !recipe_accepts(c.here, "model"))
            add_fault(&c, keys.data);
        else if (keys.len > 0)
            buf_printf(&c.notes, "the model's numbers are others: %s: accepted\n", keys.data);
        buf_clear(&keys);
        mixed = check->moments && !recipe_continues_state(c.here, c.there, &keys);
        if (mixed)
            add_fault(&c, keys.data);
    }
    if (check->here && ret->known) {
        compare_contents(&c);
    } else if (check->here) {
        if (check->own && c.there)
            compare_paths(&c);
        buf_puts(&c.notes, "the checkpoint does not tell what its data and tokenizer held, as those of earlier "
                           "versions and imported ones: that is not compared\n");
    }
    titan_status status = TITAN_OK;
    if (c.faults.len > 0) {
        status = titan_fail(err, TITAN_ECONFLICT, "checkpoint '%s' is of another run: %s", check->path, c.faults.data);
        titan_error_hint(err, "%s; checkpoint.accept_changed takes what is meant to be another",
                         check->own ? "use another checkpoint.folder"
                         : mixed    ? "checkpoint.exclude_from_loading = [\"optimizer\"] begins its state anew"
                                    : "use what it was made with");
    } else if (c.there && check->progress) {
        /* A changed batch moves the place in the data, and a changed schedule changes the learning rate. */
        const int64_t batch = c.here->training.global_batch_size, before = c.there->training.global_batch_size;
        const bool cut = c.here->training.seq_len != c.there->training.seq_len;
        if (batch != before || cut)
            buf_printf(&c.notes,
                       "a step has %" PRId64 " samples of %" PRId64 " tokens, there %" PRId64 " of %" PRId64
                       ": step %" PRIu64 " begins with sample %" PRIu64 ", behind those that were read%s\n",
                       batch, c.here->training.seq_len, before, c.there->training.seq_len, step + 1, ret->samples,
                       cut ? "; the rest of the pass is cut and drawn anew" : "");
        learning_rate_compare(c.here, c.there, (int64_t)step, &rate);
        if (rate.len > 0)
            buf_printf(&c.notes, "%s\n", rate.data);
    }
    (void)snprintf(notes, IDENTITY_NOTES_MAX, "%s", c.notes.len > 0 ? c.notes.data : "");
    buf_free(&c.faults);
    buf_free(&c.notes);
    return status;
}
