/* SPDX-License-Identifier: Apache-2.0 */
/* hf_export.c - exports a checkpoint's weights, configuration and tokenizer as files of transformers. */
#include "worker/checkpoint/hf_export.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hf_config.h"
#include "base/json.h"
#include "base/vec.h"
#include "worker/checkpoint/hf_names.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/trained.h"
#include "worker/tensor/layout.h"

#define SHARD_BYTES_MAX (INT64_C(2) << 30)
#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"

/* --- tensors ------------------------------------------------------------------------------------------------------ */

struct export
{
    const struct trained *trained;
    int at; /* folder of the exported files */
    const struct hf_family *family;
    const char *dtype; /* type of the files' numbers */
    float *biases;     /* biases of all layers' experts; NULL: the model has none */
    int *bounds;       /* tensors [bounds[i], bounds[i+1]) go to file i */
    int nfiles;
    uint64_t bytes; /* bytes of all data */
};

static bool has_biases(const struct export *e, const struct model_tensor *t)
{
    return t->role == ROLE_GATE && e->biases;
}

/* Is the tensor left out? True for a module of multi-token prediction if the family has no such modules. */
static bool leaves_out(const struct export *e, int tensor)
{
    const struct model *m = e->trained->model;
    return !hf_family_has_modules(e->family) && model_module(m, m->units[m->tensors[tensor].unit].layer) > 0;
}

/* Returns the number of copies of a tensor: each module has one of the embedding and of the head. */
static int64_t copies_of(const struct export *e, const struct model_tensor *t)
{
    const bool shared = t->role == ROLE_EMBEDDING || t->role == ROLE_OUTPUT;
    return shared && hf_family_has_modules(e->family) ? e->trained->model->dims.mtp_layers : 0;
}

static titan_status plan_files(struct export *e, struct titan_error *err)
{
    titan_assert(e->nfiles == 0);
    const struct model *m = e->trained->model;
    int64_t room = 0;
    e->bounds = calloc((size_t)m->n_tensors + 1, sizeof(*e->bounds));
    if (!e->bounds)
        return titan_fail(err, TITAN_ENOMEM, "no memory to plan an export");
    for (int i = 0; i < m->n_tensors; i++) {
        if (leaves_out(e, i))
            continue;
        int64_t bytes = m->tensors[i].numel * (int64_t)safetensors_dtype_bytes(e->dtype);
        bytes *= 1 + copies_of(e, &m->tensors[i]);
        if (has_biases(e, &m->tensors[i]))
            bytes += m->dims.n_experts * (int64_t)sizeof(float);
        e->bytes += (uint64_t)bytes;
        struct hf_tensor theirs;
        hf_find(e->family, m, i, false, &theirs);
        if (i == 0 || (bytes > room && theirs.from == 0)) {
            e->bounds[e->nfiles++] = i;
            room = SHARD_BYTES_MAX;
        }
        room -= bytes;
    }
    e->bounds[e->nfiles] = m->n_tensors;
    titan_assert(e->nfiles >= 1 && e->nfiles <= m->n_tensors && e->bounds[0] == 0);
    return TITAN_OK;
}

/* Removes weights of an earlier export. Readers would take the earlier weights for this export's, or read both. */
static titan_status remove_earlier(const struct export *e, struct titan_error *err)
{
    DIR *const d = fdopendir(dup(e->at));
    titan_status status = d ? TITAN_OK : titan_fail_errno(err, "cannot list the folder");
    struct dirent *entry;
    while (d && status == TITAN_OK && (entry = readdir(d))) {
        const char *name = entry->d_name;
        int file, files, end = 0;
        (void)sscanf(name, "model-%5d-of-%5d.safetensors%n", &file, &files, &end);
        const bool shard = end > 0 && !name[end], index = strcmp(name, INDEX_NAME) == 0,
                   single = strcmp(name, SINGLE_NAME) == 0;
        if ((single || index || shard) && unlinkat(e->at, name, 0) < 0)
            status = titan_fail_errno(err, "cannot remove '%s'", name);
    }
    if (d)
        (void)closedir(d);
    return status;
}

static void file_name(const struct export *e, int file, char out[64])
{
    titan_assert(file >= 0 && file < e->nfiles);
    if (e->nfiles == 1)
        (void)snprintf(out, 64, SINGLE_NAME);
    else
        (void)snprintf(out, 64, "model-%05d-of-%05d.safetensors", file + 1, e->nfiles);
}

/* Special values of `part`; a tensor's parts count from 0: biases of the layer's experts, a copy of the tensor, a
 * tensor that is left out. */
#define PART_BIASES (-1)
#define PART_COPY (-2)
#define PART_NONE (-3)

/* Calls each() for the tensors of a file, in order. tensor: index of our tensor. */
static titan_status for_each_tensor(const struct export *e, int file,
                                    titan_status (*each)(void *arg, int tensor, int part, const char *name,
                                                         struct titan_error *err),
                                    void *arg, struct titan_error *err)
{
    titan_assert(file >= 0 && file < e->nfiles && e->bounds[file] < e->bounds[file + 1]);
    const struct model *m = e->trained->model;
    char name[HF_NAME_MAX];
    for (int i = e->bounds[file]; i < e->bounds[file + 1]; i++) {
        const struct model_tensor *t = &m->tensors[i];
        struct hf_tensor theirs;
        if (leaves_out(e, i)) {
            TRY(each(arg, i, PART_NONE, "", err));
            continue;
        }
        hf_find(e->family, m, i, false, &theirs);
        for (int part = 0; part < (theirs.stacked ? 1 : theirs.parts); part++) {
            hf_name(e->family, m, i, part, name);
            TRY(each(arg, i, part, name, err));
        }
        for (int module = 1; module <= copies_of(e, t); module++) {
            hf_shared_name(m, t->role, module, name);
            TRY(each(arg, i, PART_COPY, name, err));
        }
        if (!has_biases(e, t))
            continue;
        hf_bias_name(e->family, m->units[t->unit].layer, name);
        TRY(each(arg, i, PART_BIASES, name, err));
    }
    return TITAN_OK;
}

struct file {
    const struct export *e;
    struct safetensors_entry *entries;
    char (*names)[HF_NAME_MAX];
    size_t n, cap_entries, cap_names;
    size_t elements; /* elements of our tensors */
    struct safetensors_writer *w;
    const float *data; /* data of the current tensor */
};

static void clear_file(struct file *f)
{
    free(f->entries);
    free(f->names);
}

static titan_status add_entry(void *arg, int tensor, int part, const char *name, struct titan_error *err)
{
    struct file *f = arg;
    const struct model *m = f->e->trained->model;
    const struct model_tensor *t = &m->tensors[tensor];
    struct hf_tensor theirs;
    hf_find(f->e->family, m, tensor, false, &theirs);
    if (part == 0 || part == PART_NONE)
        f->elements += (size_t)t->numel;
    if (part == PART_NONE || (part >= 0 && theirs.from > 0)) /* its rows belong to the previous entry */
        return TITAN_OK;
    if (!VEC_RESERVE(f->names, f->cap_names, f->n + 1) || !VEC_RESERVE(f->entries, f->cap_entries, f->n + 1))
        return titan_fail(err, TITAN_ENOMEM, "no memory to export %zu tensors", f->n);
    (void)snprintf(f->names[f->n], sizeof(f->names[0]), "%s", name);
    f->entries[f->n++] = part == PART_BIASES
                             ? (struct safetensors_entry){.dtype = "F32", .shape = {m->dims.n_experts}, .ndim = 1}
                             : (struct safetensors_entry){.dtype = f->e->dtype,
                                                          .shape = {theirs.shape[0], theirs.shape[1], theirs.shape[2]},
                                                          .ndim = theirs.ndim};
    return TITAN_OK;
}

/* Appends all experts as one tensor, with each matrix transposed. With interleaved rows, the next tensor's rows are
 * included. */
static titan_status append_stacked(struct file *f, const struct hf_tensor *t, const char *name, struct titan_error *err)
{
    enum { ROWS = 16 };
    const size_t numel = (size_t)(t->parts * t->rows * t->cols);
    const float *const ours = f->data;
    _cleanup_free_ float *side = NULL;

    f->data += numel;
    if (t->from > 0) /* these rows were already appended with the previous tensor's rows */
        return TITAN_OK;
    side = malloc((size_t)(t->cols * t->whole) * sizeof *side);
    if (!side)
        return titan_fail(err, TITAN_ENOMEM, "no memory to convert '%s'", name);
    for (int64_t part = 0; part < t->parts; part++) {
        for (int64_t from = 0; from < t->whole; from += ROWS) /* fills one cache line of the output at a time */
            for (int64_t c = 0; c < t->cols; c++)
                for (int64_t i = from; i < MIN(from + ROWS, t->whole); i++)
                    side[c * t->whole + i] =
                        ours[(size_t)(i % t->step) * numel + (size_t)((part * t->rows + i / t->step) * t->cols + c)];
        TRY(safetensors_append_floats(f->w, name, f->e->dtype, side, (size_t)(t->cols * t->whole), err));
    }
    return TITAN_OK;
}

/* Appends one tensor in its final order and type. */
static titan_status append_tensor(void *arg, int tensor, int part, const char *name, struct titan_error *err)
{
    struct file *f = arg;
    const struct model *m = f->e->trained->model;
    struct hf_tensor t;
    if (part == PART_BIASES)
        return safetensors_append(f->w, f->e->biases + layout_bias_offset(m, m->units[m->tensors[tensor].unit].layer),
                                  (size_t)m->dims.n_experts * sizeof(float), err);
    if (part == PART_NONE) {
        f->data += m->tensors[tensor].numel;
        return TITAN_OK;
    }
    hf_find(f->e->family, m, tensor, false, &t);
    if (t.stacked)
        return append_stacked(f, &t, name, err);
    const size_t n = (size_t)(t.rows * t.cols);
    if (part == PART_COPY)
        f->data -= n;
    const float *const ours = f->data;
    _cleanup_free_ float *moved = NULL;
    f->data += n;
    if (t.head == 0)
        return safetensors_append_floats(f->w, name, f->e->dtype, ours, n, err);
    moved = malloc(n * sizeof(*moved));
    if (!moved)
        return titan_fail(err, TITAN_ENOMEM, "no memory to convert '%s'", name);
    for (int64_t row = 0; row < t.rows; row++)
        memcpy(moved + (hf_row(&t, row) - t.from) * t.cols, ours + row * t.cols, (size_t)t.cols * sizeof(*moved));
    return safetensors_append_floats(f->w, name, f->e->dtype, moved, n, err);
}

static titan_status write_file(const struct export *e, int number, struct titan_error *err)
{
    const int first = e->bounds[number], n = e->bounds[number + 1] - first;
    char name[64];
    uint64_t bytes;
    uint32_t crc;
    _cleanup_(clear_file) struct file f = {.e = e};
    TRY(for_each_tensor(e, number, add_entry, &f, err));
    for (size_t i = 0; i < f.n; i++)
        f.entries[i].name = f.names[i];
    _cleanup_free_ float *data = malloc(f.elements * sizeof(*data) + 1);
    if (!data)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu parameters", f.elements);
    TRY(trained_load(e->trained, first, n, data, err));
    file_name(e, number, name);
    TRY(safetensors_create(e->at, name, &(struct safetensors_header){f.entries, f.n, "pt"}, &f.w, err));
    f.data = data;
    const titan_status status = for_each_tensor(e, number, append_tensor, &f, err);
    if (status != TITAN_OK) {
        safetensors_abandon(f.w);
        return status;
    }
    titan_assert(f.data == data + f.elements);
    return safetensors_finish(f.w, &bytes, &crc, err);
}

/* Loads the biases. If transformers' class has no place for them, they must all be zero. */
static titan_status load_biases(struct export *e, struct titan_error *err)
{
    titan_assert(!e->biases);
    const struct model *m = e->trained->model;
    const int64_t n = layout_biases(m);
    if (n == 0)
        return TITAN_OK;
    _cleanup_free_ float *biases = calloc((size_t)n, sizeof(*biases));
    if (!biases)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the biases of experts");
    TRY(trained_load_biases(e->trained, biases, err));
    if (m->dims.sigmoid_scores) { /* DeepSeek V3 */
        e->biases = TAKE(biases);
        return TITAN_OK;
    }
    for (int64_t i = 0; i < n; i++)
        if (biases[i] != 0)
            return titan_fail(err, TITAN_EUNSUPPORTED,
                              "the experts are chosen with biases (model.balance_rate), which transformers' class for "
                              "this model does not have");
    return TITAN_OK;
}

/* --- descriptions ------------------------------------------------------------------------------------------------- */

static titan_status write_text(const struct export *e, const char *name, const struct buf *text,
                               struct titan_error *err)
{
    if (buf_failed(text))
        return titan_fail(err, TITAN_ENOMEM, "no memory for '%s'", name);
    return file_replace_at(e->at, name, text->data, text->len, err);
}

struct index_writer {
    struct json_writer json;
    const struct export *e;
    char file[64];
};

static titan_status put_place(void *arg, int tensor, int part, const char *name, struct titan_error *err)
{
    struct index_writer *w = arg;
    struct hf_tensor theirs;
    (void)err;
    hf_find(w->e->family, w->e->trained->model, tensor, false, &theirs);
    if (part != PART_NONE && (part < 0 || theirs.from == 0))
        json_put_string(&w->json, name, w->file);
    return TITAN_OK;
}

static bool of_bytes(const struct export *e)
{
    return strcmp(e->trained->recipe.model.tokenizer, "bytes") == 0;
}

/* In a bytes corpus token 0 separates documents: it is both the end of a text and the beginning of a text. */
static void put_special_tokens(struct json_writer *w, const struct export *e)
{
    json_put_raw(w, "pad_token_id", "null"); /* the default of some classes is an id of another vocabulary */
    if (of_bytes(e)) {
        json_put_int(w, "bos_token_id", 0);
        json_put_int(w, "eos_token_id", 0);
    } else {
        json_put_raw(w, "bos_token_id", "null");
        json_put_raw(w, "eos_token_id", "null");
    }
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

/* Writes a byte-pair tokenizer without pairs: each byte is a token. */
void hf_export_byte_tokenizer(struct buf *out)
{
    static const char *const unset[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
    struct json_writer w = {.out = out, .pretty = true};
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
    /* A byte's symbol is a printable character (Radford et al. 2019, GPT-2's bytes_to_unicode): the byte's own if it is
     * visible in Latin-1, otherwise the next character from U+0100 on. */
    json_begin_object(&w, "vocab");
    for (unsigned b = 0, hidden = 0; b < 256; b++) {
        const bool visible = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        const unsigned c = visible ? b : 256 + hidden++;
        char symbol[4] = {(char)c};
        if (c >= 0x80) { /* all symbols are below U+0800: two bytes of UTF-8 */
            symbol[0] = (char)(0xc0 | c >> 6);
            symbol[1] = (char)(0x80 | (c & 0x3f));
        }
        json_put_int(&w, symbol, b);
    }
    json_end_object(&w);
    json_put_raw(&w, "merges", "[]");
    json_end_object(&w);
    json_end_object(&w);
}

static titan_status write_descriptions(const struct export *e, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf index = BUF_INIT, generation = BUF_INIT, tokenizer = BUF_INIT,
                                   of_tokenizer = BUF_INIT, config = BUF_INIT;
    struct index_writer i = {.json = {.out = &index, .pretty = true}, .e = e};
    if (e->nfiles > 1) {
        json_begin_object(&i.json, NULL);
        json_begin_object(&i.json, "metadata");
        json_put_uint(&i.json, "total_size", e->bytes);
        json_end_object(&i.json);
        json_begin_object(&i.json, "weight_map");
        for (int f = 0; f < e->nfiles; f++) {
            file_name(e, f, i.file);
            TRY(for_each_tensor(e, f, put_place, &i, err));
        }
        json_end_object(&i.json);
        json_end_object(&i.json);
        TRY(write_text(e, INDEX_NAME, &index, err));
    }

    struct json_writer w = {.out = &generation, .pretty = true};
    json_begin_object(&w, NULL);
    json_put_bool(&w, "_from_model_config", true);
    put_special_tokens(&w, e);
    json_end_object(&w);
    TRY(write_text(e, "generation_config.json", &generation, err));

    if (of_bytes(e)) {
        hf_export_byte_tokenizer(&tokenizer);
        TRY(write_text(e, "tokenizer.json", &tokenizer, err));
        w = (struct json_writer){.out = &of_tokenizer, .pretty = true};
        json_begin_object(&w, NULL);
        json_put_string(&w, "tokenizer_class", "PreTrainedTokenizerFast");
        json_put_bool(&w, "clean_up_tokenization_spaces", false);
        json_put_int(&w, "model_max_length", e->trained->recipe.training.seq_len);
        json_end_object(&w);
        TRY(write_text(e, "tokenizer_config.json", &of_tokenizer, err));
    }

    w = (struct json_writer){.out = &config, .pretty = true};
    json_begin_object(&w, NULL);
    hf_config_put(&w, e->family, &e->trained->model->dims, e->trained->recipe.training.seq_len);
    put_special_tokens(&w, e);
    json_put_string(&w, "torch_dtype",
                    strcmp(e->dtype, "BF16") == 0  ? "bfloat16"
                    : strcmp(e->dtype, "F16") == 0 ? "float16"
                                                   : "float32");
    json_end_object(&w);
    return write_text(e, HF_CONFIG_NAME, &config, err);
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

titan_status hf_export(const char *checkpoint, int at, const char *out_dir, const char *dtype, struct buf *ret_note,
                       struct titan_error *err)
{
    titan_assert(safetensors_dtype_bytes(dtype) > 0);
    _cleanup_(trained_close) struct trained trained = {0};
    _cleanup_fd_ int own = -1;
    struct export e = {.trained = &trained, .at = at, .dtype = dtype};
    TRY(trained_open(checkpoint, &trained, err));
    TRY(hf_family_of(&trained.model->dims, trained.recipe.model.name, &e.family, err));
    if (ret_note && trained.model->dims.mtp_layers > 0 && !hf_family_has_modules(e.family))
        buf_printf(ret_note, "left out: modules of multi-token prediction, which %s does not have", e.family->class);
    if (at < 0) {
        TRY(dir_make_named(out_dir, err));
        own = file_open_named(out_dir, O_RDONLY | O_DIRECTORY);
        e.at = own;
    }
    if (e.at < 0)
        return titan_fail_errno(err, "cannot open folder '%s'", out_dir);
    titan_status status = load_biases(&e, err);
    if (status == TITAN_OK)
        status = plan_files(&e, err);
    if (status == TITAN_OK)
        status = remove_earlier(&e, err);
    for (int f = 0; f < e.nfiles && status == TITAN_OK; f++)
        status = write_file(&e, f, err);
    if (status == TITAN_OK)
        status = write_descriptions(&e, err);
    if (status != TITAN_OK)
        (void)titan_error_wrap(err, "'%s'", out_dir);
    free(e.bounds);
    free(e.biases);
    return status;
}
