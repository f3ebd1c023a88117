/* SPDX-License-Identifier: Apache-2.0 */
/* programs.c - step programs for tests. */
#include "tests/support/random_layout.h"
#include "tests/support/programs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/optim/update.h"
#include "worker/plan/fuse.h"

static const struct model_dims small = {.dim = 64,
                                        .n_layers = 4,
                                        .n_heads = 4,
                                        .n_kv_heads = 2,
                                        .ffn_hidden = 128,
                                        .vocab_size = 256,
                                        .rope_theta = 1e4,
                                        .norm_eps = 1e-5};

const struct model_dims programs_heads = {.dim = 64,
                                          .n_layers = 4,
                                          .n_heads = 4,
                                          .n_kv_heads = 4,
                                          .ffn_hidden = 128,
                                          .vocab_size = 256,
                                          .rope_theta = 1e4,
                                          .norm_eps = 1e-5};

const struct model_dims programs_experts = {.dim = 64,
                                            .n_layers = 4,
                                            .n_heads = 4,
                                            .n_kv_heads = 2,
                                            .ffn_hidden = 128,
                                            .vocab_size = 256,
                                            .rope_theta = 1e4,
                                            .norm_eps = 1e-5,
                                            .n_experts = 8,
                                            .top_k = 2,
                                            .n_shared_experts = 1,
                                            .moe_hidden = 32,
                                            .n_dense_layers = 1,
                                            .route_scale = 1.0,
                                            .balance_rate = 1e-3};

static size_t work_bytes(struct device *dev, const struct attention_shape *s)
{
    (void)dev;
    return (size_t)(s->b * s->tq * s->h) * sizeof(float);
}

static const struct device_ops sizes = {.attention_work_bytes = work_bytes};

static const char *schedule_of(const struct programs_case *c)
{
    return c->schedule ? c->schedule : "1F1B";
}

void programs_name(const struct programs_case *c, char *ret, size_t room)
{
    snprintf(ret, room,
             "pp%d dp%dx%d cp%d tp%d ep%d %s m%d reshard%d reduce%d checkpointing%d prefetch%d "
             "modules%d%s%s%s%s%s%s%s%s%s%s%s%s %s replicas %s",
             c->pp, c->dp_replicate, c->dp_shard, c->cp, c->tp, c->ep, c->pp > 1 ? schedule_of(c) : "", c->microbatches,
             c->reshard, c->reduce, c->checkpointing, c->prefetch, c->modules, c->canonical ? " canonical" : "",
             c->rotate ? c->in_place ? " in place" : " rotate" : "", c->masked ? " masked" : "", c->ring ? " ring" : "",
             c->offload ? " offload" : "", c->forward_only ? " forward only" : "", c->fuse ? " fuse" : "",
             c->tied ? " tied" : "", c->tensor_sums ? " tensor sums " : " ", c->optimizer ? c->optimizer : "",
             c->replicate ? " " : "", c->replicate ? c->replicate : "",
             c->codec != CODEC_NONE ? codec_row(c->codec)->name : "", codec_row(c->replicate_codec)->name);
}

static titan_status open_schedule(const struct programs_case *c, int share, struct programs *p, struct titan_error *err)
{
    const int each = c->stages ? c->stages : schedule_stages_per_rank(schedule_of(c));

    if (c->pp == 1)
        return TITAN_OK;
    if (c->forward_only) {
        struct schedule *like = NULL;
        TRY(schedule_generate(schedule_of(c), c->pp, c->pp * each, 1, &like, err));
        const bool v_order = like->v_order;
        schedule_close(like);
        return schedule_forward(c->pp, c->pp * each, share, v_order, &p->schedule, err);
    }
    return schedule_generate(schedule_of(c), c->pp, c->pp * each, share, &p->schedule, err);
}

static titan_status open_layout(const struct programs_case *c, const struct mesh *mesh, struct programs *p,
                                struct titan_error *err)
{
    const int layers = (int)p->model->dims.n_layers, stages = p->schedule ? p->schedule->stages : 1;
    _cleanup_free_ int *first = calloc((size_t)stages + 1, sizeof *first);

    if (!first)
        return TITAN_ENOMEM;
    for (int s = 0; s <= stages; s++)
        first[s] = layers * s / stages;
    return layout_open(
        &(struct layout_options){.model = p->model,
                                 .mesh = *mesh,
                                 .stages = stages,
                                 .v_order = p->schedule && p->schedule->v_order,
                                 .first_layer = first,
                                 .kinds = c->optimizer || c->replicate ? optimizer_kinds(&p->recipe) : adamw_kinds(),
                                 .recipe = &p->recipe,
                                 .canonical = c->canonical,
                                 .cuts = c->replicate_codec != CODEC_NONE ? c->dp_replicate : 1},
        &p->layout, err);
}

static titan_status open_all(const struct programs_case *c, struct programs *p, struct titan_error *err)
{
    const struct mesh mesh = {.world = c->pp * c->dp_replicate * c->dp_shard * c->cp * c->tp,
                              .size = {c->pp, c->dp_replicate, c->dp_shard, c->cp, c->tp},
                              .ep = c->ep ? c->ep : 1,
                              .rotate = c->rotate};
    const int batch = mesh_batch_size(&mesh);

    struct model_dims dims = c->dims ? *c->dims : small;

    if (c->layers > 0)
        dims.n_layers = c->layers;
    dims.tied_embeddings = c->tied;
    dims.mtp_layers = c->modules;
    TRY(model_open(&dims, &p->model, err));
    TRY(open_schedule(c, (c->microbatches + batch - 1) / batch, p, err));
    recipe_init(&p->recipe);
    if (c->optimizer) {
        (void)snprintf(p->recipe.optimizer.name, sizeof p->recipe.optimizer.name, "%s", c->optimizer);
        TRY(recipe_set(&p->recipe, "optimizer.rest=AdamW", err));
    }
    if (c->replicate) {
        (void)snprintf(p->recipe.parallelism.replicate_method, sizeof p->recipe.parallelism.replicate_method, "%s",
                       c->replicate);
        p->recipe.parallelism.replicate_values = 4;
    }
    TRY(open_layout(c, &mesh, p, err));
    const size_t layers = (size_t)model_all_layers(p->model);
    p->checkpointing = calloc(layers, sizeof *p->checkpointing);
    for (size_t l = 0; l < layers; l++)
        p->checkpointing[l] = c->checkpointing;
    p->options =
        (struct build_options){.layout = p->layout,
                               .schedule = p->schedule,
                               .dt = c->dt,
                               .b = c->b ? c->b : 2,
                               .t = c->t ? c->t : 32,
                               .masked = c->masked || c->cp > 1,
                               .ring = c->ring,
                               .rotate_in_place = c->in_place,
                               .loss_chunks = 2,
                               .ops = &sizes,
                               .microbatches = c->microbatches,
                               .reshard = c->reshard,
                               .reduce = c->reduce,
                               .prefetch = c->prefetch,
                               .canonical = c->canonical,
                               .offload = c->offload,
                               .tensor_sums = c->tensor_sums,
                               .parts = parts_of_recipe(&p->recipe),
                               .codec = c->codec,
                               .replicate_codec = c->replicate_codec,
                               .tensor_scales = c->tensor_scales,
                               .error_decay = 0.8f,
                               .whole = c->optimizer ? &p->recipe : NULL,
                               .gather_codec = c->gather_codec,
                               .gather_learns = c->gather_learns && 1 << weight_bits(c->gather_codec) <= WEIGHT_LEVELS,
                               .checkpointing = p->checkpointing,
                               .keep_products = c->keep_products,
                               .draft = c->fuse,
                               .forward_only = c->forward_only};
    p->n = program_classes(&p->options);
    p->classes = calloc((size_t)p->n, sizeof(struct program *));
    for (int k = 0; k < p->n; k++) {
        TRY(program_build(&p->options, program_class_rank(&p->options, k), &p->classes[k], err));
        if (!c->fuse)
            continue;
        TRY(pass_fuse(p->classes[k], &(struct pass_options){0}, err));
        TRY(program_finish(p->classes[k], err));
    }
    return TITAN_OK;
}

titan_status programs_open(const struct programs_case *c, struct programs *ret, struct titan_error *err)
{
    *ret = (struct programs){0};
    const titan_status status = open_all(c, ret, err);
    if (status != TITAN_OK)
        programs_close(ret);
    return status;
}

void programs_close(struct programs *p)
{
    for (int k = 0; p->classes && k < p->n; k++)
        program_close(p->classes[k]);
    free(p->classes);
    free(p->checkpointing);
    layout_close(p->layout);
    schedule_close(p->schedule);
    model_close(p->model);
    *p = (struct programs){0};
}
