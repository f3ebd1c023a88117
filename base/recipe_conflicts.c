/* SPDX-License-Identifier: Apache-2.0 */
#include "base/recipe_conflicts.h"

#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/optimizers.h"
#include "base/recipe_keys.h"

const struct recipe_conflict recipe_conflicts[] = {
    /* products */
    {"model.float8 = true", "model.mxfp8 = true",
     "a linear layer is in one of them: leave one out of model.converters"},
    {"model.float8 = true", "model.switchback = true",
     "a linear layer is in one of them: leave one out of model.converters"},
    {"model.mxfp8 = true", "model.switchback = true",
     "a linear layer is in one of them: leave one out of model.converters"},
    {"float8.recipe_name = \"rowwise_with_gw_hp\" with model.float8 = true",
     "float8.filter_fqns of \"auto_filter_small_kn\"",
     "its bounds are not known for this recipe: name the layers, or use \"rowwise\""},
    {"float8.scalify_refresh > 1", "model.float8 = false", "there are no scales to hold: use 1"},
    {"float8.scalify_refresh > 1", "float8.recipe_name other than \"scalify\"",
     "no other recipe holds scales: use 1, or \"scalify\""},
    /* weights that are gathered */
    {"float8.enable_fsdp_float8_all_gather = true with model.float8 = true",
     "float8.recipe_name other than \"tensorwise\" and \"scalify\"",
     "a scale per row or column fits one of a weight's two products: use \"tensorwise\" or \"scalify\""},
    {"float8.enable_fsdp_float8_all_gather = true with model.float8 = true", "parallelism.fsdp_gather_codec",
     "a gathered weight has one code: leave one of the two out"},
    {"parallelism.fsdp_gather_levels = \"learned\"", "parallelism.fsdp_gather_codec other than \"int6\" and \"int4\"",
     "16 or 64 levels are learned: use one of the two, or \"uniform\""},
    /* gradients that are reduced */
    {"parallelism.fsdp_reduce_codec other than \"none\" and \"f32\"", "numerics.canonical = true",
     "what codes lose depends on the number of workers: use \"f32\" or \"none\""},
    {"parallelism.fsdp_reduce_codec", "parallelism.fsdp_reduce = \"microbatch\"",
     "gradients are coded once a step: use \"step\" or \"default\""},
    {"parallelism.fsdp_reduce_rounding = \"stochastic\"",
     "parallelism.fsdp_reduce_codec other than \"int8\" and \"int4\"",
     "no other codes are rounded at random: use \"nearest\", or one of the two"},
    {"parallelism.fsdp_reduce_scale = \"tensor\"",
     "parallelism.fsdp_reduce_codec other than \"fp8\", \"int8\", \"int4\" and \"loco\"",
     "only codes of 4 or 8 bits have scales: use \"bucket\", or one of these"},
    /* replicas */
    {"parallelism.replicate_method", "parallelism.data_parallel_replicate_degree = 1",
     "there is nobody to send to: use \"all_reduce\", or 2 replicas or more"},
    {"parallelism.replicate_method other than \"all_reduce\", \"demo\" and \"full\"",
     "parallelism.replicate_values of another number than a power of two",
     "the 64 weights are shared out evenly: use a power of two"},
    {"Muon, GaLore2, Ranger21", "parallelism.replicate_method",
     "its directions are of the gradient of all replicas: use optimizer.name = \"SGD\""},
    {"StableAdamW", "parallelism.replicate_method with optimizer.stable_adamw.threshold > 0",
     "its bounds are of the gradient of all replicas: set the threshold to 0, or use \"SGD\""},
    {"parallelism.replicate_method", "training.dtype = \"bfloat16\"",
     "the residual is a state, and loses too much: use \"float32\""},
    {"parallelism.replicate_method", "optimizer.state_dtype other than \"float32\"",
     "the residual is a state, and loses too much: use \"float32\""},
    {"parallelism.replicate_method", "numerics.canonical = true",
     "results depend on the number of replicas: use \"all_reduce\""},
    {"parallelism.replicate_method", "training.enable_cpu_offload = true",
     "the residual is read before the commit point, and is not in host memory: use \"all_reduce\""},
    {"parallelism.replicate_method", "fault_tolerance.redundancy = \"buddy\"",
     "replicas are the copies: use \"auto\" or \"replica\""},
    {"parallelism.replicate_codec other than \"none\" and \"f32\"", "numerics.canonical = true",
     "what codes lose depends on the number of workers: use \"f32\" or \"none\""},
    {"parallelism.replicate_codec", "parallelism.data_parallel_replicate_degree = 1",
     "there is nobody to send to: use \"none\", or 2 replicas or more"},
    {"parallelism.replicate_codec", "parallelism.replicate_method",
     "replicas send each other sums, or parts of their directions: leave one of the two out"},
    {"fault_tolerance.redundancy = \"replica\"", "parallelism.data_parallel_replicate_degree = 1",
     "there are no replicas: use \"buddy\", or 2 replicas or more"},
    /* optimizers */
    {"all but AdamW, Adam, StableAdamW", "optimizer.state_rounding = \"stochastic\"",
     "the random words are defined for AdamW's two moments: use \"nearest\""},
    {"optimizer.state_rounding = \"stochastic\"", "moments in float32 or int8",
     "no others than bfloat16 are rounded at random: set optimizer.state_dtype = \"bfloat16\""},
    {"Muon, GaLore2, Ranger21", "embedding, head, norms, biases and routers",
     "it updates matrices of layers alone: name it in optimizer.name"},
    {"SGD", "optimizer.sgd.nesterov = true with optimizer.sgd.momentum = 0",
     "there is nothing to look ahead by: set optimizer.sgd.momentum"},
    {"Ranger21", "training.dtype = \"bfloat16\"",
     "owners of matrices read masters in float32: set optimizer.state_dtype alone"},
    {"Ranger21", "optimizer.ranger21.lookahead = true with moments in bfloat16 or int8",
     "the slow weights are a state, and weights lose too much: set it to false"},
    /* experts and modules on the mesh */
    {"parallelism.expert_tensor_parallel_degree > 1", "parallelism.tensor_parallel_degree of another number",
     "an expert is cut as the layer around it: use 1, or the same number"},
    {"parallelism.expert_tensor_parallel_degree > 1", "numerics.canonical = true",
     "sums are of whole experts, which it cuts: use 1"},
    {"model.mtp_layers > 0", "parallelism.pipeline_parallel_degree > 1",
     "a module has the embedding and the head, which are on two stages: use 1"},
    /* parts that go round */
    {"parallelism.rotate", "parallelism.tensor_parallel_degree > 1",
     "both cut the same matrices by heads and columns: use one of the two"},
    {"parallelism.rotate", "parallelism.pipeline_parallel_degree > 1",
     "a gradient goes round behind its microbatch's backward: use one of the two"},
    {"parallelism.rotate", "numerics.canonical = true", "each worker adds the parts in another order: use \"off\""},
    {"parallelism.rotate", "a converter of the model",
     "scales are of whole matrices, and a part is none: leave model.converters empty"},
    {"parallelism.rotate", "optimizer.state_dtype = \"int8\"",
     "blocks of codes are not the same in other parts: use \"bfloat16\""},
    {"Muon, GaLore2, Ranger21", "parallelism.rotate",
     "matrices go to their owners by ranges, not by parts: use \"off\""},
    {"parallelism.rotate", "parallelism.fsdp_reduce = \"step\"",
     "no worker keeps the whole gradient of a layer: use \"microbatch\""},
    {"parallelism.rotate", "parallelism.fsdp_reduce_codec",
     "no worker has the whole gradient of a layer to code: use \"none\""},
    {"parallelism.rotate", "parallelism.fsdp_gather_codec", "layers are not gathered: use \"none\""},
    {"parallelism.rotate", "parallelism.replicate_method",
     "what replicas send is of ranges, not of parts: use \"all_reduce\""},
    {"parallelism.rotate", "experts, multi-token prediction or latent attention",
     "parts are those of dense Llama 3 layers: use \"off\""},
    {"parallelism.rotate", "biases, attention sinks, or other norms than the two of Llama 3",
     "parts are those of dense Llama 3 layers: use \"off\""},
};
const int recipe_conflicts_count = (int)ARRAY_SIZE(recipe_conflicts);

/* --- phrases ------------------------------------------------------------------------------------------------------ */

/* What a phrase is asked about. */
struct asked {
    const struct recipe *r;
    bool rest; /* the row's optimizer is that of other parameters than layers' matrices */
};

static bool lists_small_layers(const struct asked *a)
{
    return recipe_filters_float8(a->r, "auto_filter_small_kn");
}

static bool is_no_power(const struct asked *a)
{
    const int64_t n = a->r->parallelism.replicate_values;

    return (n & (n - 1)) != 0;
}

static bool keeps_other_moments(const struct asked *a)
{
    return recipe_moment_bytes(a->r) != 2;
}

static bool keeps_small_moments(const struct asked *a)
{
    return recipe_moment_bytes(a->r) != 4;
}

static bool updates_the_rest(const struct asked *a)
{
    return a->rest;
}

static bool cuts_otherwise(const struct asked *a)
{
    return a->r->parallelism.tensor_parallel_degree != a->r->parallelism.expert_tensor_parallel_degree;
}

static bool converts(const struct asked *a)
{
    return a->r->model.float8 || a->r->model.mxfp8 || a->r->model.switchback;
}

static bool has_other_layers(const struct asked *a)
{
    const struct model_dims *const d = &a->r->model.dims;

    return d->n_experts > 0 || d->mtp_layers > 0 || d->kv_lora_rank > 0;
}

static bool has_other_tensors(const struct asked *a)
{
    const struct model_dims *const d = &a->r->model.dims;

    return d->qkv_bias || d->output_bias || d->mlp_bias || d->attention_sinks || d->qk_norm || d->output_norms ||
           d->no_input_norms;
}

static const struct {
    const char *text;
    bool (*holds)(const struct asked *a);
} phrases[] = {
    {"float8.filter_fqns of \"auto_filter_small_kn\"", lists_small_layers},
    {"parallelism.replicate_values of another number than a power of two", is_no_power},
    {"moments in float32 or int8", keeps_other_moments},
    {"moments in bfloat16 or int8", keeps_small_moments},
    {"embedding, head, norms, biases and routers", updates_the_rest},
    {"parallelism.tensor_parallel_degree of another number", cuts_otherwise},
    {"a converter of the model", converts},
    {"experts, multi-token prediction or latent attention", has_other_layers},
    {"biases, attention sinks, or other norms than the two of Llama 3", has_other_tensors},
};

/* --- settings ----------------------------------------------------------------------------------------------------- */

#define TERMS_MAX 2 /* of a setting, with "with" between them */

/* A term of a setting, read once. */
struct term {
    enum { TERM_PHRASE, TERM_OPTIMIZERS, TERM_DIFFERS, TERM_EQUAL, TERM_ABOVE, TERM_OTHER } kind;
    int index;          /* of the phrase, or of the key */
    const char *values; /* TERM_EQUAL, TERM_ABOVE: its value; TERM_OTHER: all; they end with the term */
    size_t len;         /* of the values */
};

struct condition {
    struct term term[TERMS_MAX];
    int n;
};

static struct condition conditions[ARRAY_SIZE(recipe_conflicts)][2]; /* setting, with */

/* The key whose name a text begins with; -1: none. *end: what follows it. */
static int leading_key(const char *text, const char **end)
{
    char section[64], *dot;
    const size_t n = strcspn(text, " ,");

    *end = text + n;
    if (n >= sizeof section)
        return -1;
    memcpy(section, text, n);
    section[n] = '\0';
    dot = strrchr(section, '.');
    if (!dot)
        return -1;
    *dot = '\0';
    return recipe_key_find(section, dot + 1);
}

static struct term read_term(const char *text, size_t len)
{
    static const struct {
        const char *sign;
        int kind;
    } signs[] = {{" = ", TERM_EQUAL}, {" > ", TERM_ABOVE}, {" other than ", TERM_OTHER}};
    struct term t = {.kind = TERM_OPTIMIZERS, .values = text, .len = len};
    const char *end;

    for (int i = 0; i < (int)ARRAY_SIZE(phrases); i++)
        if (strlen(phrases[i].text) == len && strncmp(phrases[i].text, text, len) == 0)
            return (struct term){.kind = TERM_PHRASE, .index = i};
    t.index = leading_key(text, &end);
    if (t.index < 0)
        return t;
    t.kind = TERM_DIFFERS;
    for (size_t i = 0; i < ARRAY_SIZE(signs); i++)
        if (strncmp(end, signs[i].sign, strlen(signs[i].sign)) == 0) {
            t.kind = signs[i].kind;
            t.values = end + strlen(signs[i].sign);
            t.len = (size_t)(text + len - t.values);
        }
    titan_assert(recipe_keys[t.index].support == KEY_SUPPORTED && (t.kind != TERM_DIFFERS || end == text + len));
    return t;
}

static void read_conditions(void)
{
    for (int i = 0; i < recipe_conflicts_count; i++)
        for (int side = 0; side < 2; side++) {
            struct condition *const c = &conditions[i][side];
            for (const char *at = side ? recipe_conflicts[i].with : recipe_conflicts[i].setting; *at;) {
                const char *const with = strstr(at, " with ");
                titan_assert(c->n < TERMS_MAX);
                c->term[c->n++] = read_term(at, with ? (size_t)(with - at) : strlen(at));
                at = with ? with + strlen(" with ") : at + strlen(at);
            }
        }
}

/* Is the key's value this one? */
static bool has_value(const struct recipe *r, int key, const char *value, size_t len)
{
    const struct setting *const k = &recipe_keys[key];
    const void *const field = (const char *)r + k->offset;

    if (k->type == KEY_STRING)
        return len >= 2 && strlen(field) == len - 2 && strncmp(field, value + 1, len - 2) == 0;
    if (k->type == KEY_BOOL)
        return *(const bool *)field == (*value == 't');
    if (k->type == KEY_REAL)
        return *(const double *)field == strtod(value, NULL);
    return *(const int64_t *)field == strtoll(value, NULL, 10);
}

/* Is the value in a list as "a, b and c"? */
static bool is_listed(const struct recipe *r, int key, const char *list, size_t len)
{
    for (const char *at = list, *const end = list + len; at < end;) {
        size_t n = 0, between = 0;
        while (at + n < end && !between) {
            between = strncmp(at + n, ", ", 2) == 0 ? 2 : strncmp(at + n, " and ", 5) == 0 ? 5 : 0;
            n += !between;
        }
        if (has_value(r, key, at, n))
            return true;
        at += n + between;
    }
    return false;
}

/* Is the optimizer among "A, B", "all" or "all but A, B"? */
static bool is_among(const struct optimizer *o, const char *list, size_t len)
{
    const bool all = strncmp(list, "all", 3) == 0;
    const size_t n = strlen(o->name);

    for (size_t i = 0; i + n <= len; i++)
        if (strncmp(list + i, o->name, n) == 0 && (i == 0 || list[i - 1] == ' ') &&
            (i + n == len || list[i + n] == ','))
            return !all;
    return all;
}

/* Does the recipe have the setting, by this optimizer where it names some? */
static bool holds(const struct condition *c, const struct asked *a, const struct optimizer *o)
{
    bool all = true;

    for (int i = 0; i < c->n && all; i++) {
        const struct term *const t = &c->term[i];
        const size_t at = t->kind == TERM_PHRASE || t->kind == TERM_OPTIMIZERS ? 0 : recipe_keys[t->index].offset;
        const void *const field = (const char *)a->r + at;
        switch (t->kind) {
        case TERM_PHRASE:
            all = phrases[t->index].holds(a);
            break;
        case TERM_OPTIMIZERS:
            all = is_among(o, t->values, t->len);
            break;
        case TERM_DIFFERS:
            all = memcmp(field, (const char *)recipe_defaults() + at, recipe_keys[t->index].size) != 0;
            break;
        case TERM_EQUAL:
            all = has_value(a->r, t->index, t->values, t->len);
            break;
        case TERM_ABOVE:
            all = (recipe_keys[t->index].type == KEY_REAL ? *(const double *)field : (double)*(const int64_t *)field) >
                  strtod(t->values, NULL);
            break;
        case TERM_OTHER:
            all = !is_listed(a->r, t->index, t->values, t->len);
            break;
        }
    }
    return all;
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

/* Writes a setting as the recipe has it: a key with its value, and what follows "with". */
static void put_setting(const char *text, const struct asked *a, const struct optimizer *o, struct buf *out)
{
    const char *end, *const with = strstr(text, " with ");
    const int key = leading_key(text, &end);

    if (key >= 0) {
        buf_printf(out, "%s.%s = ", recipe_keys[key].section, recipe_keys[key].name);
        setting_print(&recipe_keys[key], (const char *)a->r + recipe_keys[key].offset, out);
        buf_puts(out, with ? with : "");
    } else if (isupper((unsigned char)*text) || strncmp(text, "all", 3) == 0) {
        const bool named = a->rest && strcmp(a->r->optimizer.rest, o->name) == 0;
        buf_printf(out, "optimizer.%s = \"%s\"", named ? "rest" : "name", o->name);
    } else {
        buf_puts(out, text);
    }
}

titan_status recipe_check_conflicts(const struct recipe *r, struct titan_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const struct optimizer *const of[] = {optimizer_of_matrices(r), optimizer_of_rest(r)};

    (void)pthread_once(&once, read_conditions);
    for (int i = 0; i < recipe_conflicts_count; i++)
        for (int rest = 0; rest < (int)ARRAY_SIZE(of); rest++) {
            const struct recipe_conflict *const c = &recipe_conflicts[i];
            const struct asked a = {.r = r, .rest = rest};
            _cleanup_(buf_free) struct buf text = BUF_INIT;
            if (!holds(&conditions[i][0], &a, of[rest]) || !holds(&conditions[i][1], &a, of[rest]))
                continue;
            put_setting(c->setting, &a, of[rest], &text);
            buf_puts(&text, " does not go with ");
            put_setting(c->with, &a, of[rest], &text);
            return titan_fail(err, TITAN_EINVAL, "%s: %s", text.len ? text.data : c->setting, c->reason);
        }
    return TITAN_OK;
}

bool recipe_continues_state(const struct recipe *r, const struct recipe *there, struct buf *why)
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
