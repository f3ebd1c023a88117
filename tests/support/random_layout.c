/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/random_layout.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/support/seeded.h"

#define LAYERS_MAX 5
#define TENSORS_MAX 10 /* of a unit */
#define CUTS 12        /* a multiple of every tensor-parallel degree drawn */
#define EXPERTS 24     /* of every expert-parallel degree */

unsigned random_seed(void)
{
    return (unsigned)seeded_seed(0);
}

int random_below(unsigned *seed, int n)
{
    return rand_r(seed) % n;
}

/* --- models ------------------------------------------------------------------------------------------------------- */

static void begin_unit(struct model *m, enum unit_kind kind, int layer)
{
    struct model_unit *u = &m->units[m->n_units];
    *u = (struct model_unit){.kind = kind, .layer = layer, .first_tensor = m->n_tensors};
    (void)snprintf(u->name, sizeof u->name, "unit.%d", m->n_units++);
}

/* cols 0: a vector */
static void add(struct model *m, enum split split, bool glued, int64_t rows, int64_t cols)
{
    struct model_unit *u = &m->units[m->n_units - 1];
    struct model_tensor *t = &m->tensors[m->n_tensors];
    *t = (struct model_tensor){.shape = {rows, cols},
                               .ndim = cols > 0 ? 2 : 1,
                               .experts = split == SPLIT_EXPERTS ? EXPERTS : 0,
                               .numel = rows * (cols > 0 ? cols : 1),
                               .unit = m->n_units - 1,
                               .role = ROLE_COUNT,
                               .split = split,
                               .glued = glued,
                               .init = INIT_NORMAL,
                               .std = 0.5f};
    (void)snprintf(t->name, sizeof t->name, "tensor.%d.weight", m->n_tensors++);
    u->n_tensors++;
}

/* Whole vectors between cut matrices, two of them glued, sometimes a whole matrix. */
static void add_layer(struct model *m, unsigned *seed, int layer)
{
    const int64_t c = CUTS * (1 + random_below(seed, 6)), f = CUTS * (1 + random_below(seed, 9));

    begin_unit(m, UNIT_LAYER, layer);
    add(m, SPLIT_NONE, false, c, 0);
    add(m, SPLIT_ROWS, false, f, c);
    add(m, SPLIT_ROWS, true, CUTS, c);
    add(m, SPLIT_COLS, false, c, f);
    add(m, SPLIT_NONE, false, 1 + random_below(seed, 300), 0);
    if (random_below(seed, 2))
        add(m, SPLIT_NONE, false, 1 + random_below(seed, 40), 1 + random_below(seed, 40));
    if (m->dims.n_experts > 0 && layer >= m->dims.n_dense_layers) {
        begin_unit(m, UNIT_EXPERTS, layer);
        add(m, SPLIT_EXPERTS, false, EXPERTS * (1 + random_below(seed, 4)), 1 + random_below(seed, 30));
        if (random_below(seed, 2))
            add(m, SPLIT_EXPERTS, random_below(seed, 2), EXPERTS, 1 + random_below(seed, 30));
        if (random_below(seed, 2))
            add(m, SPLIT_NONE, false, 1 + random_below(seed, 200), 0);
    }
}

struct model *random_model(unsigned *seed)
{
    struct model *m = calloc(1, sizeof *m);
    const int layers = 1 + random_below(seed, LAYERS_MAX);

    titan_assert(m);
    m->dims.n_layers = layers;
    if (random_below(seed, 2)) {
        m->dims.n_experts = EXPERTS;
        m->dims.balance_rate = random_below(seed, 2) ? 1e-3 : 0;
        m->dims.n_dense_layers = random_below(seed, layers + 1);
    }
    m->units = calloc(2 * (size_t)layers + 2, sizeof *m->units);
    m->tensors = calloc((2 * (size_t)layers + 2) * TENSORS_MAX, sizeof *m->tensors);
    titan_assert(m->units && m->tensors);
    begin_unit(m, UNIT_EMBEDDING, -1);
    add(m, SPLIT_ROWS, false, CUTS * (1 + random_below(seed, 9)), 1 + random_below(seed, 50));
    for (int l = 0; l < layers; l++)
        add_layer(m, seed, l);
    begin_unit(m, UNIT_HEAD, -1);
    add(m, SPLIT_NONE, false, 1 + random_below(seed, 50), 0);
    add(m, SPLIT_ROWS, false, CUTS * (1 + random_below(seed, 9)), 1 + random_below(seed, 50));
    return m;
}

/* --- layouts ------------------------------------------------------------------------------------------------------ */

struct mesh random_mesh(unsigned *seed, int world_max)
{
    static const int degrees[] = {1, 1, 2, 3, 4};

    for (;;) {
        struct mesh m = {.world = 1};
        for (int a = 0; a < AXIS_COUNT; a++) {
            m.size[a] = degrees[random_below(seed, (int)(sizeof degrees / sizeof *degrees))];
            m.world *= m.size[a];
        }
        if (m.world > world_max)
            continue;
        const int borrowed = m.size[AXIS_DP_SHARD] * m.size[AXIS_CP] * m.size[AXIS_TP];
        do
            m.ep = 1 + random_below(seed, borrowed);
        while (borrowed % m.ep != 0 || EXPERTS % m.ep != 0);
        return m;
    }
}

struct state_kinds adamw_kinds(void)
{
    return (struct state_kinds){.n = 2, .name = {"m", "v"}, .matrices = 3, .rest = 3, .squares = 2};
}

/* Owners keep the state of matrices. */
static const struct recipe *owned_recipe(void)
{
    static struct recipe r;

    if (r.optimizer.name[0])
        return &r;
    recipe_init(&r);
    titan_assert(recipe_set(&r, "optimizer.name=Muon", NULL) == TITAN_OK);
    titan_assert(recipe_set(&r, "optimizer.rest=AdamW", NULL) == TITAN_OK);
    return &r;
}

/* The kinds of state in all layouts of a model: of one optimizer, or of two with kinds of their own. Owners may keep
 * those of matrices. */
static struct state_kinds kinds_of(const struct model *m)
{
    unsigned drawn = (unsigned)(31 * m->n_tensors + m->dims.n_layers), *const seed = &drawn;
    static const char *const states[] = {"m", "v", "momentum", "slow"};
    struct state_kinds k = {.n = random_below(seed, 5), .squares = 2};

    if (random_below(seed, 3) == 0)
        return optimizer_kinds(owned_recipe());
    for (int i = 0; i < k.n; i++)
        k.name[i] = states[i];
    for (int i = 0; i < k.n; i++) { /* each kind is of matrices, of the rest, or of both */
        const int of = random_below(seed, 4);
        k.matrices |= of != 1 ? 1u << i : 0;
        k.rest |= of != 2 ? 1u << i : 0;
    }
    return k;
}

static struct layout *draw(unsigned *seed, const struct model *model, int world_max, struct state_kinds kinds,
                           bool coded)
{
    struct layout_options o = {.model = model, .mesh = random_mesh(seed, world_max)};
    int first_layer[64] = {0};
    struct layout *l = NULL;
    struct titan_error err = {0};

    o.stages = o.mesh.size[AXIS_PP] * (1 + random_below(seed, 3));
    o.v_order = random_below(seed, 2);
    o.canonical = random_below(seed, 2);
    o.coded = coded;
    o.kinds = kinds;
    o.recipe = kinds.owned ? owned_recipe() : NULL;
    o.mesh.rotate = random_below(seed, 2) && !coded && !kinds.owned && model->dims.n_experts == 0 &&
                    o.mesh.size[AXIS_TP] == 1 && o.mesh.ep == 1 && o.mesh.size[AXIS_DP_SHARD] > 1;
    o.first_layer = first_layer;
    for (int s = 1; s < o.stages; s++)
        first_layer[s] = (int)model->dims.n_layers * s / o.stages;
    first_layer[o.stages] = (int)model->dims.n_layers;
    if (layout_open(&o, &l, &err) != TITAN_OK) {
        printf("# %s\n", err.msg);
        titan_assert(false);
    }
    return l;
}

struct layout *random_layout(unsigned *seed, const struct model *model, int world_max)
{
    return random_layout_of(seed, model, world_max, kinds_of(model));
}

struct layout *random_layout_of(unsigned *seed, const struct model *model, int world_max, struct state_kinds kinds)
{
    return draw(seed, model, world_max, kinds, false);
}

struct layout *random_coded_layout(unsigned *seed, const struct model *model, int world_max)
{
    return draw(seed, model, world_max, kinds_of(model), true);
}

const char *layout_text(const struct layout *layout)
{
    static char text[128];
    const struct mesh *m = &layout->mesh;

    (void)snprintf(text, sizeof text, "pp %d dp_replicate %d dp_shard %d cp %d tp %d ep %d, %d stages%s%s%s%s",
                   m->size[0], m->size[1], m->size[2], m->size[3], m->size[4], m->ep, layout->stages,
                   m->rotate ? ", rotating" : "", layout->v_order ? " in a V" : "",
                   layout->canonical ? ", canonical" : "", layout->coded ? ", coded" : "");
    return text;
}
