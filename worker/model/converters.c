/* SPDX-License-Identifier: Apache-2.0 */
/* converters.c - see converters.h. */
#include "worker/model/converters.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* A recipe of a converter and the flags of its products. */
static const struct recipe_of_products {
    const char *name;
    uint32_t flags[LINEAR_PRODUCTS];
} float8_recipes[] = {
    {"tensorwise", {OP_F8, OP_F8 | OP_F8_A_E5M2, OP_F8 | OP_F8_A_E5M2}},
    {"rowwise",
     {OP_F8 | OP_F8_A_LINES | OP_F8_B_LINES | OP_F8_POWER, OP_F8 | OP_F8_A_LINES | OP_F8_B_LINES | OP_F8_POWER,
      OP_F8 | OP_F8_A_LINES | OP_F8_B_LINES | OP_F8_POWER}},
    {"rowwise_with_gw_hp",
     {OP_F8 | OP_F8_A_LINES | OP_F8_B_LINES | OP_F8_POWER, OP_F8 | OP_F8_A_LINES | OP_F8_POWER, 0}},
    {"scalify", {OP_F8 | OP_F8_GIVEN, OP_F8 | OP_F8_A_E5M2 | OP_F8_GIVEN, OP_F8 | OP_F8_A_E5M2 | OP_F8_GIVEN}},
};
static const struct recipe_of_products mxfp8 = {"mxfp8_cublas",
                                                {OP_F8 | OP_F8_BLOCKS, OP_F8 | OP_F8_BLOCKS, OP_F8 | OP_F8_BLOCKS}};

static const struct recipe_of_products switchback[] = {
    {"global", {OP_I8, OP_I8, 0}},
    {"vectorwise", {OP_I8 | OP_I8_B_LINES, OP_I8 | OP_I8_B_LINES, 0}},
};

static bool is_linear_layer(const struct model_tensor *t)
{
    switch (t->role) {
    case ROLE_WQ:
    case ROLE_WK:
    case ROLE_WV:
    case ROLE_WO:
    case ROLE_WQ_A:
    case ROLE_WQ_B:
    case ROLE_WKV_A:
    case ROLE_WKV_B:
    case ROLE_W1:
    case ROLE_W2:
    case ROLE_W3:
        return t->experts == 0;
    default:
        return false;
    }
}

/* Does a word of the filter list occur in the layer's name ("layers.0.attention.wq")? */
static bool is_filtered(const char *filter, const struct model_tensor *t)
{
    static const char of_layer[] = ".weight";
    char name[sizeof t->name], word[sizeof t->name];
    const size_t length = strlen(t->name), ending = sizeof of_layer - 1;

    titan_assert(length > ending && strcmp(t->name + length - ending, of_layer) == 0);
    memcpy(name, t->name, sizeof name);
    name[length - ending] = '\0';
    for (const char *at = filter; *at; at += strcspn(at, ","), at += strspn(at, ",")) {
        const size_t n = strcspn(at, ",");
        if (n >= sizeof word)
            continue;
        memcpy(word, at, n);
        word[n] = '\0';
        if (strstr(name, word))
            return true;
    }
    return false;
}

titan_status converters_open(const struct recipe *r, const struct model *model, struct converters **ret,
                             struct titan_error *err)
{
    const bool mx = r->model.mxfp8, int8 = r->model.switchback;
    const char *filter = mx ? r->mx.filter_fqns : int8 ? r->switchback.filter_fqns : r->float8.filter_fqns;
    const char *name = int8 ? r->switchback.variant : r->float8.recipe_name;
    const struct recipe_of_products *how = int8 ? switchback : float8_recipes,
                                    *end = int8 ? switchback + ARRAY_SIZE(switchback)
                                                : float8_recipes + ARRAY_SIZE(float8_recipes);
    const bool large_only = r->model.float8 && recipe_filters_float8(r, "auto_filter_small_kn");

    *ret = NULL;
    titan_assert(r->model.float8 + mx + int8 <= 1);
    if (!r->model.float8 && !mx && !int8)
        return TITAN_OK;
    while (!mx && strcmp(how->name, name) != 0)
        titan_assert(++how < end);
    how = mx ? &mxfp8 : how;
    const size_t n = (size_t)model->n_tensors;
    struct converters *c = calloc(1, sizeof *c + n * (sizeof c->converted[0] + sizeof c->powers[0]));
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    memcpy(c->flags, how->flags, sizeof c->flags);
    const bool given = how->flags[LINEAR_FORWARD] & OP_F8_GIVEN, one_scale = given || how == float8_recipes;
    c->powers = given ? (struct product_powers *)(void *)(c->converted + n) : NULL;
    c->codes = r->float8.enable_fsdp_float8_all_gather && one_scale;
    c->keeps_codes = int8 && r->switchback.mem_efficient;
    for (int i = 0; i < model->n_tensors; i++) {
        const struct model_tensor *t = &model->tensors[i];
        const int64_t step = mx ? MX_BLOCK : 16; /* sides must be multiples of this */
        const int64_t outputs = t->shape[0], inputs = t->shape[1];
        const bool fits =
            outputs % step == 0 && inputs % step == 0 && (!int8 || MAX(outputs, inputs) <= INT8_DEPTH_MAX);
        /* thresholds of torchao, where K is the number of outputs */
        const bool small = one_scale ? outputs <= 4096 && inputs <= 1024
                                     : inputs <= 2048 || outputs <= 1024 || (inputs <= 4096 && outputs <= 2048);
        c->converted[i] = is_linear_layer(t) && fits && !is_filtered(filter, t) && !(large_only && small);
    }
    *ret = c;
    return TITAN_OK;
}

/* Bits of the unit's converted weights; parts: also of a weight that two products multiply by parts. */
static uint64_t converted_bits(const struct converters *c, const struct model *model, int unit, bool parts)
{
    const struct model_unit *u = &model->units[unit];
    uint64_t bits = 0;

    titan_assert(unit >= 0 && unit < model->n_units);
    if (u->n_tensors > 64)
        return 0;
    for (int i = 0; i < u->n_tensors; i++)
        if (c->converted[u->first_tensor + i] && (parts || model->tensors[u->first_tensor + i].role != ROLE_WKV_A))
            bits |= UINT64_C(1) << i;
    return bits;
}

uint64_t converters_coded(const struct converters *converters, const struct model *model, int unit)
{
    return converters && converters->codes ? converted_bits(converters, model, unit, converters->powers != NULL) : 0;
}

uint64_t converters_scaled(const struct converters *converters, const struct model *model, int unit)
{
    return converters && converters->powers ? converted_bits(converters, model, unit, true) : 0;
}
