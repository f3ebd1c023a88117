/* SPDX-License-Identifier: Apache-2.0 */
/* load_state.c - loads a rank's part of the state from a checkpoint of any mesh, or from weights of transformers. */
#include "worker/checkpoint/load_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/folder_owner.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/hf_weights.h"
#include "worker/tokenizer/tokenizer.h"

/* All data that reading a checkpoint uses. */
struct load {
    struct apart apart;
    char *path;
    struct load_source source;
    struct run_identity here; /* source.here */
    struct recipe recipe;
    struct model *model;          /* LOAD_WEIGHTS */
    int n_parameters, first_bias; /* specs are parameters, their kinds of state, then biases */
    float *host;                  /* gaps are zero */
    struct tensor_spec *specs;
    struct shard_slice *slices;
    int n_specs, n_slices;
    struct checkpoint_info info;
};

static void clear_load(struct apart *a)
{
    struct load *l = (struct load *)a;
    free(l->path);
    free(l->host);
    free(l->specs);
    free(l->slices);
    model_close(l->model);
    checkpoint_info_clear(&l->info);
    free(l);
}

static bool is_kept(const struct load *l, int spec)
{
    return spec >= l->n_parameters && spec < l->first_bias;
}

static bool is_bias(const struct load *l, int spec)
{
    return spec >= l->first_bias;
}

/* --- from a checkpoint -------------------------------------------------------------------------------------------- */

/* Removes unwanted specs and slices and renumbers the rest. The checkpoint need not have the removed specs. */
static titan_status leave_out(struct load *l, struct titan_error *err)
{
    _cleanup_free_ int *number = calloc((size_t)l->n_specs + 1, sizeof *number);
    int n = 0, kept = 0;
    titan_assert(l->n_specs >= l->first_bias);
    if (!number)
        return titan_fail(err, TITAN_ENOMEM, "no memory to number %d tensors", l->n_specs);
    for (int i = 0; i < l->n_specs; i++) {
        const bool out = (is_kept(l, i) && (l->source.without_optimizer || l->info.model_only)) ||
                         (is_bias(l, i) && l->source.from == LOAD_OTHER && !l->info.biases);
        number[i] = out ? -1 : n;
        if (!out)
            l->specs[n++] = l->specs[i];
    }
    for (int i = 0; i < l->n_slices; i++) {
        if (number[l->slices[i].tensor] < 0)
            continue;
        l->slices[kept] = l->slices[i];
        l->slices[kept].tensor = number[l->slices[i].tensor];
        kept++;
    }
    titan_assert(n <= l->n_specs && kept <= l->n_slices);
    l->n_specs = n;
    l->n_slices = kept;
    return TITAN_OK;
}

static titan_status load_checkpoint(struct load *l, struct titan_error *err)
{
    const bool own = l->source.from == LOAD_OWN;
    titan_assert(l->source.from != LOAD_WEIGHTS);
    titan_status status = checkpoint_read_info(l->path, &l->info, err);
    if (status == TITAN_ENOTFOUND && !own && hf_weights_are_at(l->path)) {
        (void)titan_fail(err, TITAN_EINVAL, "'%s' is no checkpoint but a Hugging Face directory", l->path);
        titan_error_hint(err, "set checkpoint.initial_load_in_hf = true");
        return TITAN_EINVAL;
    }
    TRY(status);

    const struct identity_check check = {.recipe = &l->recipe,
                                         .here = l->source.here,
                                         .path = l->path,
                                         .own = own,
                                         .progress = !l->source.without_progress,
                                         .moments = !l->source.without_optimizer && !l->info.model_only};
    TRY(identity_compare(&check, &l->info, l->source.notes, &l->source.identity, err));
    memcpy(l->source.identity.from_run, l->info.run, sizeof l->info.run);
    l->source.identity.from_step = l->info.step;

    /* A checkpoint without moments is enough at step 0, and for a run that has ended. */
    if (l->info.model_only && !l->source.without_optimizer && l->info.step > 0 &&
        (!own || l->info.step < (uint64_t)l->recipe.training.steps)) {
        (void)titan_fail(err, TITAN_EUNSUPPORTED, "checkpoint '%s' has weights alone, no optimizer state", l->path);
        titan_error_hint(err, own ? "checkpoint.load_step names an earlier one; checkpoint.exclude_from_loading = "
                                    "[\"optimizer\"] begins with zero moments"
                                  : "checkpoint.initial_load_model_only = true begins with its weights at step 0");
        return TITAN_EUNSUPPORTED;
    }
    TRY(leave_out(l, err));
    const struct checkpoint_part part = {
        .specs = l->specs, .n_specs = l->n_specs, .slices = l->slices, .n_slices = l->n_slices};
    status = checkpoint_load(l->path, &part, &l->apart.watch, err);
    if (status != TITAN_ECONFLICT || !err)
        return status;

    /* "tensor 'x' has another shape" does not help a user: name the recipe key that causes the difference. */
    _cleanup_(buf_free) struct buf keys = BUF_INIT;
    struct recipe other;
    recipe_init(&other);
    if (recipe_parse(&other, l->info.recipe, "recipe", NULL) == TITAN_OK && recipe_resolve(&other, NULL) == TITAN_OK)
        recipe_model_differences(&l->recipe, &other, &keys);
    return keys.len > 0
               ? titan_fail(err, TITAN_ECONFLICT, "checkpoint '%s' is of another model: %s", l->path, keys.data)
               : status;
}

/* --- from weights of transformers --------------------------------------------------------------------------------- */

/* Compares tokenizers if one lies beside the weights: the weights' rows belong to its ids. */
static titan_status compare_tokenizer(struct load *l, struct titan_error *err)
{
    const size_t used = strlen(l->source.notes), room = sizeof l->source.notes - used;
    char *const note = l->source.notes + used;
    struct titan_error fault = {0};
    struct tokenizer *ours = NULL, *theirs = NULL;
    titan_status status = l->source.here ? tokenizer_open(l->path, &theirs, &fault) : TITAN_ENOTFOUND;
    if (status != TITAN_OK) {
        if (status != TITAN_ENOTFOUND)
            (void)snprintf(note, room, "the tokenizer beside the weights is not compared: %.300s\n", fault.msg);
        return TITAN_OK;
    }
    if (tokenizer_hash(theirs) != l->source.here->tokenizer)
        status = tokenizer_open_as(l->recipe.model.tokenizer, l->recipe.model.tokenizer_pattern, &ours, err);
    if (!ours) {
        tokenizer_close(theirs);
        return status;
    }

    const int64_t n_ours = tokenizer_vocabulary(ours), n_theirs = tokenizer_vocabulary(theirs);
    const int64_t n = MIN(n_ours, n_theirs); /* either may have more tokens */
    _cleanup_(buf_free) struct buf a = BUF_INIT, b = BUF_INIT;
    int32_t id = 0; /* first id with another text there */
    for (; id < n; id++) {
        buf_clear(&a);
        buf_clear(&b);
        if (tokenizer_decode(ours, &id, 1, &a, NULL) == TITAN_OK &&
            tokenizer_decode(theirs, &id, 1, &b, NULL) == TITAN_OK && /* both have this token */
            (a.len != b.len || (a.len > 0 && memcmp(a.data, b.data, a.len) != 0)))
            break;
    }
    tokenizer_close(ours);
    tokenizer_close(theirs);
    if (id >= n)
        return TITAN_OK;
    (void)titan_fail(err, TITAN_ECONFLICT,
                     "the tokenizer '%.120s' gives other ids than the one beside the weights: id %d stands for "
                     "another text, of %lld and %lld ids",
                     l->recipe.model.tokenizer, (int)id, (long long)n_ours, (long long)n_theirs);
    if (recipe_accepts(&l->recipe, "tokenizer")) {
        (void)snprintf(note, room, "%.300s: accepted\n", err->msg);
        *err = (struct titan_error){0};
        return TITAN_OK;
    }
    titan_error_hint(err, "set model.hf_assets_path to that folder; checkpoint.accept_changed = [\"tokenizer\"] takes "
                          "another");
    return TITAN_ECONFLICT;
}

static titan_status read_weights(struct load *l, const struct hf_weights *w, struct titan_error *err)
{
    const struct model_dims *d = &l->model->dims;
    _cleanup_(buf_free) struct buf note = BUF_INIT;
    TRY(hf_weights_check(w, l->model, err));
    TRY(hf_config_compare(hf_weights_config(w), d, &note, err));
    if (note.len > 0 && !recipe_accepts(&l->recipe, "model")) {
        (void)titan_fail(err, TITAN_ECONFLICT, "the weights are of another model: %s", note.data);
        titan_error_hint(err, "checkpoint.accept_changed = [\"model\"] trains them with these numbers");
        return TITAN_ECONFLICT;
    }
    if (note.len > 0)
        (void)snprintf(l->source.notes, sizeof l->source.notes, "the model's numbers are others: %s: accepted\n",
                       note.data);
    buf_clear(&note);
    hf_weights_left_out(w, l->model, &note);
    const size_t used = strlen(l->source.notes);
    if (note.len > 0)
        (void)snprintf(l->source.notes + used, sizeof l->source.notes - used, "%s\n", note.data);
    TRY(compare_tokenizer(l, err));

    /* Biases of a layer are one row; a rank may want a part of it. */
    _cleanup_free_ float *biases = calloc((size_t)d->n_experts + 1, sizeof *biases);
    if (!biases)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the biases of experts");
    for (int i = 0; i < l->n_slices; i++) {
        const struct shard_slice *p = &l->slices[i];
        if (is_bias(l, p->tensor)) {
            titan_assert(p->row == 0 && p->col + p->cols <= d->n_experts);
            const int layer = (int)d->n_dense_layers + p->tensor - l->first_bias;
            TRY(hf_weights_read_biases(w, l->model, layer, biases, err));
            memcpy(p->data, biases + p->col, (size_t)p->cols * sizeof *biases);
        } else if (!is_kept(l, p->tensor))
            TRY(hf_weights_read(w, l->model, p, &l->apart.watch, err));
    }
    return TITAN_OK;
}

/* --- either ------------------------------------------------------------------------------------------------------- */

static titan_status run_load(struct apart *a, struct titan_error *err)
{
    struct load *l = (struct load *)a;
    _cleanup_(folder_found_clear) struct folder_found found = {0};
    const bool own = l->source.from == LOAD_OWN;
    const char *seen = own ? l->recipe.checkpoint.folder_owner : l->recipe.checkpoint.initial_load_owner;
    struct folder_user user;

    /* The coordinator has checked this, but the folder may have another owner since. */
    if (folder_user_parse(l->recipe.job.owner, &user) && strcmp(seen, "*") != 0) {
        TRY(folder_owner_above(l->path, &found, err));
        if (!folder_admits(&found, &user, seen))
            return titan_fail(err, TITAN_ECONFLICT, "'%s' is of another user, and not what was admitted", l->path);
    }
    if (l->source.from != LOAD_WEIGHTS)
        return load_checkpoint(l, err);
    struct hf_weights *w = NULL;
    TRY(hf_weights_open(l->path, &w, err));
    const titan_status status = read_weights(l, w, err);
    hf_weights_close(w);
    return status;
}

static void close_load(struct load **l)
{
    apart_close((struct apart *)*l);
}

titan_status load_state(struct train_state *state, struct load_source *source, const struct recipe *recipe,
                        const struct apart_limit *limit, struct stream *s, struct titan_error *err)
{
    const struct layout *layout = state->layout;
    _cleanup_(close_load) struct load *l = calloc(1, sizeof *l);

    titan_assert(source->path && layout && limit->still_ms >= 0);
    if (!l)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    apart_init(&l->apart);
    l->apart.run = run_load;
    l->apart.clear = clear_load;
    l->source = *source;
    if (source->here) {
        l->here = *source->here;
        l->source.here = &l->here;
    }
    l->recipe = *recipe;
    l->path = strdup(source->path);
    l->host = calloc((size_t)state_snapshot_size(layout, state->rank) + 1, sizeof *l->host);
    if (!l->path || !l->host)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    l->n_parameters = layout->model->n_tensors;
    l->first_bias = layout->n_specs;
    if (source->from == LOAD_WEIGHTS)
        TRY(model_open(&layout->model->dims, &l->model, err));
    TRY(layout_specs(layout, &l->specs, &l->n_specs, err));
    TRY(layout_slices(layout, state->rank, l->host, l->host + layout_state(layout, state->rank), NULL, NULL, &l->slices,
                      &l->n_slices, err));

    const titan_status status = apart_run(&l->apart, limit, err);
    if (status == TITAN_ETIMEDOUT)
        (void)titan_error_wrap(err, "'%s'", source->path);
    TRY(status);
    memcpy(source->notes, l->source.notes, sizeof source->notes);
    source->identity = l->source.identity;
    TRY(state_upload(state, l->host, s, err));
    const struct checkpoint_info *info = &l->info;
    const struct skipped_steps none = {0}, all = {.total = info->step};
    if (source->from == LOAD_WEIGHTS || source->without_progress)
        state_set_numbers(state, 0, 0, none);
    else
        state_set_numbers(state, info->step, info->tokens, source->without_optimizer ? all : info->skipped);
    return TITAN_OK;
}
