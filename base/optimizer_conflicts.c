/* SPDX-License-Identifier: Apache-2.0 */
#include "base/optimizer_conflicts.h"

#include <string.h>

#include "base/cleanup.h"

static bool at_random(const struct recipe *r)
{
    return strcmp(r->optimizer.state_rounding, "stochastic") == 0;
}

static bool rounds_nothing(const struct recipe *r, const struct optimizer *o, bool rest)
{
    (void)o, (void)rest;
    return at_random(r) && recipe_moment_bytes(r) != 2;
}

static bool rounds_other_moments(const struct recipe *r, const struct optimizer *o, bool rest)
{
    (void)rest;
    return at_random(r) && o->rule != RULE_ADAMW;
}

static bool has_no_matrices(const struct recipe *r, const struct optimizer *o, bool rest)
{
    (void)r;
    return rest && o->rule == RULE_DIRECTION;
}

static bool looks_nowhere(const struct recipe *r, const struct optimizer *o, bool rest)
{
    (void)rest;
    return o->rule == RULE_SGD && r->optimizer.sgd.nesterov && r->optimizer.sgd.momentum == 0;
}

static bool rounds_slow_weights(const struct recipe *r, const struct optimizer *o, bool rest)
{
    (void)rest;
    return strcmp(o->name, "Ranger21") == 0 && r->optimizer.ranger21.lookahead && recipe_moment_bytes(r) != 4;
}

static bool reads_rounded_masters(const struct recipe *r, const struct optimizer *o, bool rest)
{
    (void)rest;
    return strcmp(o->name, "Ranger21") == 0 && recipe_master_bytes(r) != 4;
}

const struct optimizer_conflict optimizer_conflicts[] = {
    {"all but AdamW, Adam, StableAdamW", "optimizer.state_rounding = \"stochastic\"",
     "the random words are defined for AdamW's two moments: use \"nearest\"", rounds_other_moments},
    {"all", "optimizer.state_rounding = \"stochastic\" without moments in bfloat16",
     "no others are rounded at random: set optimizer.state_dtype = \"bfloat16\"", rounds_nothing},
    {"Muon, GaLore2, Ranger21", "embedding, head, norms, biases and routers",
     "it updates matrices of layers alone: name it in optimizer.name", has_no_matrices},
    {"SGD", "optimizer.sgd.nesterov = true without momentum",
     "there is nothing to look ahead by: set optimizer.sgd.momentum", looks_nowhere},
    {"Ranger21", "training.dtype = \"bfloat16\"",
     "owners of matrices read masters in float32: set optimizer.state_dtype alone", reads_rounded_masters},
    {"Ranger21", "optimizer.ranger21.lookahead = true with states in bfloat16 or int8",
     "the slow weights are a state, and weights lose too much: set lookahead = false", rounds_slow_weights},
};
const int optimizer_conflicts_count = (int)ARRAY_SIZE(optimizer_conflicts);

titan_status optimizer_check(const struct recipe *r, struct titan_error *err)
{
    const struct optimizer *const of[] = {optimizer_of_matrices(r), optimizer_of_rest(r)};

    for (int i = 0; i < optimizer_conflicts_count; i++)
        for (int rest = 0; rest < (int)ARRAY_SIZE(of); rest++) {
            const struct optimizer_conflict *const c = &optimizer_conflicts[i];
            if (c->there(r, of[rest], rest))
                return titan_fail(err, TITAN_EINVAL, "optimizer.%s = \"%s\" does not go with %s: %s",
                                  rest && strcmp(r->optimizer.rest, of[rest]->name) == 0 ? "rest" : "name",
                                  of[rest]->name, c->with, c->reason);
        }
    return TITAN_OK;
}

bool optimizer_continues(const struct recipe *r, const struct recipe *there, struct buf *why)
{
    const struct optimizer *const ours[] = {optimizer_of_matrices(r), optimizer_of_rest(r)};
    const struct optimizer *const theirs[] = {optimizer_of_matrices(there), optimizer_of_rest(there)};
    const int group = ours[0] != theirs[0] ? 0 : 1;

    const bool apart = optimizer_keeps_residual(r) != optimizer_keeps_residual(there);

    if ((ours[group] == theirs[group] && !apart) || recipe_accepts(r, "optimizer"))
        return true;
    if (ours[group] == theirs[group]) { /* one of them has no residual */
        buf_printf(why, "parallelism.replicate_method = \"%s\", there \"%s\"", r->parallelism.replicate_method,
                   there->parallelism.replicate_method);
        return false;
    }
    buf_printf(why, "optimizer.%s = \"%s\", there \"%s\"", group == 0 ? "name" : "rest", ours[group]->name,
               theirs[group]->name);
    return false;
}
