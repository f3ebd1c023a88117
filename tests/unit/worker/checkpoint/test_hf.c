/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of transformers: every family in and out again, whatever type and number of files; and folders that are none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bf16.h"
#include "base/cleanup.h"
#include "base/f16.h"
#include "base/file.h"
#include "base/vec.h"
#include "tests/support/root_dir.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/hf_export.h"
#include "worker/checkpoint/hf_weights.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/trained.h"
#include "worker/tensor/layout.h"

/* --- a folder of weights ------------------------------------------------------------------------------------------ */

struct tensor {
    char name[HF_NAME_MAX];
    int64_t shape[3];
    int ndim;
};
struct folder {
    const struct hf_family *family;
    struct model *model;
    struct tensor *tensors;
    size_t n, cap;
};

static void add(struct folder *f, const char *name, int ndim, const int64_t *shape)
{
    struct tensor t = {.ndim = ndim};
    memcpy(t.shape, shape, (size_t)ndim * sizeof *shape);
    (void)snprintf(t.name, sizeof t.name, "%s", name);
    assert_true(VEC_PUSH(f->tensors, f->n, f->cap, t));
}

static struct folder folder_of(const char *family, const char *set)
{
    struct recipe r;
    struct titan_error err = {0};
    struct folder f = {0};
    char key[64], name[HF_NAME_MAX];
    recipe_init(&r);
    /* A family without sizes has Llama's. */
    const bool own = strstr("llama3 llama3_moe qwen3 deepseek_v3", family) != NULL;
    (void)snprintf(key, sizeof key, "model.name=%s", own ? family : "llama3");
    assert_int_equal(recipe_set(&r, key, &err), TITAN_OK);
    assert_int_equal(recipe_set(&r, "model.flavor=tiny", &err), TITAN_OK);
    for (const char *at = set; at && *at; at += strcspn(at, " "), at += strspn(at, " ")) {
        char one[96];
        (void)snprintf(one, sizeof one, "%.*s", (int)strcspn(at, " "), at);
        if (recipe_set(&r, one, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
    }
    if (recipe_resolve(&r, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    if (strcmp(r.model.dims.rope_scaling, "none") == 0) /* numbers of no use are not written */
        r.model.dims.rope_factor = r.model.dims.rope_beta_fast = r.model.dims.rope_beta_slow =
            r.model.dims.rope_mscale = r.model.dims.rope_mscale_all_dim =
                (double)(r.model.dims.rope_original_length = 0);
    if (r.model.dims.kv_lora_rank > 0)
        r.model.dims.latent_norm_eps = 1e-6; /* as transformers has it */
    r.model.dims.expert_bias |= r.model.dims.balance_rate > 0 && r.model.dims.sigmoid_scores;
    if (model_open(&r.model.dims, &f.model, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    if (hf_family_of(&f.model->dims, family, &f.family, &err) != TITAN_OK)
        f.family = hf_family_of_type("llama");
    for (int i = 0; i < f.model->n_tensors; i++) {
        struct hf_tensor t;
        hf_find(f.family, f.model, i, false, &t);
        for (int part = 0; part < (t.stacked ? 1 : t.parts) && t.from == 0; part++) {
            hf_name(f.family, f.model, i, part, name);
            add(&f, name, t.ndim, t.shape);
        }
    }
    for (int64_t l = 0; layout_biases(f.model) > 0 && l < model_all_layers(f.model); l++) {
        if (l < f.model->dims.n_dense_layers)
            continue;
        hf_bias_name(f.family, (int)l, name);
        add(&f, name, 1, &f.model->dims.n_experts);
    }
    return f;
}

static void clear(struct folder *f)
{
    model_close(f->model);
    free(f->tensors);
}

static int64_t numel(const struct tensor *t)
{
    return t->shape[0] * (t->ndim > 1 ? t->shape[1] : 1) * (t->ndim > 2 ? t->shape[2] : 1);
}

/* Small whole numbers and halves, which every type has exactly; no two rows of a tensor alike. */
static float value_of(size_t tensor, int64_t i)
{
    return (float)((tensor * 131 + (uint64_t)i * 7 + (uint64_t)i / 64 * 3) % 255) / 2 - 60;
}

static void write_shard(const struct folder *f, const char *dir, const char *name, const char *dtype, size_t from,
                        size_t to)
{
    struct safetensors_entry *entries = calloc(to - from + 1, sizeof *entries);
    struct safetensors_writer *w = NULL;
    struct titan_error err = {0};
    char path[PATH_MAX];
    uint64_t bytes;
    uint32_t crc;
    for (size_t i = from; i < to; i++)
        entries[i - from] = (struct safetensors_entry){
            .name = f->tensors[i].name,
            .dtype = dtype,
            .shape = {f->tensors[i].shape[0], f->tensors[i].shape[1], f->tensors[i].shape[2]},
            .ndim = f->tensors[i].ndim};
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(
        safetensors_create(AT_FDCWD, path, &(struct safetensors_header){entries, to - from, "pt"}, &w, &err), TITAN_OK);
    for (size_t i = from; i < to; i++) {
        float *data = malloc((size_t)numel(&f->tensors[i]) * sizeof *data);
        for (int64_t k = 0; k < numel(&f->tensors[i]); k++)
            data[k] = value_of(i, k);
        assert_int_equal(
            safetensors_append_floats(w, f->tensors[i].name, dtype, data, (size_t)numel(&f->tensors[i]), &err),
            TITAN_OK);
        free(data);
    }
    assert_int_equal(safetensors_finish(w, &bytes, &crc, &err), TITAN_OK);
    free(entries);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(file_replace(path, text, strlen(text), NULL), TITAN_OK);
}

static void write_config(const struct folder *f, const char *dir)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text};
    json_begin_object(&w, NULL);
    hf_config_put(&w, f->family, &f->model->dims, 128);
    json_end_object(&w);
    assert_int_equal(buf_append(&text, "", 1), TITAN_OK);
    write_text(dir, "config.json", text.data);
}

/* files: 1, or so many with an index. */
static const char *write_weights(const struct folder *f, const char *name, const char *dtype, size_t files)
{
    const char *dir = root_path(name);
    _cleanup_(buf_free) struct buf index = BUF_INIT;
    char shard[64];
    assert_int_equal(dir_make(dir, NULL), TITAN_OK);
    write_config(f, dir);
    if (files == 1) {
        write_shard(f, dir, "model.safetensors", dtype, 0, f->n);
        return dir;
    }
    buf_puts(&index, "{\"weight_map\":{");
    for (size_t i = 0; i < files; i++) {
        const size_t from = f->n * i / files, to = f->n * (i + 1) / files;
        (void)snprintf(shard, sizeof shard, "model-%05zu-of-%05zu.safetensors", i + 1, files);
        write_shard(f, dir, shard, dtype, from, to);
        for (size_t t = from; t < to; t++)
            buf_printf(&index, "%s\"%s\":\"%s\"", t > 0 ? "," : "", f->tensors[t].name, shard);
    }
    buf_puts(&index, "}}");
    assert_int_equal(buf_append(&index, "", 1), TITAN_OK);
    write_text(dir, "model.safetensors.index.json", index.data);
    return dir;
}

/* --- in and out --------------------------------------------------------------------------------------------------- */

static void same_tensors(const struct folder *f, const char *dir, const char *dtype)
{
    struct safetensors *st = NULL;
    struct titan_error err = {0};
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (safetensors_open(path, &st, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(st->ntensors, f->n);
    for (size_t i = 0; i < f->n; i++) {
        const struct safetensors_tensor *t = safetensors_find(st, f->tensors[i].name);
        const size_t n = (size_t)numel(&f->tensors[i]);
        float *data = malloc(n * sizeof *data);
        assert_non_null(t);
        if (!strstr(t->name, "e_score_correction_bias")) /* fp32 always */
            assert_string_equal(t->dtype, dtype);
        assert_int_equal(t->ndim, f->tensors[i].ndim);
        assert_int_equal(safetensors_read_floats(st, t, 0, data, n, &err), TITAN_OK);
        for (size_t k = 0; k < n; k++)
            if (data[k] != value_of(i, (int64_t)k))
                fail_msg("%s[%zu]: %g, not %g", t->name, k, (double)data[k], (double)value_of(i, (int64_t)k));
        free(data);
    }
    safetensors_close(st);
}

static const struct {
    const char *family, *set;
} families[] = {
    {"llama3", "model.rope_scaling=true"},
    {"llama3", "model.rope_scaling=llama3 model.rope_factor=32 model.rope_original_length=4096"},
    {"llama3", "model.tied_embeddings=true"},
    {"qwen3", ""},
    {"qwen3", "model.tied_embeddings=false model.n_experts=4 model.top_k=2 model.moe_hidden=64 model.route_scale=1"},
    {"deepseek_v3", ""},
    {"qwen3", "model.rope_scaling=yarn model.rope_factor=4 model.rope_original_length=64"},
    {"deepseek_v3", "model.q_lora_rank=0 model.n_dense_layers=0"},
    {"deepseek_v3", "model.rope_scaling=yarn model.n_experts=8 model.n_expert_groups=4 model.n_limited_groups=2"},
    {"deepseek_v3", "model.n_shared_experts=0"},
    {"deepseek_v3", "model.sigmoid_scores=false model.balance_rate=0 model.normalize_scores=false "
                    "model.rope_scaling=yarn model.rope_mscale=0.707 "
                    "model.n_expert_groups=2 model.n_limited_groups=1 model.group_top_k=1 model.qk_nope_head_dim=13"},
    {"deepseek_v3", "model.sigmoid_scores=false model.balance_rate=0 model.normalize_scores=false"},
    {"llama3", "model.qkv_bias=true model.output_bias=true model.mlp_bias=true model.head_dim=24"},
    {"llama3", "model.rope_scaling=linear model.rope_factor=4"},
    {"llama3", "model.rope_scaling=dynamic model.rope_factor=2 model.rope_original_length=64"},
    {"llama3", "model.rope_scaling=longrope model.rope_factor=2 model.rope_original_length=64 model.head_dim=6 "
               "model.rope_attention_factor=1.25 model.rope_short_factor=[1,1.1,2] model.rope_long_factor=[1.5,3,4]"},
    {"phi3", "model.rope_scaling=longrope model.rope_factor=2.5 model.rope_original_length=64 model.rope_dim=6 "
             "model.rope_short_factor=[1,1.1,2] model.rope_long_factor=[1.5,3.2500000000000004,64]"},
    {"deepseek_v3", "model.rope_scaling=longrope model.rope_factor=8 model.rope_original_length=16 "
                    "model.rope_short_factor=[1,1,1,2] model.rope_long_factor=[1,2,3,4.5] "
                    "model.rope_beta_fast=0 model.rope_beta_slow=0 model.rope_mscale=0 model.rope_mscale_all_dim=0"},
    {"qwen3", "model.qkv_bias=true model.output_bias=true"},
    {"mistral", "model.head_dim=24"},
    {"mistral", "model.sliding_window=16"},
    {"qwen2", "model.qkv_bias=true model.sliding_window=16 model.full_attention_every=3 model.n_layers=7"},
    {"phi3", "model.sliding_window=64"},
    {"mixtral", "model.n_experts=5 model.top_k=2 model.moe_hidden=96 model.ffn_hidden=96 model.normalize_scores=true"},
    {"qwen2", "model.qkv_bias=true model.tied_embeddings=true"},
    {"smollm3", "model.no_rope_every=2 model.n_layers=5"},
    {"granite", "model.embedding_multiplier=12 model.residual_multiplier=0.25 model.attention_multiplier=0.125 "
                "model.logits_scaling=8"},
    {"seed_oss", "model.qkv_bias=true model.mlp_bias=true"},
    {"phi3", "model.n_kv_heads=1"},
    {"olmo2", "model.output_norms=true model.no_input_norms=true model.qk_norm=true model.qk_norm_whole=true"},
    {"gemma3", "model.gelu=true model.norm_offset=true model.output_norms=true model.qk_norm=true "
               "model.embedding_multiplier=8 model.sliding_window=16 model.full_attention_every=2 "
               "model.rope_local_theta=1000 model.tied_embeddings=true model.attention_multiplier=0.5"},
    {"gemma2",
     "model.gelu=true model.norm_offset=true model.output_norms=true model.embedding_multiplier=8 "
     "model.sliding_window=16 model.full_attention_every=2 model.attention_softcap=50 model.logits_softcap=30"},
    {"gemma3", "model.gelu=true model.norm_offset=true model.output_norms=true model.qk_norm=true "
               "model.embedding_multiplier=8 model.logits_softcap=20 model.rope_scaling=linear model.rope_factor=8"},
    {"gpt_oss", "model.n_experts=5 model.top_k=2 model.moe_hidden=96 model.ffn_hidden=96 model.normalize_scores=true "
                "model.mlp_bias=true model.router_bias=true model.attention_sinks=true model.swiglu_limit=7 "
                "model.qkv_bias=true model.output_bias=true model.sliding_window=16 model.full_attention_every=2 "
                "model.rope_scaling=yarn model.rope_factor=4 model.rope_original_length=64 "
                "model.rope_between_pairs=true"},
    {"gpt_oss", "model.n_experts=2 model.top_k=1 model.moe_hidden=33 model.ffn_hidden=33 model.normalize_scores=true "
                "model.mlp_bias=true model.router_bias=true model.attention_sinks=true model.swiglu_limit=5 "
                "model.swiglu_alpha=2"},
    {"phi3", "model.rope_dim=12"},
    {"dots1", "model.n_experts=4 model.top_k=2 model.moe_hidden=32 model.sigmoid_scores=true model.qkv_bias=true "
              "model.balance_rate=1e-3 model.output_bias=true model.qk_norm=true"},
    {"glm4_moe", "model.n_experts=8 model.top_k=3 model.moe_hidden=32 model.n_shared_experts=1 model.n_dense_layers=1 "
                 "model.sigmoid_scores=true model.normalize_scores=true model.balance_rate=1e-3 model.rope_dim=8 "
                 "model.n_expert_groups=4 model.n_limited_groups=2 model.qkv_bias=true model.qk_norm=true"}};

static void test_families(void **state)
{
    (void)state;
    static const char *const types[] = {"F32", "BF16", "F16"};
    struct titan_error err = {0};
    for (size_t i = 0; i < ARRAY_SIZE(families); i++) {
        struct folder f = folder_of(families[i].family, families[i].set);
        char name[32];
        const char *type = types[i % 3];
        (void)snprintf(name, sizeof name, "in-%zu", i);
        const char *in = write_weights(&f, name, type, i % 2 ? 3 : 1);
        (void)snprintf(name, sizeof name, "titan-%zu", i);
        const char *titan = root_path(name);
        if (convert_weights(in, titan, &err) != TITAN_OK)
            fail_msg("%s %s: %s", families[i].family, families[i].set, err.msg);
        struct trained t;
        assert_int_equal(trained_open(titan, &t, &err), TITAN_OK);
        assert_true(t.info.model_only);
        assert_memory_equal(&t.model->dims, &f.model->dims, sizeof t.model->dims);
        trained_close(&t);
        (void)snprintf(name, sizeof name, "out-%zu", i);
        const char *out = root_path(name);
        if (hf_export(titan, -1, out, type, NULL, &err) != TITAN_OK)
            fail_msg("%s %s: %s", families[i].family, families[i].set, err.msg);
        same_tensors(&f, out, type);
        clear(&f);
    }
}

/* With modules of multi-token prediction, which a run file asks for. */
#define MODULES "model.mtp_layers=2"

/* A slice of a tensor is what stands there in the whole. */
static void test_slices(void **state)
{
    (void)state;
    struct titan_error err = {0};
    for (size_t i = 0; i <= ARRAY_SIZE(families); i++) {
        const bool modules = i == ARRAY_SIZE(families);
        struct folder f = modules ? folder_of("deepseek_v3", MODULES) : folder_of(families[i].family, families[i].set);
        struct hf_weights *w = NULL;
        char name[32];
        (void)snprintf(name, sizeof name, "pieces-%zu", i);
        assert_int_equal(hf_weights_open(write_weights(&f, name, "BF16", 2), &w, &err), TITAN_OK);
        if (hf_weights_check(w, f.model, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
        for (int t = 0; t < f.model->n_tensors; t++) {
            const struct model_tensor *m = &f.model->tensors[t];
            const int64_t rows = m->ndim > 1 ? m->shape[0] : 1, cols = m->ndim > 1 ? m->shape[1] : m->shape[0];
            const struct shard_slice whole = {
                .tensor = t, .rows = rows, .cols = cols, .data = malloc((size_t)(rows * cols) * sizeof(float))};
            const int64_t r0 = rows / 3, r1 = rows - rows / 5, c0 = cols / 4, c1 = cols - cols / 7;
            const struct shard_slice part = {.tensor = t,
                                             .row = r0,
                                             .rows = r1 - r0,
                                             .col = c0,
                                             .cols = c1 - c0,
                                             .data = malloc((size_t)(rows * cols) * sizeof(float))};
            assert_int_equal(hf_weights_read(w, f.model, &whole, NULL, &err), TITAN_OK);
            assert_int_equal(hf_weights_read(w, f.model, &part, NULL, &err), TITAN_OK);
            for (int64_t r = 0; r < part.rows; r++)
                assert_memory_equal(part.data + r * part.cols, whole.data + (r0 + r) * cols + c0,
                                    (size_t)part.cols * sizeof(float));
            free(whole.data);
            free(part.data);
        }
        hf_weights_close(w);
        clear(&f);
    }
}

/* --- what is refused ---------------------------------------------------------------------------------------------- */

static void refused(const struct folder *f, const char *dir, titan_status status, const char *words)
{
    struct hf_weights *w = NULL;
    struct titan_error err = {0};
    titan_status got = hf_weights_open(dir, &w, &err);
    if (got == TITAN_OK)
        got = hf_weights_check(w, f->model, &err);
    hf_weights_close(w);
    if (got != status || !strstr(err.msg, words))
        fail_msg("status %d, \"%s\"; expected %d, \"%s\"", got, err.msg, status, words);
    assert_non_null(strstr(err.msg, dir));
}

/* --- MXFP4 -------------------------------------------------------------------------------------------------------- */

#define MX_SET                                                                                                         \
    "model.n_layers=1 model.n_experts=3 model.top_k=2 model.moe_hidden=32 model.ffn_hidden=32 "                        \
    "model.normalize_scores=true model.mlp_bias=true model.router_bias=true model.attention_sinks=true "               \
    "model.swiglu_limit=7"

static uint8_t byte_of(int64_t tensor, int64_t i)
{
    return (uint8_t)(tensor * 31 + i * 7 + i / 16 * 5 + i / 256);
}

/* gate_up (3,64,64) and down (3,64,32), as rows of our matrices; blocks and scales in tensors 0 and 1, or 2 and 3. */
static float mx_value(int64_t tensor, int64_t row, int64_t col, int64_t cols)
{
    static const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const uint8_t byte = byte_of(tensor, row * (cols / 2) + col / 2), code = col % 2 ? byte >> 4 : byte & 15;
    return (float)ldexp(code & 8 ? -values[code & 7] : values[code & 7],
                        byte_of(tensor + 1, row * (cols / 32) + col / 32) % 250 - 127);
}

/* The folder's experts in MXFP4; the last scales under another name unless they are wanted. */
static const char *write_mx(struct folder *f, const char *name, bool scales)
{
    const char *const names[] = {"gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_blocks",
                                 scales ? "down_proj_scales" : "down_proj_scale"};
    const int64_t shapes[4][4] = {{3, 64, 2, 16}, {3, 64, 2}, {3, 64, 1, 16}, {3, 64, 1}};
    struct safetensors_entry *entries = calloc(f->n + 4, sizeof *entries);
    char full[4][HF_NAME_MAX], path[PATH_MAX];
    const char *dir = root_path(name);
    struct safetensors_writer *w = NULL;
    struct titan_error err = {0};
    uint64_t bytes;
    uint32_t crc;
    size_t n = 0;

    for (int i = 0; i < 4; i++) {
        (void)snprintf(full[i], sizeof full[i], "model.layers.0.mlp.experts.%s", names[i]);
        entries[i] = (struct safetensors_entry){.name = full[i], .dtype = "U8", .ndim = 4 - i % 2};
        memcpy(entries[i].shape, shapes[i], sizeof shapes[i]);
    }
    for (size_t i = 0; i < f->n; i++) { /* the others */
        const size_t length = strlen(f->tensors[i].name);
        if (length > 5 && strcmp(f->tensors[i].name + length - 5, "_proj") == 0)
            continue;
        entries[4 + n] =
            (struct safetensors_entry){.name = f->tensors[i].name, .dtype = "F32", .ndim = f->tensors[i].ndim};
        memcpy(entries[4 + n++].shape, f->tensors[i].shape, sizeof f->tensors[i].shape);
    }
    assert_int_equal(n, f->n - 2);
    assert_int_equal(dir_make(dir, NULL), TITAN_OK);
    write_config(f, dir);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(safetensors_create(AT_FDCWD, path, &(struct safetensors_header){entries, n + 4, "pt"}, &w, &err),
                     TITAN_OK);
    for (size_t i = 0; i < n + 4; i++) {
        int64_t count = 1;
        for (int k = 0; k < entries[i].ndim; k++)
            count *= entries[i].shape[k];
        for (int64_t k = 0; k < count; k++) {
            const uint8_t byte = i % 2 ? byte_of((int64_t)i, k) % 250 : byte_of((int64_t)i, k);
            const float number = value_of(i, k);
            assert_int_equal(i < 4 ? safetensors_append(w, &byte, 1, &err)
                                   : safetensors_append(w, &number, sizeof number, &err),
                             TITAN_OK);
        }
    }
    assert_int_equal(safetensors_finish(w, &bytes, &crc, &err), TITAN_OK);
    free(entries);
    return dir;
}

/* Experts in MXFP4: rows of gate and up in turn, whole and in part; without their scales they are refused. */
static void test_mxfp4(void **state)
{
    (void)state;
    struct folder f = folder_of("gpt_oss", MX_SET);
    struct hf_weights *w = NULL;
    struct titan_error err = {0};
    const char *dir = write_mx(&f, "mxfp4", true);
    const int unit = model_experts_unit(f.model, 0);
    static const enum tensor_role roles[] = {ROLE_W1, ROLE_W3, ROLE_W2};

    assert_int_equal(hf_weights_open(dir, &w, &err), TITAN_OK);
    if (hf_weights_check(w, f.model, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    for (int i = 0; i < 3; i++) {
        const int tensor = model_find(f.model, unit, roles[i]);
        const int64_t rows = f.model->tensors[tensor].shape[0], cols = f.model->tensors[tensor].shape[1];
        const struct shard_slice whole = {
            .tensor = tensor, .rows = rows, .cols = cols, .data = malloc((size_t)(rows * cols) * sizeof(float))};
        const struct shard_slice part = {.tensor = tensor,
                                         .row = 7,
                                         .rows = rows - 20,
                                         .col = 5,
                                         .cols = cols - 9,
                                         .data = malloc((size_t)(rows * cols) * sizeof(float))};
        assert_int_equal(hf_weights_read(w, f.model, &whole, NULL, &err), TITAN_OK);
        assert_int_equal(hf_weights_read(w, f.model, &part, NULL, &err), TITAN_OK);
        for (int64_t k = 0; k < rows * cols; k++) {
            const int64_t row = i == 2 ? k / cols : 2 * (k / cols) + i;
            if (whole.data[k] != mx_value(i == 2 ? 2 : 0, row, k % cols, cols))
                fail_msg("matrix %d, element %lld: %g", i, (long long)k, (double)whole.data[k]);
        }
        for (int64_t r = 0; r < part.rows; r++)
            assert_memory_equal(part.data + r * part.cols, whole.data + (7 + r) * cols + 5,
                                (size_t)part.cols * sizeof(float));
        free(whole.data);
        free(part.data);
    }
    hf_weights_close(w);
    refused(&f, write_mx(&f, "no-scales", false), TITAN_ECONFLICT,
            "'model.layers.0.mlp.experts.down_proj_scales' in MXFP4 is missing");
    clear(&f);
}

static void test_wrong_tensors(void **state)
{
    (void)state;
    struct folder f = folder_of("llama3", "");
    struct folder g = folder_of("llama3", "");
    const size_t n = f.n;
    g.n = n - 1; /* the head is the last */
    refused(&f, write_weights(&g, "missing", "F32", 1), TITAN_ECONFLICT, "'lm_head.weight' is missing");
    g.n = n;
    add(&g, "model.layers.0.self_attn.q_proj.bias", 1, (int64_t[]){64});
    refused(&f, write_weights(&g, "more", "F32", 2), TITAN_ECONFLICT, "'model.layers.0.self_attn.q_proj.bias' is not");
    g.n = n;
    for (size_t i = 0; i < n; i++)
        if (strcmp(g.tensors[i].name, "model.layers.1.mlp.up_proj.weight") == 0)
            g.tensors[i].shape[0]--;
    refused(&f, write_weights(&g, "shape", "F32", 1), TITAN_ECONFLICT,
            "'model.layers.1.mlp.up_proj.weight' has 2 dimensions, 127 * 64");
    const char *dir = write_weights(&f, "type", "F32", 1);
    struct safetensors_entry e = {.name = "model.norm.weight", .dtype = "F64", .shape = {64}, .ndim = 1};
    struct safetensors_writer *w = NULL;
    double numbers[64] = {0};
    char file[PATH_MAX];
    uint64_t bytes;
    uint32_t crc;
    write_text(dir, "model.safetensors.index.json", "{\"weight_map\":{\"model.norm.weight\":\"x.safetensors\"}}");
    (void)snprintf(file, sizeof file, "%s/x.safetensors", dir);
    assert_int_equal(safetensors_create(AT_FDCWD, file, &(struct safetensors_header){&e, 1, NULL}, &w, NULL), TITAN_OK);
    assert_int_equal(safetensors_append(w, numbers, sizeof numbers, NULL), TITAN_OK);
    assert_int_equal(safetensors_finish(w, &bytes, &crc, NULL), TITAN_OK);
    (void)snprintf(file, sizeof file, "%s/model.safetensors", dir);
    assert_int_equal(unlink(file), 0);
    refused(&f, dir, TITAN_EUNSUPPORTED, "'model.norm.weight' is F64");
    clear(&f);
    clear(&g);
}

static void test_wrong_model(void **state)
{
    (void)state;
    struct folder f = folder_of("llama3", ""), wide = folder_of("llama3", "model.dim=32 model.head_dim=16"),
                  experts = folder_of("deepseek_v3", "model.balance_rate=0"), biased = folder_of("deepseek_v3", ""),
                  deep = folder_of("llama3", "model.dim=32 model.head_dim=16 model.n_layers=3 model.qkv_bias=true");
    struct folder frozen = folder_of("deepseek_v3", "model.balance_rate=0 model.expert_bias=true");
    struct hf_weights *w = NULL;
    struct titan_error err = {0};
    refused(&f, write_weights(&wide, "wide", "F32", 1), TITAN_ECONFLICT, "model.dim = 64, there 32");
    refused(&f, write_weights(&deep, "deep", "F32", 1), TITAN_ECONFLICT,
            "model.dim = 64, there 32; model.n_layers = 2, there 3; model.qkv_bias = 0, there 1");
    refused(&experts, write_weights(&biased, "biased", "F32", 1), TITAN_ECONFLICT, "set model.expert_bias = true");
    /* Biases that stay what they are. */
    assert_int_equal(hf_weights_open(root_path("biased"), &w, &err), TITAN_OK);
    if (hf_weights_check(w, frozen.model, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    float biases[4] = {0};
    assert_int_equal(hf_weights_read_biases(w, frozen.model, 1, biases, &err), TITAN_OK);
    assert_true(biases[0] != 0);
    hf_weights_close(w);
    clear(&f);
    clear(&wide);
    clear(&experts);
    clear(&biased);
    clear(&frozen);
    clear(&deep);
}

/* What transformers' class would compute in another way is not written for it. */
static void test_no_class(void **state)
{
    (void)state;
    static const struct {
        const char *family, *set, *words;
    } cases[] = {
        {"deepseek_v3", "model.sigmoid_scores=false model.balance_rate=0", "model.normalize_scores"},
        {"qwen3", "model.n_experts=4 model.top_k=2 model.moe_hidden=64 model.route_scale=2", "model.route_scale"},
        {"qwen3",
         "model.n_experts=4 model.top_k=2 model.moe_hidden=64 model.n_expert_groups=2 model.n_limited_groups=1",
         "groups of experts"},
        {"llama3_moe", "", "with these traits"},
        {"llama3", "model.qkv_bias=true model.no_rope_every=2", "biases of attention"},
        {"gemma3",
         "model.gelu=true model.norm_offset=true model.output_norms=true model.qk_norm=true "
         "model.embedding_multiplier=7",
         "sqrt(dim)"},
        {"mistral", "model.gelu=true", "GELU or gains less 1"},
        {"llama3", "model.logits_softcap=30", "with capped logits"},
        {"mistral", "model.attention_sinks=true", "with attention sinks"},
        {"mistral", "model.swiglu_limit=7", "with model.swiglu_limit"},
        {"mixtral",
         "model.n_experts=4 model.top_k=2 model.moe_hidden=64 model.normalize_scores=true model.router_bias=true",
         "with a bias of the router"},
        {"gpt_oss",
         "model.n_experts=4 model.top_k=2 model.moe_hidden=64 model.normalize_scores=true model.mlp_bias=true "
         "model.attention_sinks=true model.swiglu_limit=7",
         "without a bias of the router"},
        {"mistral", "model.logits_scaling=2 model.qkv_bias=true", "biases of attention"}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct folder f = folder_of(cases[i].family, cases[i].set);
        struct titan_error err = {0};
        const struct hf_family *family;
        assert_int_equal(hf_family_of(&f.model->dims, cases[i].family, &family, &err), TITAN_EUNSUPPORTED);
        assert_non_null(strstr(err.msg, cases[i].words));
        clear(&f);
    }
}

static bool is_there(const char *dir, const char *name)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

/* An export takes the place of one before, whichever files that had; a single file is read before an index. */
static void test_over_an_earlier_export(void **state)
{
    (void)state;
    static const char *const names[] = {"model.safetensors.index.json", "model-00001-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors"};
    struct folder f = folder_of("llama3", ""), other = folder_of("qwen3", "");
    struct titan_error err = {0};
    const char *titan = root_path("over-titan");
    assert_int_equal(convert_weights(write_weights(&f, "over-in", "F32", 1), titan, &err), TITAN_OK);
    const char *out = write_weights(&other, "over", "F32", 3);
    write_text(out, "model-card-of-mine.safetensors", "");
    if (hf_export(titan, -1, out, "F32", NULL, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    same_tensors(&f, out, "F32");
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        assert_false(is_there(out, names[i]));
    assert_true(is_there(out, "model-card-of-mine.safetensors"));
    struct hf_weights *w = NULL;
    write_text(out, names[0], "{\"weight_map\":{\"a\":\"b\"}}");
    assert_int_equal(hf_weights_open(out, &w, &err), TITAN_OK);
    hf_weights_close(w);
    clear(&f);
    clear(&other);
}

/* The tokenizer of weights that are read in is not "bytes" because nothing says what it is. */
static void test_tokenizer_beside(void **state)
{
    (void)state;
    struct folder f = folder_of("llama3", "");
    struct titan_error err = {0};
    struct trained t;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    const char *in = write_weights(&f, "beside-in", "F32", 1), *titan = root_path("beside-titan"),
               *out = root_path("beside-out");
    assert_int_equal(convert_weights(in, titan, &err), TITAN_OK);
    assert_int_equal(trained_open(titan, &t, &err), TITAN_OK);
    assert_string_equal(t.recipe.model.tokenizer, in);
    trained_close(&t);
    assert_int_equal(hf_export(titan, -1, out, "F32", NULL, &err), TITAN_OK);
    assert_false(is_there(out, "tokenizer.json"));
    hf_export_byte_tokenizer(&text);
    assert_int_equal(buf_append(&text, "", 1), TITAN_OK);
    write_text(in, "tokenizer.json", text.data);
    titan = root_path("beside-bytes");
    assert_int_equal(convert_weights(in, titan, &err), TITAN_OK);
    assert_int_equal(trained_open(titan, &t, &err), TITAN_OK);
    assert_string_equal(t.recipe.model.tokenizer, "bytes");
    trained_close(&t);
    clear(&f);
}

static void test_wrong_files(void **state)
{
    (void)state;
    struct folder f = folder_of("llama3", "");
    char file[PATH_MAX];
    const char *dir = write_weights(&f, "shards", "F32", 3);
    (void)snprintf(file, sizeof file, "%s/model-00002-of-00003.safetensors", dir);
    assert_int_equal(truncate(file, 5000), 0);
    refused(&f, dir, TITAN_ECORRUPT, "model-00002-of-00003.safetensors");
    assert_int_equal(unlink(file), 0);
    refused(&f, dir, TITAN_ENOTFOUND, "model-00002-of-00003.safetensors");
    write_text(dir, "model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../../etc/passwd\"}}");
    refused(&f, dir, TITAN_ECORRUPT, "plain name");
    write_text(dir, "model.safetensors.index.json", "{\"weight_map\":{\"a\":\"model-00001-of-00003.safetensors\"}}");
    refused(&f, dir, TITAN_ECORRUPT, "'a' is not in 'model-00001-of-00003.safetensors'");
    write_text(dir, "model.safetensors.index.json", "{\"weight_map\":{}}");
    refused(&f, dir, TITAN_ECORRUPT, "names no tensor");
    write_text(dir, "model.safetensors.index.json", "{\"weight_map\":");
    refused(&f, dir, TITAN_ECORRUPT, "index.json");
    (void)snprintf(file, sizeof file, "%s/model.safetensors.index.json", dir);
    assert_int_equal(unlink(file), 0);
    refused(&f, dir, TITAN_ENOTFOUND, "neither 'model.safetensors' nor");
    assert_false(hf_weights_are_at(dir));
    write_text(dir, "pytorch_model.bin", "");
    assert_true(hf_weights_are_at(dir));
    refused(&f, dir, TITAN_EUNSUPPORTED, "no safetensors: its weights are in 'pytorch_model.bin'");
    clear(&f);
}

#define SIZED(type)                                                                                                    \
    "{\"model_type\":\"" type "\",\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":4,"               \
    "\"vocab_size\":256,\"intermediate_size\":128,\"max_position_embeddings\":128"
#define MISTRAL SIZED("mistral")
#define EIGHT(x) x "," x "," x "," x "," x "," x "," x "," x
#define PHI_LONG(original, shorts, longs)                                                                              \
    SIZED("phi3")                                                                                                      \
    ",\"original_max_position_embeddings\":" #original                                                                 \
    ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[" shorts "],\"long_factor\":[" longs "]}}"
#define GPT_OSS SIZED("gpt_oss") ",\"num_local_experts\":4,\"num_experts_per_tok\":2"

static void test_wrong_config(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
        titan_status status;
    } cases[] = {
        {"{", "config", TITAN_ECORRUPT},
        {"{\"model_type\":\"gpt2\"}", "\"gpt2\"", TITAN_EUNSUPPORTED},
        {"{\"model_type\":\"llama\"}", "'hidden_size'", TITAN_ECORRUPT},
        {"{\"model_type\":\"llama\",\"hidden_size\":-1}", "'hidden_size'", TITAN_ECORRUPT},
        {MISTRAL ",\"sliding_window\":-1}", "'sliding_window'", TITAN_ECORRUPT},
        {MISTRAL ",\"layer_types\":[\"full_attention\",\"chunked_attention\"]}", "'layer_types'", TITAN_EUNSUPPORTED},
        {MISTRAL ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "'layer_types'", TITAN_EUNSUPPORTED},
        {MISTRAL ",\"layer_types\":[\"sliding_attention\"]}", "'layer_types'", TITAN_ECORRUPT},
        {SIZED("qwen2") ",\"layer_types\":[\"sliding_attention\"]}", "there is no window", TITAN_ECORRUPT},
        {SIZED("qwen2") ",\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_layers\":2}",
         "'max_window_layers'", TITAN_EUNSUPPORTED},
        {MISTRAL ",\"hidden_act\":\"gelu\"}", "'hidden_act'", TITAN_EUNSUPPORTED},
        {SIZED("llama") ",\"partial_rotary_factor\":0.5}", "'partial_rotary_factor'", TITAN_EUNSUPPORTED},
        {SIZED("gemma3_text") ",\"hidden_activation\":\"gelu\"}", "'hidden_activation'", TITAN_EUNSUPPORTED},
        {SIZED("gemma3_text") ",\"use_bidirectional_attention\":true}", "'use_bidirectional_attention'",
         TITAN_EUNSUPPORTED},
        {SIZED("gemma3_text") ",\"query_pre_attn_scalar\":2.5}", "'query_pre_attn_scalar'", TITAN_ECORRUPT},
        {SIZED("gemma3_text") ",\"attn_logit_softcapping\":50}", "'attn_logit_softcapping'", TITAN_EUNSUPPORTED},
        {SIZED("gemma3_text") ",\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"linear\"}}}",
         "'sliding_attention'", TITAN_EUNSUPPORTED},
        {SIZED("smollm3") ",\"no_rope_layers\":[1,0,0]}", "'no_rope_layers'", TITAN_EUNSUPPORTED},
        {SIZED("smollm3") ",\"no_rope_layers\":[1,0]}", "'no_rope_layers'", TITAN_ECORRUPT},
        {SIZED("granite") ",\"logits_scaling\":0}", "'logits_scaling'", TITAN_ECORRUPT},
        {GPT_OSS ",\"swiglu_limit\":0}", "'swiglu_limit'", TITAN_ECORRUPT},
        {GPT_OSS "}", "'rope_scaling' is missing", TITAN_EUNSUPPORTED},
        {SIZED("phi3") ",\"partial_rotary_factor\":0.2}", "'partial_rotary_factor'", TITAN_ECORRUPT},
        {PHI_LONG(64, EIGHT("1"), "1,1"), "'long_factor' has 2 numbers, and 8 pairs", TITAN_ECORRUPT},
        {PHI_LONG(64, EIGHT("1") ",1", EIGHT("1")), "'short_factor' has 9 numbers, and 8 pairs", TITAN_ECORRUPT},
        {PHI_LONG(64, EIGHT("0"), EIGHT("1")), "'short_factor' has a value that is not a number above 0",
         TITAN_ECORRUPT},
        {PHI_LONG(64, EIGHT("1"), EIGHT("-1.5")), "'long_factor' has a value that is not", TITAN_ECORRUPT},
        {PHI_LONG(64, EIGHT("1"), EIGHT("\"1\"")), "'long_factor' has a value that is not", TITAN_ECORRUPT},
        {PHI_LONG(256, EIGHT("1"), EIGHT("1")), "'original_max_position_embeddings' is 256", TITAN_ECORRUPT},
        {PHI_LONG(1, EIGHT("1"), EIGHT("1")), "'original_max_position_embeddings' is 1", TITAN_ECORRUPT},
        {SIZED("llama") ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":1}}",
         "'short_factor' is missing", TITAN_ECORRUPT}};
    struct folder f = folder_of("llama3", "");
    const char *dir = write_weights(&f, "config", "F32", 1);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        write_text(dir, "config.json", cases[i].text);
        refused(&f, dir, cases[i].status, cases[i].words);
    }
    clear(&f);
}

/* Modules of multi-token prediction are the model's where that has them, and left out and counted where it does not. */
static void test_modules(void **state)
{
    (void)state;
    struct folder with = folder_of("deepseek_v3", MODULES), without = folder_of("deepseek_v3", ""),
                  more = folder_of("deepseek_v3", "model.mtp_layers=3");
    _cleanup_(buf_free) struct buf note = BUF_INIT;
    struct hf_weights *w = NULL;
    struct titan_error err = {0};
    char want[HF_NAME_MAX + 64], name[HF_NAME_MAX];
    const char *dir = write_weights(&with, "modules", "BF16", 2);
    assert_int_equal(hf_weights_open(dir, &w, &err), TITAN_OK);
    assert_int_equal(hf_weights_check(w, with.model, &err), TITAN_OK);
    hf_weights_left_out(w, with.model, &note);
    assert_int_equal(note.len, 0);
    assert_int_equal(hf_weights_check(w, without.model, &err), TITAN_OK);
    hf_weights_left_out(w, without.model, &note);
    (void)snprintf(want, sizeof want, "left out: %zu tensors", with.n - without.n);
    assert_non_null(strstr(note.data, want));
    hf_weights_close(w);
    refused(&more, dir, TITAN_ECONFLICT, "model.mtp_layers = 3, the weights have 2 modules");
    /* Another matrix in the place of a shared one; without modules nobody looks at it. */
    for (int i = 0; i < 2; i++) {
        const int64_t shape[] = {with.model->dims.vocab_size, with.model->dims.dim};
        hf_shared_name(with.model, i == 0 ? ROLE_EMBEDDING : ROLE_OUTPUT, 2, name);
        add(&with, name, 2, shape);
        dir = write_weights(&with, i == 0 ? "other-table" : "other-head", "F32", 1);
        (void)snprintf(want, sizeof want, "tensor '%s' is not the model's %s", name, i == 0 ? "embedding" : "head");
        refused(&with, dir, TITAN_ECONFLICT, want);
        assert_int_equal(hf_weights_open(dir, &w, &err), TITAN_OK);
        assert_int_equal(hf_weights_check(w, without.model, &err), TITAN_OK);
        hf_weights_close(w);
        with.n--;
    }
    clear(&with);
    clear(&without);
    clear(&more);
}

/* A key that is missing has transformers' default. */
static void test_defaults(void **state)
{
    (void)state;
    static const char sizes[] =
        "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":256,"
        "\"intermediate_size\":128,\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,"
        "\"v_head_dim\":16,\"num_experts\":4,\"n_routed_experts\":4,\"num_experts_per_tok\":2,"
        "\"moe_intermediate_size\":64";
    static const struct {
        const char *type;
        bool normalize;
        double scale;
    } cases[] = {{"qwen3_moe", false, 1}, {"deepseek_v2", false, 1}, {"deepseek_v3", true, 2.5}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char text[512];
        struct hf_config c;
        struct titan_error err = {0};
        const int n = snprintf(text, sizeof text, "{\"model_type\":\"%s\",%s}", cases[i].type, sizes);
        if (hf_config_parse(text, (size_t)n, &c, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(c.dims.normalize_scores, cases[i].normalize);
        assert_true(c.dims.route_scale == cases[i].scale && !c.balance_key);
    }
    static const char with[] = "{\"model_type\":\"qwen3_moe\",\"router_aux_loss_coef\":0.001,";
    char text[512];
    struct hf_config c;
    struct titan_error err = {0};
    const int n = snprintf(text, sizeof text, "%s%s}", with, sizes);
    assert_int_equal(hf_config_parse(text, (size_t)n, &c, &err), TITAN_OK);
    assert_string_equal(c.balance_key, "router_aux_loss_coef");
    assert_true(c.balance_loss == 0.001);
}

#define GEMMA(type)                                                                                                    \
    "{\"model_type\":\"" type                                                                                          \
    "\",\"hidden_size\":64,\"num_hidden_layers\":6,\"num_attention_heads\":4,\"vocab_size\":256,"                      \
    "\"intermediate_size\":128"

static struct model_dims gemma_dims(const char *text)
{
    struct hf_config c;
    struct titan_error err = {0};
    if (hf_config_parse(text, strlen(text), &c, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return c.dims;
}

/* Gemma's layers and rotary frequencies as transformers 5 writes them, as versions before did, and left out. */
static void test_gemma(void **state)
{
    (void)state;
    const struct model_dims
        now = gemma_dims(GEMMA(
            "gemma3_text") ",\"layer_types\":[\"sliding_attention\",\"sliding_attention\","
                           "\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\"],"
                           "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8,"
                           "\"rope_theta\":5e5},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":500}},"
                           "\"sliding_window\":512,\"query_pre_attn_scalar\":64}"),
        before = gemma_dims(GEMMA(
            "gemma3_text") ",\"sliding_window_pattern\":3,\"rope_theta\":5e5,"
                           "\"rope_local_base_freq\":500,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8},"
                           "\"sliding_window\":512,\"query_pre_attn_scalar\":64}"),
        least = gemma_dims(GEMMA("gemma3_text") "}");
    assert_memory_equal(&now, &before, sizeof now);
    assert_int_equal(now.sliding_window, 512);
    assert_int_equal(now.full_attention_every, 3);
    assert_true(now.rope_theta == 5e5 && now.rope_local_theta == 500 && now.rope_factor == 8);
    assert_true(now.attention_multiplier == 0.125 && now.embedding_multiplier == 8 && now.gelu && now.norm_offset);
    assert_int_equal(least.sliding_window, 4096);
    assert_int_equal(least.full_attention_every, 6);
    assert_int_equal(least.head_dim, 256);
    const struct model_dims second = gemma_dims(GEMMA("gemma2") "}");
    const struct model_dims uncapped =
        gemma_dims(GEMMA("gemma2") ",\"attn_logit_softcapping\":null,\"final_logit_softcapping\":null}");
    assert_true(second.attention_softcap == 50 && second.logits_softcap == 30 && second.rope_local_theta == 0);
    assert_true(uncapped.attention_softcap == 0 && uncapped.logits_softcap == 0);
    assert_int_equal(second.full_attention_every, 2);
    assert_true(least.rope_theta == 1e6 && least.rope_local_theta == 1e4 && least.attention_multiplier == 0);
}

/* A dynamic base begins to grow at max_position_embeddings, and the model sees factor times as many tokens. */
static void test_dynamic_rope(void **state)
{
    (void)state;
    static const char text[] = SIZED("llama") ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.5}}";
    struct hf_config c;
    struct titan_error err = {0};
    assert_int_equal(hf_config_parse(text, strlen(text), &c, &err), TITAN_OK);
    assert_string_equal(c.dims.rope_scaling, "dynamic");
    assert_int_equal(c.dims.rope_original_length, 128);
    assert_int_equal(c.positions, 320);
}

static struct hf_config parsed(const char *text)
{
    struct hf_config c;
    struct titan_error err = {0};
    if (hf_config_parse(text, strlen(text), &c, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return c;
}

/* Phi 3's factor follows from its two lengths under all former names of the rule; a given factor wins elsewhere. What
 * is written has the same numbers, and for Phi 3 the three keys that earlier versions take. */
static void test_longrope(void **state)
{
    (void)state;
    static const char *const types[] = {"\"type\":\"su\"", "\"type\":\"yarn\"", "\"rope_type\":\"longrope\""};
#define LISTS ",\"short_factor\":[" EIGHT("1.0499999523162842") "],\"long_factor\":[" EIGHT("2.5") "]"
    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        char text[1024];
        (void)snprintf(text, sizeof text,
                       SIZED("phi3") ",\"original_max_position_embeddings\":48,\"rope_scaling\":{%s" LISTS "}}",
                       types[i]);
        const struct hf_config c = parsed(text);
        _cleanup_(buf_free) struct buf out = BUF_INIT;
        struct json_writer w = {.out = &out};
        assert_string_equal(c.dims.rope_scaling, "longrope");
        assert_true(c.dims.rope_factor == 128.0 / 48 && c.dims.rope_attention_factor == 0);
        assert_true(c.dims.rope_short_factor.n == 8 && c.dims.rope_short_factor.value[7] == 1.0499999523162842);
        json_begin_object(&w, NULL);
        hf_config_put(&w, c.family, &c.dims, 32);
        json_end_object(&w);
        assert_int_equal(buf_append(&out, "", 1), TITAN_OK);
        assert_non_null(strstr(out.data, "\"rope_scaling\":{\"type\":\"longrope\"" LISTS "}"));
        assert_non_null(strstr(out.data, "\"max_position_embeddings\":128"));
        const struct hf_config again = parsed(out.data);
        assert_memory_equal(&again.dims, &c.dims, sizeof c.dims);
    }
    assert_int_equal(
        parsed(SIZED("llama") ",\"rope_scaling\":{\"type\":\"longrope\"" LISTS "}}").dims.rope_original_length, 128);
    const struct hf_config given =
        parsed(SIZED("llama") ",\"rope_parameters\":{\"rope_type\":\"longrope\"" LISTS
                              ",\"original_max_position_embeddings\":32,\"factor\":3,\"attention_factor\":1.5}}");
    assert_true(given.dims.rope_factor == 3 && given.dims.rope_attention_factor == 1.5);
    assert_int_equal(given.dims.rope_original_length, 32);
}

/* No key of config.json is one that transformers' classes refuse: null is none of a count's. */
static void test_no_shared_experts(void **state)
{
    (void)state;
    struct folder f = folder_of("deepseek_v3", "model.n_shared_experts=0");
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text};
    json_begin_object(&w, NULL);
    hf_config_put(&w, f.family, &f.model->dims, 128);
    json_end_object(&w);
    assert_non_null(strstr(text.data, "\"n_shared_experts\":0,"));
    clear(&f);
}

/* A head that is tied in the files alone is the embedding's; one that is there and tied in both is left out. */
static void test_tied(void **state)
{
    (void)state;
    struct folder tied = folder_of("llama3", "model.tied_embeddings=true"), own = folder_of("llama3", "");
    struct hf_weights *w = NULL;
    struct titan_error err = {0};
    const int64_t n = own.model->dims.vocab_size, c = own.model->dims.dim;
    float *a = malloc((size_t)(n * c) * sizeof *a), *b = malloc((size_t)(n * c) * sizeof *b);
    assert_int_equal(hf_weights_open(write_weights(&tied, "tied", "F32", 1), &w, &err), TITAN_OK);
    if (hf_weights_check(w, own.model, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    struct shard_slice p = {.tensor = 0, .rows = n, .cols = c, .data = a};
    assert_int_equal(hf_weights_read(w, own.model, &p, NULL, &err), TITAN_OK);
    p = (struct shard_slice){.tensor = own.model->n_tensors - 1, .rows = n, .cols = c, .data = b};
    assert_int_equal(hf_weights_read(w, own.model, &p, NULL, &err), TITAN_OK);
    assert_memory_equal(a, b, (size_t)(n * c) * sizeof *a);
    hf_weights_close(w);
    refused(&tied, write_weights(&own, "own", "F32", 1), TITAN_ECONFLICT, "'lm_head.weight' is not the model's");
    /* config.json says that they are tied, and the files have another head. */
    own.model->dims.tied_embeddings = true;
    write_config(&own, root_path("own"));
    own.model->dims.tied_embeddings = false;
    refused(&tied, root_path("own"), TITAN_ECONFLICT, "'lm_head.weight' is not the embedding's matrix");
    free(a);
    free(b);
    clear(&tied);
    clear(&own);
}

/* Half precision: what the standard says of ends, ties and subnormals, and every number back. */
static void test_half(void **state)
{
    (void)state;
    static const struct {
        float f;
        uint16_t h;
    } cases[] = {{1.0f, 0x3c00},       {-2.0f, 0xc000},      {65504.0f, 0x7bff},   {65519.9f, 0x7bff},
                 {65520.0f, 0x7c00},   {0x1p-14f, 0x0400},   {0x1p-24f, 0x0001},   {0x1p-25f, 0x0000},
                 {0x1.8p-24f, 0x0002}, {0x1.002p0f, 0x3c00}, {0x1.006p0f, 0x3c02}, {-0.0f, 0x8000}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(f16_from_f32(cases[i].f), cases[i].h);
    for (unsigned x = 0; x < 65536; x++)
        if ((x & 0x7c00) != 0x7c00 || (x & 0x3ff) == 0)
            assert_int_equal(f16_from_f32(f16_to_f32((uint16_t)x)), x);
        else
            assert_true(f16_to_f32((uint16_t)x) != f16_to_f32((uint16_t)x));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_families, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_slices, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_mxfp4, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_wrong_tensors, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_wrong_model, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_over_an_earlier_export, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_tokenizer_beside, make_root, remove_root),
        cmocka_unit_test(test_no_class),
        cmocka_unit_test(test_modules),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_dynamic_rope),
        cmocka_unit_test(test_longrope),
        cmocka_unit_test(test_no_shared_experts),
        cmocka_unit_test_setup_teardown(test_wrong_files, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_wrong_config, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_tied, make_root, remove_root),
        cmocka_unit_test(test_half),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
