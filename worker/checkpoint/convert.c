/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/convert.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/trained.h"

#define SHARD_BYTES_MAX (INT64_C(2) << 30)

/* --- layouts ------------------------------------------------------------------------------------------------------ */

/* Row of the adjacent-pair layout that is row i of a head in the half-split one. */
static int64_t pair_row(int64_t i, int64_t d)
{
    return i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1;
}

void convert_pairs_to_halves(float *out, const float *in, int64_t heads, int64_t d, int64_t cols)
{
    for (int64_t r = 0; r < heads * d; r++) {
        int64_t from = r / d * d + pair_row(r % d, d);
        memcpy(out + r * cols, in + from * cols, (size_t)cols * sizeof(*out));
    }
}

void convert_halves_to_pairs(float *out, const float *in, int64_t heads, int64_t d, int64_t cols)
{
    for (int64_t r = 0; r < heads * d; r++) {
        int64_t to = r / d * d + pair_row(r % d, d);
        memcpy(out + to * cols, in + r * cols, (size_t)cols * sizeof(*out));
    }
}

/* --- names -------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *ours, *theirs;
} layer_names[] = {
    {"attention_norm.weight", "input_layernorm.weight"},    {"attention.wq.weight", "self_attn.q_proj.weight"},
    {"attention.wk.weight", "self_attn.k_proj.weight"},     {"attention.wv.weight", "self_attn.v_proj.weight"},
    {"attention.wo.weight", "self_attn.o_proj.weight"},     {"attention.q_norm.weight", "self_attn.q_norm.weight"},
    {"attention.k_norm.weight", "self_attn.k_norm.weight"}, {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"feed_forward.w1.weight", "mlp.gate_proj.weight"},     {"feed_forward.w2.weight", "mlp.down_proj.weight"},
    {"feed_forward.w3.weight", "mlp.up_proj.weight"},
};
static const struct {
    const char *ours, *theirs;
} whole_names[] = {
    {"tok_embeddings.weight", "model.embed_tokens.weight"},
    {"norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

/* Name in transformers; false for a tensor that has none there. */
static bool hf_name(const char *name, char out[128])
{
    for (size_t i = 0; i < ARRAY_SIZE(whole_names); i++)
        if (strcmp(name, whole_names[i].ours) == 0)
            return snprintf(out, 128, "%s", whole_names[i].theirs) < 128;
    int layer = 0, used = 0;
    if (sscanf(name, "layers.%d.%n", &layer, &used) != 1 || used == 0)
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(layer_names); i++)
        if (strcmp(name + used, layer_names[i].ours) == 0)
            return snprintf(out, 128, "model.layers.%d.%s", layer, layer_names[i].theirs) < 128;
    return false;
}

/* Heads whose rows must move; 0 for a tensor that stays as it is. A norm of heads has one gain a row, for all heads. */
static int64_t rotary_heads(const struct trained *t, const struct model_tensor *tensor)
{
    switch (tensor->role) {
    case ROLE_WQ:
        return t->model->dims.n_heads;
    case ROLE_WK:
        return t->model->dims.n_kv_heads;
    case ROLE_Q_NORM:
    case ROLE_K_NORM:
        return 1;
    default:
        return 0;
    }
}

/* --- tensors ------------------------------------------------------------------------------------------------------ */

struct export
{
    const struct trained *trained;
    const char *dir;
    bool bf16;
    int *bounds; /* tensors [bounds[i], bounds[i+1]) go to file i */
    int nfiles;
    uint64_t bytes; /* of all data */
};

static size_t element_bytes(const struct export *e)
{
    return e->bf16 ? 2 : 4;
}

static titan_status plan_files(struct export *e, struct titan_error *err)
{
    const struct model *m = e->trained->model;
    int64_t room = 0;
    e->bounds = calloc((size_t)m->n_tensors + 1, sizeof(*e->bounds));
    if (!e->bounds)
        return titan_fail(err, TITAN_ENOMEM, "no memory to plan an export");
    for (int i = 0; i < m->n_tensors; i++) {
        int64_t bytes = m->tensors[i].numel * (int64_t)element_bytes(e);
        e->bytes += (uint64_t)bytes;
        if (i == 0 || bytes > room) {
            e->bounds[e->nfiles++] = i;
            room = SHARD_BYTES_MAX;
        }
        room -= bytes;
    }
    e->bounds[e->nfiles] = m->n_tensors;
    return TITAN_OK;
}

static void file_name(const struct export *e, int file, char out[64])
{
    if (e->nfiles == 1)
        (void)snprintf(out, 64, "model.safetensors");
    else
        (void)snprintf(out, 64, "model-%05d-of-%05d.safetensors", file + 1, e->nfiles);
}

/* One tensor in its final layout and type; data is used up. */
static titan_status append_tensor(const struct export *e, struct safetensors_writer *w, const struct model_tensor *t,
                                  float *data, struct titan_error *err)
{
    const int64_t heads = rotary_heads(e->trained, t), cols = t->ndim == 2 ? t->shape[1] : 1;
    _cleanup_free_ float *moved = NULL;
    if (heads > 0) {
        moved = malloc((size_t)t->numel * sizeof(*moved));
        if (!moved)
            return titan_fail(err, TITAN_ENOMEM, "no memory to convert '%s'", t->name);
        convert_pairs_to_halves(moved, data, heads, e->trained->model->head_dim, cols);
        data = moved;
    }
    if (e->bf16) {
        /* In place: element i of the result lies at or before element i of the source. */
        unsigned char *out = (unsigned char *)data;
        for (int64_t i = 0; i < t->numel; i++) {
            uint16_t x = bf16_from_f32(data[i]);
            memcpy(out + i * 2, &x, sizeof(x));
        }
    }
    return safetensors_append(w, data, (size_t)t->numel * element_bytes(e), err);
}

static titan_status write_file(const struct export *e, int file, struct titan_error *err)
{
    const struct model *m = e->trained->model;
    int first = e->bounds[file], n = e->bounds[file + 1] - first;
    char name[64], path[PATH_MAX];
    size_t elements = 0;
    _cleanup_free_ struct safetensors_entry *entries = calloc((size_t)n, sizeof(*entries));
    _cleanup_free_ char(*names)[128] = calloc((size_t)n, sizeof(*names));
    if (!entries || !names)
        return titan_fail(err, TITAN_ENOMEM, "no memory to export %d tensors", n);
    for (int i = 0; i < n; i++) {
        const struct model_tensor *t = &m->tensors[first + i];
        if (!hf_name(t->name, names[i]))
            return titan_fail(err, TITAN_EUNSUPPORTED, "tensor '%s' has no name in transformers", t->name);
        entries[i] = (struct safetensors_entry){
            .name = names[i], .dtype = e->bf16 ? "BF16" : "F32", .shape = {t->shape[0], t->shape[1]}, .ndim = t->ndim};
        elements += (size_t)t->numel;
    }
    _cleanup_free_ float *data = malloc(MAX(elements, (size_t)1) * sizeof(*data));
    if (!data)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu parameters", elements);
    TRY(trained_load(e->trained, first, n, data, err));
    file_name(e, file, name);
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", e->dir, name) >= sizeof(path))
        return titan_fail(err, TITAN_EINVAL, "path of the output folder is too long");
    struct safetensors_writer *w = NULL;
    TRY(safetensors_create(AT_FDCWD, path, entries, (size_t)n, "pt", &w, err));
    float *at = data;
    for (int i = 0; i < n; i++) {
        titan_status status = append_tensor(e, w, &m->tensors[first + i], at, err);
        if (status != TITAN_OK) {
            safetensors_abandon(w);
            return status;
        }
        at += m->tensors[first + i].numel;
    }
    uint64_t bytes;
    uint32_t crc;
    return safetensors_finish(w, &bytes, &crc, err);
}

/* --- descriptions ------------------------------------------------------------------------------------------------- */

static titan_status write_text(const struct export *e, const char *name, const struct buf *text,
                               struct titan_error *err)
{
    char path[PATH_MAX];
    if (buf_failed(text))
        return titan_fail(err, TITAN_ENOMEM, "no memory for '%s'", name);
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", e->dir, name) >= sizeof(path))
        return titan_fail(err, TITAN_EINVAL, "path of the output folder is too long");
    return file_replace(path, text->data, text->len, err);
}

static titan_status write_index(const struct export *e, struct titan_error *err)
{
    const struct model *m = e->trained->model;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text, .pretty = true};
    json_begin_object(&w, NULL);
    json_begin_object(&w, "metadata");
    json_put_uint(&w, "total_size", e->bytes);
    json_end_object(&w);
    json_begin_object(&w, "weight_map");
    for (int f = 0; f < e->nfiles; f++) {
        for (int i = e->bounds[f]; i < e->bounds[f + 1]; i++) {
            char name[128], file[64];
            file_name(e, f, file);
            if (hf_name(m->tensors[i].name, name))
                json_put_string(&w, name, file);
        }
    }
    json_end_object(&w);
    json_end_object(&w);
    return write_text(e, "model.safetensors.index.json", &text, err);
}

static bool of_bytes(const struct export *e)
{
    return strcmp(e->trained->recipe.model.tokenizer, "bytes") == 0;
}

/* Llama 3.1's rule with the constants of the recipe's "rope_scaling". */
static void put_rope_scaling(struct json_writer *w, bool on)
{
    if (!on) {
        json_put_raw(w, "rope_scaling", "null");
        return;
    }
    json_begin_object(w, "rope_scaling");
    json_put_string(w, "rope_type", "llama3");
    json_put_real(w, "factor", 8);
    json_put_real(w, "low_freq_factor", 1);
    json_put_real(w, "high_freq_factor", 4);
    json_put_int(w, "original_max_position_embeddings", 8192);
    json_end_object(w);
}

/* Token 0 separates documents of a bytes corpus: it ends one text and begins the next. */
static void put_special_tokens(struct json_writer *w, const struct export *e)
{
    if (of_bytes(e)) {
        json_put_int(w, "bos_token_id", 0);
        json_put_int(w, "eos_token_id", 0);
    } else {
        json_put_raw(w, "bos_token_id", "null");
        json_put_raw(w, "eos_token_id", "null");
    }
}

/* Keys of one architecture only. */
static void put_architecture(struct json_writer *w, const struct model_dims *d)
{
    json_begin_array(w, "architectures");
    json_put_string(w, NULL, d->qk_norm ? "Qwen3ForCausalLM" : "LlamaForCausalLM");
    json_end_array(w);
    json_put_string(w, "model_type", d->qk_norm ? "qwen3" : "llama");
    if (d->qk_norm) {
        json_put_int(w, "max_window_layers", d->n_layers);
        json_put_raw(w, "sliding_window", "null");
        json_put_bool(w, "use_sliding_window", false);
    } else {
        json_put_bool(w, "mlp_bias", false);
        json_put_int(w, "pretraining_tp", 1);
    }
}

static titan_status write_config(const struct export *e, struct titan_error *err)
{
    const struct model_dims *d = &e->trained->model->dims;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text, .pretty = true};
    json_begin_object(&w, NULL);
    put_architecture(&w, d);
    json_put_bool(&w, "attention_bias", false);
    json_put_real(&w, "attention_dropout", 0);
    put_special_tokens(&w, e);
    json_put_int(&w, "head_dim", e->trained->model->head_dim);
    json_put_string(&w, "hidden_act", "silu");
    json_put_int(&w, "hidden_size", d->dim);
    json_put_real(&w, "initializer_range", 0.02);
    json_put_int(&w, "intermediate_size", d->ffn_hidden);
    json_put_int(&w, "max_position_embeddings", e->trained->recipe.training.seq_len);
    json_put_int(&w, "num_attention_heads", d->n_heads);
    json_put_int(&w, "num_hidden_layers", d->n_layers);
    json_put_int(&w, "num_key_value_heads", d->n_kv_heads);
    json_put_real(&w, "rms_norm_eps", d->norm_eps);
    put_rope_scaling(&w, d->rope_scaling);
    json_put_real(&w, "rope_theta", d->rope_theta);
    json_put_bool(&w, "tie_word_embeddings", d->tied_embeddings);
    json_put_string(&w, "torch_dtype", e->bf16 ? "bfloat16" : "float32");
    json_put_bool(&w, "use_cache", true);
    json_put_int(&w, "vocab_size", d->vocab_size);
    json_end_object(&w);
    return write_text(e, "config.json", &text, err);
}

static titan_status write_generation_config(const struct export *e, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text, .pretty = true};
    json_begin_object(&w, NULL);
    json_put_bool(&w, "_from_model_config", true);
    put_special_tokens(&w, e);
    json_end_object(&w);
    return write_text(e, "generation_config.json", &text, err);
}

/* The printable character that stands for a byte in byte-level vocabularies (Radford et al. 2019, GPT-2's
 * bytes_to_unicode): the byte's own where Latin-1 has a visible one, otherwise the next from U+0100 on. */
static unsigned byte_symbol(unsigned byte)
{
    unsigned hidden = 0;
    for (unsigned b = 0; b <= byte; b++) {
        bool visible = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte)
            return visible ? b : 256 + hidden;
        hidden += !visible;
    }
    return byte;
}

static void put_byte_vocabulary(struct json_writer *w)
{
    json_begin_object(w, "vocab");
    for (unsigned b = 0; b < 256; b++) {
        unsigned c = byte_symbol(b);
        char symbol[4] = {(char)c};
        if (c >= 0x80) { /* all are below U+0800: two bytes of UTF-8 */
            symbol[0] = (char)(0xc0 | c >> 6);
            symbol[1] = (char)(0x80 | (c & 0x3f));
        }
        json_put_int(w, symbol, b);
    }
    json_end_object(w);
}

static void put_byte_level(struct json_writer *w, const char *key)
{
    json_begin_object(w, key);
    json_put_string(w, "type", "ByteLevel");
    json_put_bool(w, "add_prefix_space", false);
    json_put_bool(w, "trim_offsets", false);
    json_put_bool(w, "use_regex", false);
    json_end_object(w);
}

/* A byte-pair tokenizer without any pair: one token a byte. */
static titan_status write_byte_tokenizer(const struct export *e, struct titan_error *err)
{
    static const char *const unset[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
    _cleanup_(buf_free) struct buf text = BUF_INIT, config = BUF_INIT;
    struct json_writer w = {.out = &text, .pretty = true}, c = {.out = &config, .pretty = true};
    json_begin_object(&w, NULL);
    json_put_string(&w, "version", "1.0");
    json_put_raw(&w, "truncation", "null");
    json_put_raw(&w, "padding", "null");
    json_put_raw(&w, "added_tokens", "[]");
    json_put_raw(&w, "normalizer", "null");
    put_byte_level(&w, "pre_tokenizer");
    json_put_raw(&w, "post_processor", "null");
    put_byte_level(&w, "decoder");
    json_begin_object(&w, "model");
    json_put_string(&w, "type", "BPE");
    for (size_t i = 0; i < ARRAY_SIZE(unset); i++)
        json_put_raw(&w, unset[i], "null");
    json_put_bool(&w, "fuse_unk", false);
    json_put_bool(&w, "byte_fallback", false);
    put_byte_vocabulary(&w);
    json_put_raw(&w, "merges", "[]");
    json_end_object(&w);
    json_end_object(&w);
    TRY(write_text(e, "tokenizer.json", &text, err));
    json_begin_object(&c, NULL);
    json_put_string(&c, "tokenizer_class", "PreTrainedTokenizerFast");
    json_put_bool(&c, "clean_up_tokenization_spaces", false);
    json_put_int(&c, "model_max_length", e->trained->recipe.training.seq_len);
    json_end_object(&c);
    return write_text(e, "tokenizer_config.json", &config, err);
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

static titan_status write_all(struct export *e, struct titan_error *err)
{
    TRY(plan_files(e, err));
    TRY(dir_make(e->dir, err));
    for (int f = 0; f < e->nfiles; f++)
        TRY(write_file(e, f, err));
    if (e->nfiles > 1)
        TRY(write_index(e, err));
    TRY(write_generation_config(e, err));
    if (of_bytes(e))
        TRY(write_byte_tokenizer(e, err));
    return write_config(e, err);
}

titan_status convert_checkpoint(const char *checkpoint, const char *out_dir, const char *dtype, struct titan_error *err)
{
    _cleanup_(trained_close) struct trained trained = {0};
    bool bf16 = strcmp(dtype, "bf16") == 0;
    if (!bf16 && strcmp(dtype, "f32") != 0)
        return titan_fail(err, TITAN_EINVAL, "--dtype is bf16 or f32, not '%s'", dtype);
    TRY(trained_open(checkpoint, &trained, err));
    struct export e = {.trained = &trained, .dir = out_dir, .bf16 = bf16};
    titan_status status = write_all(&e, err);
    free(e.bounds);
    return status;
}

/* What lies there may be somebody's work. */
static titan_status check_empty(const char *dir, struct titan_error *err)
{
    DIR *d = opendir(dir);
    if (!d && errno == ENOENT)
        return TITAN_OK;
    if (!d)
        return titan_fail_errno(err, "folder '%s'", dir);
    const struct dirent *e;
    while ((e = readdir(d)) && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0))
        ;
    (void)closedir(d);
    if (!e)
        return TITAN_OK;
    (void)titan_fail(err, TITAN_EEXIST, "folder '%s' is not empty", dir);
    titan_error_hint(err, "name another one; --force replaces files of the same names in it");
    return TITAN_EEXIST;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    const char *out_dir = args->words[1];
    (void)with;
    if (!args_has(args, "force"))
        TRY(check_empty(out_dir, err));
    TRY(convert_checkpoint(args->words[0], out_dir, args_text(args, "dtype", "bf16"), err));
    (void)puts(out_dir);
    return TITAN_OK;
}

const struct command convert_command = {
    .name = "convert",
    .summary = "write a checkpoint as a directory that Hugging Face transformers opens",
    .arguments = "CHECKPOINT OUT_DIR",
    .text = "CHECKPOINT is one, or a folder of them: the newest. OUT_DIR must be empty, or missing.",
    .min_args = 2,
    .max_args = 2,
    .word = WORD_FILE,
    .options =
        (const struct option_spec[]){
            {"dtype", 0, "TYPE", "bf16 (default) or f32", WORD_NONE},
            {"force", 0, NULL, "also into a folder that is not empty; files of the same names are replaced", WORD_NONE},
            {NULL}},
    .examples = (const struct example[]){{"titan-worker convert run/checkpoint ./hf", "the newest checkpoint"}, {NULL}},
    .run = run,
};
