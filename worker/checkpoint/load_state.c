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
    struct model *model; /* LOAD_WEIGHTS */
    int n_parameters;
    float *host; /* gaps are zero */
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

/* Specs are the parameters, then their moments, then biases. */
static bool is_moment(const struct load *l, int spec)
{
    titan_assert(spec >= 0);
    return spec >= l->n_parameters && spec < 3 * l->n_parameters;
}

static bool is_bias(const struct load *l, int spec)
{
    return spec >= 3 * l->n_parameters;
}

/* --- from a checkpoint -------------------------------------------------------------------------------------------- */

/* Removes unwanted specs and slices and renumbers the rest. The checkpoint need not have the removed specs. */
static titan_status leave_out(struct load *l, struct titan_error *err)
{
    _cleanup_free_ int *number = calloc((size_t)l->n_specs + 1, sizeof *number);
    int n = 0, kept = 0;
    titan_assert(l->n_specs >= 3 * l->n_parameters);
    if (!number)
        return titan_fail(err, TITAN_ENOMEM, "no memory to number %d tensors", l->n_specs);
    for (int i = 0; i < l->n_specs; i++) {
        const bool out = (is_moment(l, i) && (l->source.without_optimizer || l->info.model_only)) ||
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
                                         .progress = !l->source.without_progress};
    TRY(identity_compare(&check, l->info.recipe_hash, l->info.recipe, l->info.step, &l->info.identity, l->source.notes,
                         &l->source.identity, err));
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
    status = checkpoint_load(l->path, l->specs, l->n_specs, l->slices, l->n_slices, &l->apart.watch, err);
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

/* Reads a layer's biases. They are one row; a rank may want a part of it. */
static titan_status read_biases(const struct load *l, const struct hf_weights *w, const struct shard_slice *p,
                                struct titan_error *err)
{
    const struct model_dims *d = &l->model->dims;
    titan_assert(is_bias(l, p->tensor) && p->row == 0 && p->col + p->cols <= d->n_experts);
    _cleanup_free_ float *all = calloc((size_t)d->n_experts, sizeof *all);
    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the biases of experts");
    TRY(hf_weights_read_biases(w, l->model, (int)d->n_dense_layers + p->tensor - 3 * l->n_parameters, all, err));
    memcpy(p->data, all + p->col, (size_t)p->cols * sizeof *all);
    return TITAN_OK;
}

/* Compares tokenizers if one lies beside the weights: the weights' rows belong to its ids. */
static titan_status compare_tokenizers(struct load *l, const struct tokenizer *ours, const struct tokenizer *theirs,
                                       struct titan_error *err)
{
    const int64_t n = MIN(tokenizer_vocabulary(ours), tokenizer_vocabulary(theirs)); /* either may have more tokens */
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
    if (id >= n)
        return TITAN_OK;
    (void)titan_fail(err, TITAN_ECONFLICT,
                     "the tokenizer '%.120s' gives other ids than the one beside the weights: id %d stands for "
                     "another text, of %lld and %lld ids",
                     l->recipe.model.tokenizer, (int)id, (long long)tokenizer_vocabulary(ours),
                     (long long)tokenizer_vocabulary(theirs));
    if (recipe_accepts(&l->recipe, "tokenizer")) {
        const size_t used = strlen(l->source.notes);
        (void)snprintf(l->source.notes + used, sizeof l->source.notes - used, "%.300s: accepted\n", err->msg);
        *err = (struct titan_error){0};
        return TITAN_OK;
    }
    titan_error_hint(err, "set model.hf_assets_path to that folder; checkpoint.accept_changed = [\"tokenizer\"] takes "
                          "another");
    return TITAN_ECONFLICT;
}

static titan_status compare_tokenizer(struct load *l, struct titan_error *err)
{
    struct titan_error fault = {0};
    struct tokenizer *ours = NULL, *theirs = NULL;
    const size_t used = strlen(l->source.notes);
    titan_status status = l->source.here ? tokenizer_open(l->path, &theirs, &fault) : TITAN_ENOTFOUND;
    if (status == TITAN_ENOTFOUND)
        return TITAN_OK;
    if (status != TITAN_OK)
        (void)snprintf(l->source.notes + used, sizeof l->source.notes - used,
                       "the tokenizer beside the weights is not compared: %.300s\n", fault.msg);
    else if (tokenizer_hash(theirs) != l->source.here->tokenizer)
        status = tokenizer_open_as(l->recipe.model.tokenizer, l->recipe.model.tokenizer_pattern, &ours, err);
    if (status == TITAN_OK && ours)
        status = compare_tokenizers(l, ours, theirs, err);
    else if (!theirs)
        status = TITAN_OK;
    tokenizer_close(ours);
    tokenizer_close(theirs);
    return status;
}

static titan_status read_weights(struct load *l, const struct hf_weights *w, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf note = BUF_INIT;
    TRY(hf_weights_check(w, l->model, err));
    TRY(hf_config_compare(hf_weights_config(w), &l->model->dims, &note, err));
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
    for (int i = 0; i < l->n_slices; i++) {
        const struct shard_slice *p = &l->slices[i];
        if (is_bias(l, p->tensor))
            TRY(read_biases(l, w, p, err));
        else if (!is_moment(l, p->tensor))
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

static titan_status open_load(const struct train_state *state, const struct load_source *source,
                              const struct recipe *recipe, struct load **ret, struct titan_error *err)
{
    const struct layout *l = state->layout;
    struct load *load = calloc(1, sizeof *load);

    titan_assert(source->path && l);
    if (!load)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    *ret = load;
    apart_init(&load->apart);
    load->apart.run = run_load;
    load->apart.clear = clear_load;
    load->source = *source;
    if (source->here) {
        load->here = *source->here;
        load->source.here = &load->here;
    }
    load->recipe = *recipe;
    load->path = strdup(source->path);
    load->host = calloc((size_t)state_snapshot_size(l, state->rank) + 1, sizeof *load->host);
    if (!load->path || !load->host)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    load->n_parameters = l->model->n_tensors;
    if (source->from == LOAD_WEIGHTS)
        TRY(model_open(&l->model->dims, &load->model, err));
    TRY(layout_specs(l->model, &load->specs, &load->n_specs, err));
    return layout_slices(l, state->rank, load->host, load->host + 3 * state->total, NULL, NULL, &load->slices,
                         &load->n_slices, err);
}

static void close_load(struct load **l)
{
    apart_close((struct apart *)*l);
}

titan_status load_state(struct train_state *state, struct load_source *source, const struct recipe *recipe,
                        int still_ms, const atomic_int *stop, struct stream *s, struct titan_error *err)
{
    _cleanup_(close_load) struct load *load = NULL;

    titan_assert(still_ms >= 0);
    TRY(open_load(state, source, recipe, &load, err));
    const titan_status status = apart_run(&load->apart, still_ms, stop, err);
    if (status == TITAN_ETIMEDOUT)
        (void)titan_error_wrap(err, "'%s'", source->path);
    TRY(status);
    memcpy(source->notes, load->source.notes, sizeof source->notes);
    source->identity = load->source.identity;
    TRY(state_upload(state, load->host, s, err));
    const struct checkpoint_info *info = &load->info;
    const struct skipped_steps none = {0}, all = {.total = info->step};
    if (source->from == LOAD_WEIGHTS || source->without_progress)
        state_set_numbers(state, 0, 0, none);
    else
        state_set_numbers(state, info->step, info->tokens, source->without_optimizer ? all : info->skipped);
    return TITAN_OK;
}
