/* SPDX-License-Identifier: Apache-2.0 */
/* load_state.c - a rank's part of the state from a checkpoint of any mesh. */
#include "worker/checkpoint/load_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/checkpoint/checkpoint.h"

/* All that reading a checkpoint touches. */
struct load {
    struct apart apart;
    char *path;
    uint64_t recipe_hash;
    float *host; /* gaps: zero */
    struct tensor_spec *specs;
    struct piece *pieces;
    int n_specs, n_pieces;
    struct checkpoint_info info;
};

static void clear_load(struct apart *a)
{
    struct load *l = (struct load *)a;
    free(l->path);
    free(l->host);
    free(l->specs);
    free(l->pieces);
    checkpoint_info_clear(&l->info);
    free(l);
}

static titan_status run_load(struct apart *a, struct titan_error *err)
{
    struct load *l = (struct load *)a;

    TRY(checkpoint_read_info(l->path, &l->info, err));
    if (l->info.recipe_hash != l->recipe_hash) {
        (void)titan_fail(err, TITAN_ECONFLICT, "checkpoint '%s' belongs to another recipe", l->path);
        titan_error_hint(err, "use another checkpoint.folder, or the recipe this checkpoint was written with");
        return TITAN_ECONFLICT;
    }
    return checkpoint_load(l->path, l->specs, l->n_specs, l->pieces, l->n_pieces, &a->watch, err);
}

static titan_status open_load(const struct train_state *state, const char *path, uint64_t recipe_hash,
                              struct load **ret, struct titan_error *err)
{
    const struct layout *l = state->layout;
    struct load *load = calloc(1, sizeof *load);

    if (!load)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    *ret = load;
    apart_init(&load->apart);
    load->apart.run = run_load;
    load->apart.clear = clear_load;
    load->recipe_hash = recipe_hash;
    load->path = strdup(path);
    load->host = calloc((size_t)state_snapshot_size(l, state->rank) + 1, sizeof *load->host);
    if (!load->path || !load->host)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    TRY(layout_specs(l->model, &load->specs, &load->n_specs, err));
    return layout_pieces(l, state->rank, load->host, load->host + 3 * state->total, NULL, NULL, &load->pieces,
                         &load->n_pieces, err);
}

static void close_load(struct load **l)
{
    apart_close((struct apart *)*l);
}

titan_status checkpoint_load_state(struct train_state *state, const char *path, uint64_t recipe_hash, int still_ms,
                                   const atomic_int *stop, struct stream *s, struct titan_error *err)
{
    _cleanup_(close_load) struct load *load = NULL;

    TRY(open_load(state, path, recipe_hash, &load, err));
    const titan_status status = apart_run(&load->apart, still_ms, stop, err);
    if (status == TITAN_ETIMEDOUT)
        (void)titan_error_wrap(err, "'%s'", path);
    TRY(status);
    TRY(state_upload(state, load->host, s, err));
    state_set_numbers(state, load->info.step, load->info.tokens, load->info.skipped_steps);
    return TITAN_OK;
}
