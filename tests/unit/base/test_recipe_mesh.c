/* SPDX-License-Identifier: Apache-2.0 */
/* Meshes, legal worlds, stages: what is refused and how it is said; random recipes against a plain second reading of
 * the rules. SEED=n replays one draw. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/recipe.h"
#include "base/recipe_keys.h"
#include "base/rng.h"

static struct recipe parse(const char *text)
{
    struct recipe r;
    struct titan_error err = {0};
    recipe_init(&r);
    if (recipe_parse(&r, text, "f", &err) != TITAN_OK || recipe_resolve(&r, &err) != TITAN_OK)
        fail_msg("%s\n%s", err.msg, text);
    return r;
}

static void legal(const struct recipe *r, int64_t world)
{
    struct titan_error err = {0};
    if (recipe_check_world(r, world, &err) != TITAN_OK)
        fail_msg("%lld workers: %s", (long long)world, err.msg);
}

static void refused(const struct recipe *r, int64_t world, const char *msg)
{
    struct titan_error err = {0};
    assert_int_equal(recipe_check_world(r, world, &err), TITAN_EINVAL);
    assert_string_equal(err.msg, msg);
}

/* --- plain data parallelism --------------------------------------------------------------------------------------- */

static void test_world(void **state)
{
    (void)state;
    struct recipe r = parse("[training]\nlocal_batch_size = 4\nglobal_batch_size = 12\n"
                            "[elastic]\nmin_workers = 2\nmax_workers = 8\n");
    legal(&r, 2);
    legal(&r, 3);
    refused(&r, 4,
            "training.global_batch_size = 12 makes 3 microbatches of 4 sequences: too few for 4 data-parallel "
            "ranks; use at least 16");
    refused(&r, 1, "1 workers are outside elastic.min_workers = 2 to elastic.max_workers = 8; nearest: 2");
    refused(&r, 9, "9 workers are outside elastic.min_workers = 2 to elastic.max_workers = 8; nearest: 3");
    refused(&r, 0, "0 workers: at least 1 is needed");
    assert_int_equal(recipe_fit_world(&r, 100), 3);
    assert_int_equal(recipe_fit_world(&r, 2), 2);
    assert_int_equal(recipe_fit_world(&r, 1), 0);
}

static struct recipe_mesh mesh(const struct recipe *r, int64_t world)
{
    struct recipe_mesh m = {0};
    struct titan_error err = {0};
    if (recipe_mesh(r, world, &m, &err) != TITAN_OK)
        fail_msg("%lld workers: %s", (long long)world, err.msg);
    return m;
}

/* The shard degree gives way first, then the replicas; the other degrees never. */
static void test_mesh(void **state)
{
    (void)state;
    struct recipe r = parse("[training]\nglobal_batch_size = 64\n[parallelism]\ndata_parallel_replicate_degree = 2\n"
                            "data_parallel_shard_degree = 4\ntensor_parallel_degree = 2\n");
    assert_int_equal(r.elastic.max_workers, 16);
    assert_int_equal(r.elastic.min_workers, 2);
    static const struct {
        int64_t world, replicate, shard;
    } cases[] = {{16, 2, 4}, {12, 2, 3}, {8, 2, 2}, {6, 1, 3}, {4, 2, 1}, {2, 1, 1}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct recipe_mesh m = mesh(&r, cases[i].world);
        assert_int_equal(m.dp_replicate, cases[i].replicate);
        assert_int_equal(m.dp_shard, cases[i].shard);
        assert_int_equal(m.tp, 2);
        assert_int_equal(m.pp * m.cp * m.ep, 1);
    }
    r.training.local_batch_size = 1;
    refused(&r, 7, "parallelism.tensor_parallel_degree = 2 does not divide 7 workers; nearest: 6 or 8");
    refused(&r, 14,
            "parallelism.data_parallel_replicate_degree * data_parallel_shard_degree * tensor_parallel_degree = "
            "2 * 4 * 2 does not fit 14 workers; nearest: 12, or parallelism.data_parallel_shard_degree = -1");
    assert_int_equal(recipe_fit_world(&r, 15), 12);
    assert_int_equal(recipe_fit_world(&r, 11), 8);
    assert_int_equal(recipe_fit_world(&r, 1), 0);
    r.elastic.min_workers = 1; /* below a rank's workers */
    refused(&r, 1, "parallelism.tensor_parallel_degree = 2 does not divide 1 workers; nearest: 2");
}

/* --- refusals, key by key ----------------------------------------------------------------------------------------- */

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *msg; /* on elastic.max_workers */
    } cases[] = {
        {"[parallelism]\ntensor_parallel_degree = 3\n",
         "parallelism.tensor_parallel_degree = 3 does not divide model.n_heads = 16; nearest: 2"},
        {"[model]\nn_kv_heads = 2\n[parallelism]\ntensor_parallel_degree = 4\n",
         "parallelism.tensor_parallel_degree = 4 does not divide model.n_kv_heads = 2; nearest: 2"},
        {"[model]\nvocab_size = 2050\n[parallelism]\ntensor_parallel_degree = 4\n",
         "parallelism.tensor_parallel_degree = 4 does not divide model.vocab_size = 2050; nearest: 2"},
        {"[model]\nffn_hidden = 770\n[parallelism]\ntensor_parallel_degree = 4\n",
         "parallelism.tensor_parallel_degree = 4 does not divide model.ffn_hidden = 770; nearest: 2"},
        {"[training]\nseq_len = 1022\n[parallelism]\ntensor_parallel_degree = 4\n",
         "parallelism.tensor_parallel_degree = 4 does not divide training.seq_len = 1022; nearest: 2"},
        {"[training]\nseq_len = 1020\n[parallelism]\ntensor_parallel_degree = 2\ncontext_parallel_degree = 2\n",
         "training.seq_len = 1020 is not a multiple of 8, for parallelism.context_parallel_degree = 2 and "
         "tensor_parallel_degree = 2; nearest: 1024"},
        {"[training]\nseq_len = 6\n[parallelism]\ncontext_parallel_degree = 2\n",
         "training.seq_len = 6 is not a multiple of 4, for parallelism.context_parallel_degree = 2 and "
         "tensor_parallel_degree = 1; nearest: 8"},
        {"[parallelism]\npipeline_parallel_degree = 9\n",
         "parallelism.pipeline_parallel_degree = 9 with 1F1B makes 9 stages of 8 layers (model.n_layers = 6, embedding "
         "and head); nearest: 8"},
        {"[parallelism]\npipeline_parallel_degree = 5\npipeline_parallel_schedule = \"Interleaved1F1B\"\n",
         "parallelism.pipeline_parallel_degree = 5 with Interleaved1F1B makes 10 stages of 8 layers (model.n_layers = "
         "6, "
         "embedding and head); nearest: 4"},
        {"[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_layers_per_stage = 2\n",
         "parallelism.pipeline_parallel_layers_per_stage makes 4 stages, but pipeline_parallel_schedule = \"1F1B\" on "
         "2 "
         "ranks has 2; nearest: 2 stages"},
        {"[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = \"Interleaved1F1B\"\n"
         "pipeline_parallel_split_points = [\"layers.2\", \"layers.4\"]\n",
         "parallelism.pipeline_parallel_split_points makes 3 stages, but pipeline_parallel_schedule = "
         "\"Interleaved1F1B\" on 2 ranks has a multiple of 2; nearest: 2 stages"},
        {"[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_split_points = [\"layers.7\"]\n",
         "parallelism.pipeline_parallel_split_points: layers.7 is none of the 6 layers; nearest: layers.5"},
        {"[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_first_stage_less_layers = 4\n",
         "parallelism.pipeline_parallel_first_stage_less_layers = 4 is more than the 2 layers of a stage; nearest: 2"},
        {"[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = \"PipelineScheduleMulti\"\n",
         "parallelism.pipeline_parallel_schedule = \"PipelineScheduleMulti\" needs "
         "parallelism.pipeline_parallel_schedule_csv"},
        {"[parallelism]\nexpert_parallel_degree = 2\n[elastic]\nmax_workers = 2\n",
         "parallelism.expert_parallel_degree = 2: model.flavor = \"debugmodel\" of llama3 has no experts; nearest: 1"},
        {"[model]\nname = \"llama3_moe\"\n[parallelism]\nexpert_parallel_degree = 3\n[elastic]\nmax_workers = 6\n",
         "parallelism.expert_parallel_degree = 3 does not divide model.n_experts = 8; nearest: 2"},
        {"[model]\nname = \"llama3_moe\"\n[training]\nlocal_batch_size = 1\nglobal_batch_size = 10\n[parallelism]\n"
         "expert_parallel_degree = 2\n[elastic]\nmax_workers = 4\n",
         "training.global_batch_size = 10 makes 10 microbatches for 4 data-parallel ranks, which share experts "
         "(parallelism.expert_parallel_degree = 2) and need equally many; nearest: 12"},
        {"[model]\nname = \"llama3_moe\"\n[training]\nseq_len = 48\n[parallelism]\ncontext_parallel_degree = 3\n"
         "expert_parallel_degree = 2\n[elastic]\nmax_workers = 6\n[numerics]\ncanonical = true\n",
         "numerics.canonical = true needs parallelism.expert_parallel_degree = 2 to be a divisor or a multiple of "
         "context_parallel_degree x tensor_parallel_degree = 3; nearest: 1"},
        {"[model]\nname = \"llama3_moe\"\n[parallelism]\nexpert_parallel_degree = 4\n[elastic]\nmax_workers = 6\n",
         "parallelism.expert_parallel_degree = 4 does not divide dp_shard * cp * tp = 6 * 1 * 1; nearest: 2"},
        {"[parallelism]\ntensor_parallel_degree = 2\nexpert_tensor_parallel_degree = 2\n[elastic]\nmax_workers = 2\n",
         "parallelism.expert_tensor_parallel_degree = 2: model.flavor = \"debugmodel\" of llama3 has no experts; "
         "nearest: 1"},
        {"[model]\nname = \"llama3_moe\"\nmoe_hidden = 129\nn_shared_experts = "
         "0\n[parallelism]\ntensor_parallel_degree = 2\n"
         "expert_tensor_parallel_degree = 2\n[elastic]\nmax_workers = 2\n",
         "parallelism.expert_tensor_parallel_degree = 2 does not divide model.moe_hidden = 129; nearest: 1"},
        {"[model]\nname = \"llama3_moe\"\n[parallelism]\ntensor_parallel_degree = 2\nexpert_tensor_parallel_degree = "
         "2\n"
         "expert_parallel_degree = 4\n[elastic]\nmax_workers = 4\n",
         "parallelism.expert_parallel_degree = 4 does not divide dp_shard * cp = 2 * 1, over which experts are split "
         "with "
         "expert_tensor_parallel_degree = 2; nearest: 2"},
        {"[model]\nname = \"llama3_moe\"\nmoe_hidden = 255\n[parallelism]\ntensor_parallel_degree = 2\n",
         "parallelism.tensor_parallel_degree = 2 does not divide model.n_shared_experts * moe_hidden = 255; nearest: "
         "1"},
        {"[training]\nglobal_batch_size = 65536\n[parallelism]\npipeline_parallel_degree = 2\n",
         "training.global_batch_size = 65536 makes 65536 microbatches a rank; a pipeline of 2 stages takes at most "
         "4096; "
         "nearest: 4096"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct recipe r = parse(cases[i].text);
        refused(&r, r.elastic.max_workers, cases[i].msg);
    }
}

/* What a refusal is about: the first key with a number, or "workers"; and what it suggests in its place. */
static bool suggestion(const char *msg, char ret_key[128], long long *ret_value)
{
    const char *nearest = strstr(msg, "; nearest: ");
    int n = 0;
    if (!nearest || sscanf(nearest, "; nearest: %lld%n", ret_value, &n) != 1 || strncmp(nearest + n, " stages", 7) == 0)
        return false;
    (void)snprintf(ret_key, 128, "workers");
    if (strstr(msg, "workers; nearest") || strstr(msg, "workers are outside"))
        return true;
    for (const char *at = msg; (at = strstr(at, " = ")); at++) {
        const char *begin = at;
        long long unused;
        while (begin > msg && begin[-1] != ' ')
            begin--;
        if (memchr(begin, '.', (size_t)(at - begin)) && sscanf(at, " = %lld", &unused) == 1) {
            (void)snprintf(ret_key, 128, "%.*s", (int)(at - begin), begin);
            return true;
        }
    }
    return false;
}

/* A value that a refusal suggests is taken, or refused for another key. */
static void test_suggestions(void **state)
{
    (void)state;
    const int few[] = {1, 1, 2, 3, 4, 5, 6, 8};
    int taken = 0;
    for (uint64_t seed = 0; seed < 20000; seed++) {
        const struct rng_key rng = rng_key(seed, "suggestions");
        uint32_t w[12];
        for (uint64_t i = 0; i < 3; i++)
            rng_philox(rng, i, 0, w + 4 * i);
        char set[14][96];
        int n = 0;
#define SET(...) (void)snprintf(set[n++], sizeof(set[0]), __VA_ARGS__)
#define FEW(i) few[w[i] % ARRAY_SIZE(few)]
        const long long least = 1 + w[0] % 9, most = least + w[1] % 24;
        SET("model.name=%s", w[2] % 2 ? "llama3_moe" : "llama3");
        SET("training.seq_len=%d", 16 * FEW(3));
        SET("training.local_batch_size=1");
        SET("training.global_batch_size=%d", 8 + (int)(w[4] % 40));
        SET("numerics.canonical=%s", w[2] & 2 ? "true" : "false");
        SET("parallelism.tensor_parallel_degree=%d", w[2] & 12 ? 1 : FEW(5));
        SET("parallelism.context_parallel_degree=%d", w[2] & 48 ? 1 : FEW(6));
        SET("parallelism.expert_parallel_degree=%d", w[2] % 2 ? FEW(7) : 1);
        SET("parallelism.pipeline_parallel_degree=%d", w[2] & 64 ? 1 : FEW(8));
        SET("parallelism.pipeline_parallel_first_stage_less_layers=%d", (int)(w[9] % 6));
        SET("parallelism.pipeline_parallel_last_stage_less_layers=%d", (int)(w[9] / 6 % 6));
        SET("parallelism.data_parallel_replicate_degree=%d", FEW(10));
        SET("elastic.min_workers=%lld", least);
        SET("elastic.max_workers=%lld", most);
        struct recipe r;
        struct titan_error err = {0}, again = {0};
        char key[128], other[128], value[192];
        long long nearest, ignored, world = 1 + w[11] % (uint32_t)(most + 4);
        for (int second = 0; second < 2; second++) {
            recipe_init(&r);
            for (int i = 0; i < n; i++)
                assert_int_equal(recipe_set(&r, set[i], NULL), TITAN_OK);
            if (second && strcmp(key, "workers") != 0)
                assert_int_equal(recipe_set(&r, value, NULL), TITAN_OK);
            struct titan_error *to = second ? &again : &err;
            if (recipe_resolve(&r, to) == TITAN_OK)
                (void)!recipe_check_world(&r, second && strcmp(key, "workers") == 0 ? nearest : world, to);
            if (!second && !suggestion(err.msg, key, &nearest))
                break;
            (void)snprintf(value, sizeof(value), "%s=%lld", key, nearest);
            if (!second)
                continue;
            taken++;
            if (suggestion(again.msg, other, &ignored) && strcmp(key, other) == 0)
                fail_msg("draw %llu: %s\nthen: %s", (unsigned long long)seed, err.msg, again.msg);
        }
    }
    assert_true(taken > 1000);
}

/* --- stages ------------------------------------------------------------------------------------------------------- */

/* Bounds as TorchTitan's rule gives them, worked out by hand. */
static void test_split(void **state)
{
    (void)state;
    static const struct {
        int64_t layers, first, last;
        int stages, bounds[18];
    } cases[] = {
        {6, 1, 1, 1, {0, 6}},
        {6, 1, 1, 2, {0, 3, 6}},
        {6, 1, 1, 3, {0, 2, 5, 6}},
        {6, 1, 1, 4, {0, 1, 3, 5, 6}},
        {6, 1, 1, 6, {0, 1, 3, 4, 5, 6, 6}},       /* the last one is the head alone */
        {6, 1, 1, 8, {0, 0, 1, 2, 3, 4, 5, 6, 6}}, /* and the first one the embedding alone */
        {6, 0, 0, 4, {0, 2, 4, 5, 6}},
        {32, 1, 1, 4, {0, 8, 17, 25, 32}},
        {126, 1, 1, 8, {0, 15, 31, 47, 63, 79, 95, 111, 126}},
        {126, 1, 1, 16, {0, 7, 15, 23, 31, 39, 47, 55, 63, 71, 79, 87, 95, 103, 111, 119, 126}},
        {30, 2, 4, 4, {0, 7, 16, 25, 30}},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct recipe r = parse("");
        int bounds[32];
        r.model.dims.n_layers = cases[i].layers;
        r.parallelism.pipeline_parallel_first_stage_less_layers = cases[i].first;
        r.parallelism.pipeline_parallel_last_stage_less_layers = cases[i].last;
        assert_int_equal(recipe_split_layers(&r, cases[i].stages, bounds, NULL), TITAN_OK);
        for (int s = 0; s <= cases[i].stages; s++)
            if (bounds[s] != cases[i].bounds[s])
                fail_msg("case %zu: stage %d begins at %d, not %d", i, s, bounds[s], cases[i].bounds[s]);
    }
}

static void test_stages(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int stages, bounds[10];
    } cases[] = {
        {"", 1, {0, 6}},
        {"pipeline_parallel_degree = 2\n", 2, {0, 3, 6}},
        {"pipeline_parallel_degree = 2\npipeline_parallel_schedule = \"Interleaved1F1B\"\n", 4, {0, 1, 3, 5, 6}},
        {"pipeline_parallel_degree = 2\npipeline_parallel_schedule = \"Interleaved1F1B\"\n"
         "pipeline_parallel_layers_per_stage = 2\n",
         4,
         {0, 1, 3, 5, 6}},
        {"pipeline_parallel_degree = 2\npipeline_parallel_schedule = \"Interleaved1F1B\"\n"
         "pipeline_parallel_layers_per_stage = 4\n",
         2,
         {0, 3, 6}},
        {"pipeline_parallel_degree = 4\npipeline_parallel_schedule = \"InterleavedZeroBubble\"\n",
         8,
         {0, 0, 1, 2, 3, 4, 5, 6, 6}},
        {"pipeline_parallel_degree = 4\npipeline_parallel_schedule = \"Interleaved1F1B\"\n"
         "pipeline_parallel_layers_per_stage = 1\n",
         8,
         {0, 0, 1, 2, 3, 4, 5, 6, 6}},
        {"pipeline_parallel_degree = 2\npipeline_parallel_split_points = [\"layers.1\"]\n", 2, {0, 1, 6}},
        {"pipeline_parallel_degree = 3\npipeline_parallel_split_points = \"layers.0,layers.6\"\n", 3, {0, 0, 6, 6}},
        {"pipeline_parallel_degree = 3\nmodule_fqns_per_model_part = [[\"tok_embeddings\", \"layers.0\"], "
         "[\"layers.1\", \"layers.2\", \"layers.3\"], [\"layers.4\", \"layers.5\", \"norm\", \"output\"]]\n",
         3,
         {0, 1, 4, 6}},
        {"pipeline_parallel_degree = 3\nmodule_fqns_per_model_part = [[\"tok_embeddings\"], "
         "[\"layers.0\", \"layers.1\", \"layers.2\", \"layers.3\", \"layers.4\", \"layers.5\"], [\"norm\", "
         "\"output\"]]\n",
         3,
         {0, 0, 6, 6}},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char text[512];
        int stages = 0, bounds[16];
        snprintf(text, sizeof(text), "[parallelism]\n%s", cases[i].text);
        struct recipe r = parse(text);
        assert_int_equal(recipe_stages(&r, &stages, NULL), TITAN_OK);
        assert_int_equal(stages, cases[i].stages);
        assert_int_equal(recipe_split_layers(&r, stages, bounds, NULL), TITAN_OK);
        for (int s = 0; s <= stages; s++)
            assert_int_equal(bounds[s], cases[i].bounds[s]);
        legal(&r, r.elastic.max_workers);
    }
}

/* --- schedules from a file ---------------------------------------------------------------------------------------- */

static titan_status check_csv(const char *csv, struct titan_error *err)
{
    char path[] = "/tmp/titan-schedule-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(file_replace(path, csv, strlen(csv), NULL), TITAN_OK);
    struct recipe r = parse("[training]\nlocal_batch_size = 2\n[parallelism]\npipeline_parallel_degree = 2\n"
                            "pipeline_parallel_schedule = \"PipelineScheduleSingle\"\n");
    snprintf(r.parallelism.pipeline_parallel_schedule_csv, sizeof(r.parallelism.pipeline_parallel_schedule_csv), "%s",
             path);
    titan_status status = recipe_check_world(&r, 2, err);
    unlink(path);
    return status;
}

static void test_csv(void **state)
{
    (void)state;
    struct titan_error err = {0};
    if (check_csv("0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n", &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    /* the second backward of stage 0 is missing */
    assert_int_equal(check_csv("0F0,0F1,,0B0,,\n,1F0,1B0,1F1,1B1,\n", &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "parallelism.pipeline_parallel_schedule_csv: "));
    /* each waits for the other: stage 0 for the gradient of its first microbatch, stage 1 for the second microbatch */
    assert_int_equal(check_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "parallelism.pipeline_parallel_schedule_csv: "));
    struct recipe r = parse("[parallelism]\npipeline_parallel_degree = 2\n"
                            "pipeline_parallel_schedule_csv = \"/nowhere/schedule.csv\"\n");
    assert_int_equal(recipe_check_world(&r, 2, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "/nowhere/schedule.csv"));
}

/* --- random recipes ----------------------------------------------------------------------------------------------- */

static uint64_t seed;
static uint32_t drawn;

static int64_t draw(int64_t below)
{
    uint32_t words[4];
    rng_philox(rng_key(seed, "mesh"), drawn++, 0, words);
    return words[0] % (uint32_t)below;
}

static int64_t pick(const int64_t *values, size_t n)
{
    return values[draw((int64_t)n)];
}
#define PICK(...) pick((const int64_t[]){__VA_ARGS__}, ARRAY_SIZE(((const int64_t[]){__VA_ARGS__})))

/* The rules once more, by search instead of arithmetic; schedules are 1F1B or GPipe here, which any m suits. */
static bool plainly_legal(const struct recipe *r, int64_t world)
{
    const struct model_dims *d = &r->model.dims;
    int64_t pp = r->parallelism.pipeline_parallel_degree, cp = r->parallelism.context_parallel_degree;
    int64_t tp = r->parallelism.tensor_parallel_degree, ep = r->parallelism.expert_parallel_degree, dp = 0, shard = 0;
    for (int64_t n = 1; n <= r->parallelism.data_parallel_replicate_degree; n++)
        for (int64_t s = 1; s <= world; s++)
            if (n * s * pp * cp * tp == world &&
                (r->parallelism.data_parallel_shard_degree == -1 || s <= r->parallelism.data_parallel_shard_degree)) {
                dp = n * s;
                shard = s; /* the last n is the largest */
            }
    if (dp == 0 || world < r->elastic.min_workers || world > r->elastic.max_workers)
        return false;
    if (d->n_heads % tp || d->n_kv_heads % tp || d->vocab_size % tp || d->ffn_hidden % tp ||
        (d->n_shared_experts * d->moe_hidden % tp))
        return false;
    int64_t rows = pp > 1 ? r->parallelism.pipeline_parallel_microbatch_size : r->training.local_batch_size;
    if (r->training.seq_len % tp || (cp > 1 && r->training.seq_len % (2 * cp * tp)) || pp > d->n_layers + 2 ||
        r->training.global_batch_size / rows < dp)
        return false;
    if (ep > 1 && cp * tp % ep && r->training.global_batch_size / rows % dp)
        return false;
    return ep == 1 || (d->n_experts && d->n_experts % ep == 0 && shard * cp * tp % ep == 0);
}

static bool draw_recipe(struct recipe *r)
{
    static const char *const families[] = {"llama3", "llama3_moe", "qwen3"};
    recipe_init(r);
    snprintf(r->model.name, sizeof(r->model.name), "%s", families[draw(3)]);
    snprintf(r->model.flavor, sizeof(r->model.flavor), "%s", draw(2) ? "debugmodel" : "tiny");
    snprintf(r->parallelism.pipeline_parallel_schedule, sizeof(r->parallelism.pipeline_parallel_schedule), "%s",
             draw(2) ? "1F1B" : "GPipe");
    r->parallelism.pipeline_parallel_degree = PICK(1, 1, 2, 3, 8);
    r->parallelism.context_parallel_degree = PICK(1, 1, 2, 4);
    r->parallelism.tensor_parallel_degree = PICK(1, 1, 2, 3, 4);
    r->parallelism.expert_parallel_degree = PICK(1, 1, 2, 3, 4);
    r->parallelism.data_parallel_replicate_degree = PICK(1, 1, 2, 3);
    r->parallelism.data_parallel_shard_degree = PICK(-1, -1, 1, 2, 3, 4);
    r->parallelism.pipeline_parallel_microbatch_size = PICK(1, 2);
    r->training.local_batch_size = PICK(1, 2, 4);
    r->training.global_batch_size = PICK(-1, 8, 12, 64);
    r->training.seq_len = PICK(32, 48, 50, 64);
    return recipe_resolve(r, NULL) == TITAN_OK;
}

static void test_random(void **state)
{
    (void)state;
    const char *given = getenv("SEED");
    uint64_t first = given ? strtoull(given, NULL, 0) : 20261121;
    int draws = given ? 1 : 400, legal_worlds = 0;
    for (int i = 0; i < draws; i++) {
        struct recipe r;
        int64_t best = 0;
        seed = first + (uint64_t)i;
        drawn = 0;
        if (!draw_recipe(&r))
            continue;
        for (int64_t world = 1; world <= 40; world++) {
            struct titan_error err = {0};
            struct recipe_mesh m;
            bool ok = recipe_check_world(&r, world, &err) == TITAN_OK;
            if (ok != plainly_legal(&r, world))
                fail_msg("SEED=%llu: %lld workers: %s", (unsigned long long)seed, (long long)world,
                         ok ? "legal, should not be" : err.msg);
            if (ok) {
                best = world;
                legal_worlds++;
                assert_int_equal(recipe_mesh(&r, world, &m, NULL), TITAN_OK);
                assert_int_equal(m.pp * m.dp_replicate * m.dp_shard * m.cp * m.tp, world);
            }
            assert_int_equal(recipe_fit_world(&r, world), best);
        }
    }
    printf("# SEED=%llu: %d legal worlds in %d draws\n", (unsigned long long)first, legal_worlds, draws);
    assert_true(given || legal_worlds > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world),       cmocka_unit_test(test_mesh),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_split),       cmocka_unit_test(test_stages), cmocka_unit_test(test_csv),
        cmocka_unit_test(test_suggestions), cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
