/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/hf_weights.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/vec.h"
#include "worker/checkpoint/mxfp4.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/tensor/layout.h"

#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"
#define PICKLED_NAME "pytorch_model.bin" /* or its shards */
#define INDEX_BYTES_MAX ((size_t)64 << 20)

struct shard {
    char *name;
    struct safetensors *st;
};

struct hf_weights {
    char *path;
    struct hf_config config;
    struct shard *shards;
    size_t n, cap;
    size_t n_indexed; /* number of tensors that the index names; 0: there is no index */
    /* every tensor of every shard, by name */
    struct entry {
        const struct safetensors_tensor *tensor;
        const struct safetensors *st;
    } * entries;
    size_t n_entries;
};

bool hf_weights_are_at(const char *path)
{
    static const char *const names[] = {SINGLE_NAME, INDEX_NAME, PICKLED_NAME, PICKLED_NAME ".index.json"};
    char file[PATH_MAX];
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if ((size_t)snprintf(file, sizeof file, "%s/%s", path, names[i]) < sizeof file && access(file, F_OK) == 0)
            return true;
    return false;
}

const struct hf_config *hf_weights_config(const struct hf_weights *w)
{
    return &w->config;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static titan_status open_shard(struct hf_weights *w, int at, const char *name, struct titan_error *err)
{
    titan_assert(at >= 0);
    struct shard shard = {.name = strdup(name)};
    int fd = -1;
    if (!shard.name || !VEC_PUSH(w->shards, w->n, w->cap, shard)) {
        free(shard.name);
        return titan_fail(err, TITAN_ENOMEM, "no memory for the names of shards");
    }
    TRY(file_open_regular(at, name, file_refuses_links() ? O_NOFOLLOW : 0, &fd, err));
    return safetensors_open_fd(fd, name, &w->shards[w->n - 1].st, err);
}

static int compare_shards(const void *a, const void *b)
{
    return strcmp(((const struct shard *)a)->name, ((const struct shard *)b)->name);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void free_json(struct json **root)
{
    json_free(*root);
}

static titan_status open_index(struct hf_weights *w, int at, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    _cleanup_(free_json) struct json *root = NULL;
    _cleanup_free_ const char **names = NULL;
    size_t n = 0, cap = 0;
    TRY(file_read_at(at, INDEX_NAME, file_refuses_links() ? O_NOFOLLOW : 0, INDEX_BYTES_MAX, &text, err));
    if (json_parse(text.data ? text.data : "", text.len, &root, err) != TITAN_OK) {
        (void)titan_error_wrap(err, "'" INDEX_NAME "'");
        return err ? (err->status = TITAN_ECORRUPT) : TITAN_ECORRUPT;
    }
    const struct json *map = json_get(root, "weight_map");
    if (!map || map->type != JSON_OBJECT)
        return titan_fail(err, TITAN_ECORRUPT, "'" INDEX_NAME "' has no weight_map");

    /* Collects the shards that the index names, each once, in the order of their names. */
    for (const struct json *m = map->first; m; m = m->next) {
        if (m->type != JSON_STRING || !m->string[0] || m->string[0] == '.' || strchr(m->string, '/'))
            return titan_fail(err, TITAN_ECORRUPT, "'" INDEX_NAME "': tensor '%.100s' is in no file with a plain name",
                              m->key);
        if (!VEC_PUSH(names, n, cap, (const char *)m->string))
            return titan_fail(err, TITAN_ENOMEM, "no memory for the names of shards");
    }
    if (n == 0)
        return titan_fail(err, TITAN_ECORRUPT, "'" INDEX_NAME "' names no tensor");
    qsort(names, n, sizeof *names, compare_names);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i - 1], names[i]) != 0)
            TRY(open_shard(w, at, names[i], err));

    for (const struct json *m = map->first; m; m = m->next, w->n_indexed++) {
        const struct shard wanted = {.name = m->string};
        const struct shard *s = bsearch(&wanted, w->shards, w->n, sizeof *w->shards, compare_shards);
        if (!s || !safetensors_find(s->st, m->key))
            return titan_fail(err, TITAN_ECORRUPT, "tensor '%.100s' is not in '%s', where '" INDEX_NAME "' has it",
                              m->key, m->string);
    }
    return TITAN_OK;
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->tensor->name, ((const struct entry *)b)->tensor->name);
}

static const struct entry *find(const struct hf_weights *w, const char *name)
{
    size_t lo = 0, hi = w->n_entries;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const int order = strcmp(name, w->entries[mid].tensor->name);
        if (order == 0)
            return &w->entries[mid];
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

static titan_status list_tensors(struct hf_weights *w, struct titan_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n; i++)
        n += w->shards[i].st->ntensors;
    w->entries = calloc(n + 1, sizeof *w->entries);
    if (!w->entries)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu tensors", n);
    for (size_t i = 0; i < w->n; i++)
        for (size_t t = 0; t < w->shards[i].st->ntensors; t++)
            w->entries[w->n_entries++] = (struct entry){&w->shards[i].st->tensors[t], w->shards[i].st};
    titan_assert(w->n_entries == n);
    qsort(w->entries, w->n_entries, sizeof *w->entries, compare_entries);
    for (size_t i = 1; i < n; i++)
        if (compare_entries(&w->entries[i - 1], &w->entries[i]) == 0)
            return titan_fail(err, TITAN_ECORRUPT, "tensor '%.100s' is in two shards", w->entries[i].tensor->name);
    return TITAN_OK;
}

static titan_status open_files(struct hf_weights *w, int at, struct titan_error *err)
{
    TRY(hf_config_read(at, w->path, &w->config, err));
    titan_status status = TITAN_OK;
    if (faccessat(at, SINGLE_NAME, F_OK, 0) == 0) /* this file has precedence over the index, as in transformers */
        status = open_shard(w, at, SINGLE_NAME, err);
    else if (faccessat(at, INDEX_NAME, F_OK, 0) == 0)
        status = open_index(w, at, err);
    else if (faccessat(at, PICKLED_NAME, F_OK, 0) < 0 && faccessat(at, PICKLED_NAME ".index.json", F_OK, 0) < 0)
        status = titan_fail(err, TITAN_ENOTFOUND, "neither '" SINGLE_NAME "' nor '" INDEX_NAME "' is there");
    else {
        status = titan_fail(err, TITAN_EUNSUPPORTED, "no safetensors: its weights are in '" PICKLED_NAME "'");
        titan_error_hint(err, "write them with save_pretrained() of transformers 5 once");
    }
    if (status == TITAN_OK)
        status = list_tensors(w, err);
    if (status != TITAN_OK)
        (void)titan_error_wrap(err, "'%s'", w->path);
    return status;
}

titan_status hf_weights_open(const char *path, struct hf_weights **ret, struct titan_error *err)
{
    _cleanup_fd_ int at = file_open_named(path, O_RDONLY | O_DIRECTORY);
    if (at < 0)
        return titan_fail_errno(err, "cannot open folder '%s'", path);
    struct hf_weights *w = calloc(1, sizeof *w);
    if (!w || !(w->path = strdup(path))) {
        free(w);
        return titan_fail(err, TITAN_ENOMEM, "no memory to open '%s'", path);
    }
    const titan_status status = open_files(w, at, err);
    if (status != TITAN_OK) {
        hf_weights_close(w);
        return status;
    }
    *ret = w;
    return TITAN_OK;
}

void hf_weights_close(struct hf_weights *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n; i++) {
        free(w->shards[i].name);
        safetensors_close(w->shards[i].st);
    }
    free(w->shards);
    free(w->entries);
    free(w->path);
    free(w);
}

/* --- checking ----------------------------------------------------------------------------------------------------- */

struct checking {
    const struct hf_weights *w;
    const struct hf_family *family;
    const struct model *m;
    bool *used;
    char missing[HF_NAME_MAX]; /* the first */
    size_t n_missing;
};

static titan_status check_one(struct checking *c, const char *name, int ndim, const int64_t *shape, bool optional,
                              struct titan_error *err)
{
    titan_assert(ndim >= 1 && ndim <= SAFETENSORS_DIMS_MAX);
    const struct entry *e = find(c->w, name);
    if (!e) {
        if (!optional && c->n_missing++ == 0)
            (void)snprintf(c->missing, sizeof c->missing, "%s", name);
        return TITAN_OK;
    }
    c->used[e - c->w->entries] = true;
    const struct safetensors_tensor *t = e->tensor;
    if (t->ndim != ndim || memcmp(t->shape, shape, (size_t)ndim * sizeof *shape) != 0) {
        _cleanup_(buf_free) struct buf theirs = BUF_INIT, ours = BUF_INIT;
        for (int i = 0; i < t->ndim; i++)
            buf_printf(&theirs, "%s%" PRId64, i == 0 ? ", " : " * ", t->shape[i]);
        for (int i = 0; i < ndim; i++)
            buf_printf(&ours, "%s%" PRId64, i == 0 ? ", " : " * ", shape[i]);
        return titan_fail(err, TITAN_ECONFLICT, "tensor '%s' has %d dimensions%s; the model's has %d%s", name, t->ndim,
                          theirs.data ? theirs.data : "", ndim, ours.data ? ours.data : "");
    }
    /* Refuses all other types, such as those of quantized files. */
    if (strcmp(t->dtype, "F32") != 0 && strcmp(t->dtype, "BF16") != 0 && strcmp(t->dtype, "F16") != 0)
        return titan_fail(err, TITAN_EUNSUPPORTED, "tensor '%s' is %s; F32, BF16 and F16 are read", name, t->dtype);
    return TITAN_OK;
}

/* Finds the family that config.json names, or without a config.json a family that the model can belong to. */
static titan_status family_of(const struct hf_weights *w, const struct model *m, const struct hf_family **ret,
                              struct titan_error *err)
{
    *ret = w->config.family;
    return w->config.there ? TITAN_OK : hf_family_of(&m->dims, "", ret, err);
}

/* Is the head read from the embedding? True if the head is tied in the files and has no tensor there. */
static bool takes_embedding(const struct hf_weights *w, const struct model *m, int tensor)
{
    return m->tensors[tensor].role == ROLE_OUTPUT && w->config.there && w->config.dims.tied_embeddings &&
           !find(w, "lm_head.weight");
}

/* Finds the blocks of a tensor in MXFP4, whose rows are rows of our matrix: NAME_blocks (parts,whole,cols/32,16) beside
 * NAME_scales (parts,whole,cols/32), both bytes. */
static const struct entry *mx_blocks(const struct hf_weights *w, const char *name)
{
    char blocks[HF_NAME_MAX + 8];

    (void)snprintf(blocks, sizeof blocks, "%s_blocks", name);
    return find(w, name) ? NULL : find(w, blocks);
}

static const struct entry *mx_scales(const struct hf_weights *w, const char *name)
{
    char scales[HF_NAME_MAX + 8];

    (void)snprintf(scales, sizeof scales, "%s_scales", name);
    return find(w, scales);
}

static titan_status check_mx(struct checking *c, const char *name, const struct hf_tensor *t, struct titan_error *err)
{
    const struct entry *both[] = {mx_blocks(c->w, name), mx_scales(c->w, name)};
    const int64_t shape[] = {t->parts, t->whole, t->cols / MXFP4_BLOCK, MXFP4_BLOCK / 2};

    for (int i = 0; i < 2; i++) {
        const struct entry *e = both[i];
        if (!e || t->cols % MXFP4_BLOCK != 0 || strcmp(e->tensor->dtype, "U8") != 0 || e->tensor->ndim != 4 - i ||
            memcmp(e->tensor->shape, shape, (size_t)(4 - i) * sizeof *shape) != 0)
            return titan_fail(err, TITAN_ECONFLICT,
                              "tensor '%s_%s' in MXFP4 is missing, or is not U8 of %" PRId64 " * %" PRId64
                              " rows of %" PRId64 " elements",
                              name, i == 0 ? "blocks" : "scales", shape[0], shape[1], t->cols);
        c->used[e - c->w->entries] = true;
    }
    return TITAN_OK;
}

/* Does the name belong to a layer behind the layers that the model takes? */
static bool of_further_layer(const struct hf_weights *w, const struct model *m, const char *name)
{
    static const char prefix[] = "model.layers.";
    const int64_t n = w->config.dims.n_layers, taken = n + m->dims.mtp_layers;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    const int64_t layer = strtoll(name + sizeof prefix - 1, NULL, 10);
    return layer >= taken && layer < n + w->config.more_layers;
}

void hf_weights_left_out(const struct hf_weights *w, const struct model *m, struct buf *ret_note)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n_entries; i++)
        n += of_further_layer(w, m, w->entries[i].tensor->name);
    if (n > 0)
        buf_printf(ret_note,
                   "%sleft out: %zu tensors of the layers that predict further tokens (multi-token prediction); a run "
                   "with model.mtp_layers takes them",
                   ret_note->len > 0 ? "; " : "", n);
    if (w->config.balance_key)
        buf_printf(ret_note, "%snot taken: %s = %g of " HF_CONFIG_NAME "; model.balance_loss is the coefficient here",
                   ret_note->len > 0 ? "; " : "", w->config.balance_key, w->config.balance_loss);
}

/* Is `other` the same matrix as `table`, which has a row per token? Compares a few rows from all over the matrices:
 * different matrices differ in every row. */
static titan_status compare_tables(const struct checking *c, const struct entry *table, const struct entry *other,
                                   bool *ret, struct titan_error *err)
{
    enum { LOOKED_AT = 64 };
    const int64_t rows = c->m->dims.vocab_size, cols = c->m->dims.dim;
    _cleanup_free_ float *a = calloc(2 * (size_t)cols, sizeof *a);
    bool same = other->tensor->ndim == 2 && other->tensor->shape[0] == rows && other->tensor->shape[1] == cols;
    if (!a)
        return titan_fail(err, TITAN_ENOMEM, "no memory to compare rows");
    for (int64_t i = 0; same && i < MIN(rows, LOOKED_AT); i++) {
        const uint64_t at = (uint64_t)((rows - 1) * i / MAX(MIN(rows, LOOKED_AT) - 1, 1) * cols);
        TRY(safetensors_read_floats(other->st, other->tensor, at, a, (size_t)cols, err));
        TRY(safetensors_read_floats(table->st, table->tensor, at, a + cols, (size_t)cols, err));
        same = memcmp(a, a + cols, (size_t)cols * sizeof *a) == 0;
    }
    *ret = same;
    return TITAN_OK;
}

/* Modules of multi-token prediction share the model's embedding and head. Copies for the modules, if the files have
 * them, must equal the model's matrices. */
static titan_status check_shared(struct checking *c, struct titan_error *err)
{
    static const enum tensor_role roles[] = {ROLE_EMBEDDING, ROLE_OUTPUT};
    const struct entry *embedding = find(c->w, "model.embed_tokens.weight"), *head = find(c->w, "lm_head.weight");
    char name[HF_NAME_MAX];
    for (int i = 0; i < 2 * (int)c->m->dims.mtp_layers; i++) {
        hf_shared_name(c->m, roles[i % 2], i / 2 + 1, name);
        const struct entry *copy = find(c->w, name);
        bool same;
        if (!copy)
            continue;
        c->used[copy - c->w->entries] = true;
        TRY(compare_tables(c, i % 2 == 1 && head ? head : embedding, copy, &same, err));
        if (same)
            continue;
        (void)titan_fail(err, TITAN_ECONFLICT, "tensor '%s' is not the model's %s, which its modules share", name,
                         i % 2 == 0 ? "embedding" : "head");
        titan_error_hint(err, "without model.mtp_layers these layers are left out");
        return TITAN_ECONFLICT;
    }
    return TITAN_OK;
}

static titan_status check_others(const struct checking *c, struct titan_error *err)
{
    const char *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < c->w->n_entries; i++) {
        const char *name = c->w->entries[i].tensor->name, *end = strstr(name, ".rotary_emb.inv_freq");
        if (c->used[i] || (end && !end[sizeof ".rotary_emb.inv_freq" - 1]) || of_further_layer(c->w, c->m, name) ||
            (strcmp(name, "lm_head.weight") == 0 && c->m->dims.tied_embeddings && c->w->config.dims.tied_embeddings))
            continue;
        first = first ? first : name;
        n++;
    }
    if (!first)
        return TITAN_OK;
    (void)titan_fail(err, TITAN_ECONFLICT, "tensor '%.100s' is not the model's%s", first,
                     n > 1 ? ", and others are not" : "");
    if (strcmp(first, "lm_head.weight") == 0)
        titan_error_hint(err, "set model.tied_embeddings = false: these weights have a head of their own");
    return TITAN_ECONFLICT;
}

static titan_status check_all(struct checking *c, struct titan_error *err)
{
    const struct model_dims *d = &c->m->dims;
    char name[HF_NAME_MAX];
    if (c->w->config.there && d->mtp_layers > c->w->config.more_layers)
        return titan_fail(err, TITAN_ECONFLICT,
                          "model.mtp_layers = %" PRId64 ", the weights have %" PRId64
                          " modules of multi-token prediction (num_nextn_predict_layers of " HF_CONFIG_NAME ")",
                          d->mtp_layers, c->w->config.more_layers);
    for (int i = 0; i < c->m->n_tensors; i++) {
        struct hf_tensor t;
        hf_find(c->family, c->m, i, false, &t);
        for (int part = 0; part < (t.stacked ? 1 : t.parts) && !takes_embedding(c->w, c->m, i); part++) {
            hf_name(c->family, c->m, i, part, name);
            TRY(t.ndim == 3 && mx_blocks(c->w, name) ? check_mx(c, name, &t, err)
                                                     : check_one(c, name, t.ndim, t.shape, false, err));
        }
    }
    if (c->n_missing > 0)
        return titan_fail(err, TITAN_ECONFLICT, "tensor '%s' is missing, and %zu others", c->missing, c->n_missing - 1);

    /* If the model has no such biases, the files must have none either, unless all of them are 0. */
    for (int l = (int)d->n_dense_layers; d->n_experts > 0 && l < model_all_layers(c->m); l++) {
        hf_bias_name(c->family, l, name);
        TRY(check_one(c, name, 1, &d->n_experts, true, err));
        const struct entry *e = find(c->w, name);
        _cleanup_free_ float *biases = e ? calloc((size_t)d->n_experts, sizeof *biases) : NULL;
        if (!e || layout_biases(c->m) > 0)
            continue;
        if (!biases)
            return titan_fail(err, TITAN_ENOMEM, "no memory for biases");
        TRY(safetensors_read_floats(e->st, e->tensor, 0, biases, (size_t)d->n_experts, err));
        for (int64_t i = 0; i < d->n_experts; i++)
            if (biases[i] != 0)
                return titan_fail(err, TITAN_ECONFLICT,
                                  "tensor '%s' has biases of experts, the model has none: set model.expert_bias = true",
                                  name);
    }
    TRY(check_shared(c, err));
    TRY(check_others(c, err));

    /* A head in the files beside a tied embedding must equal the embedding. */
    const struct entry *head = find(c->w, "lm_head.weight"), *embedding = find(c->w, "model.embed_tokens.weight");
    bool same = true;
    if (head && embedding && d->tied_embeddings)
        TRY(compare_tables(c, embedding, head, &same, err));
    if (same)
        return TITAN_OK;
    (void)titan_fail(err, TITAN_ECONFLICT, "tensor 'lm_head.weight' is not the embedding's matrix, which the head is");
    titan_error_hint(err, "set model.tied_embeddings = false: these weights have a head of their own");
    return TITAN_ECONFLICT;
}

titan_status hf_weights_check(const struct hf_weights *w, const struct model *m, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf note = BUF_INIT;
    _cleanup_free_ bool *used = calloc(w->n_entries + 1, sizeof *used);
    struct checking c = {.w = w, .m = m, .used = used};
    if (!used)
        return titan_fail(err, TITAN_ENOMEM, "no memory to check %zu tensors", w->n_entries);
    titan_status status = family_of(w, m, &c.family, err);
    if (status == TITAN_OK)
        status = hf_config_compare(&w->config, &m->dims, &note, err);
    if (status == TITAN_OK)
        status = check_all(&c, err);
    if (status != TITAN_OK)
        (void)titan_error_wrap(err, "'%s'", w->path);
    return status;
}

titan_status hf_weights_verify(const char *path, const struct model *m, int *ret_files, uint64_t *ret_bytes,
                               struct titan_error *err)
{
    struct hf_weights *w = NULL;

    *ret_files = 0;
    *ret_bytes = 0;
    TRY(hf_weights_open(path, &w, err));
    titan_status status = TITAN_OK;
    if (w->n_indexed > 0 && w->n_indexed != w->n_entries)
        status = titan_fail(err, TITAN_ECORRUPT, "'%s': '" INDEX_NAME "' names %zu tensors, its files have %zu", path,
                            w->n_indexed, w->n_entries);
    if (status == TITAN_OK && m)
        status = hf_weights_check(w, m, err);
    *ret_files = (int)w->n;
    for (size_t i = 0; i < w->n; i++)
        *ret_bytes += w->shards[i].st->file_bytes;
    hf_weights_close(w);
    return status;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static titan_status go_on(struct apart_watch *watch, struct titan_error *err)
{
    progress_action();
    if (watch)
        atomic_fetch_add_explicit(&watch->moved, 1, memory_order_relaxed);
    if (watch && atomic_load(&watch->stop))
        return titan_fail(err, TITAN_EREVOKED, "the epoch was revoked while weights were read");
    return TITAN_OK;
}

#define CHUNK_BYTES ((int64_t)1 << 20)

/* Rows [row, row+n) and columns [col, col+cols) of one part, as our matrix counts them. */
struct rows {
    int64_t part, row, n, col, cols;
    float *out;
};

/* Reads the rows from a tensor whose parts are transposed. */
static titan_status read_side(const struct entry *e, const struct hf_tensor *t, const struct rows *b,
                              struct apart_watch *watch, struct titan_error *err)
{
    const int64_t part = b->part, row = b->row, n = b->n, col = b->col, cols = b->cols;
    const bool all = n == t->rows;
    const int64_t first = all ? 0 : t->from + row * t->step, width = all ? t->whole : (n - 1) * t->step + 1;
    const int64_t most = all ? MAX(1, CHUNK_BYTES / (width * (int64_t)sizeof(float))) : 1, at = all ? t->from : 0;
    _cleanup_free_ float *chunk = calloc((size_t)(most * width), sizeof *chunk);

    titan_assert(t->stacked && part < t->parts && row >= 0 && n > 0 && row + n <= t->rows && col + cols <= t->cols);
    if (!chunk)
        return titan_fail(err, TITAN_ENOMEM, "no memory to turn a matrix");
    for (int64_t done = 0, step; done < cols; done += step) {
        step = MIN(most, cols - done);
        TRY(go_on(watch, err));
        TRY(safetensors_read_floats(e->st, e->tensor, (uint64_t)((part * t->cols + col + done) * t->whole + first),
                                    chunk, (size_t)(step * width), err));
        for (int64_t i = 0; i < n; i++)
            for (int64_t c = 0; c < step; c++)
                b->out[i * cols + done + c] = chunk[c * width + at + i * t->step];
    }
    return TITAN_OK;
}

/* Same as read_side(), from blocks of MXFP4, whose rows are rows of our matrix. */
static titan_status read_mx(const struct entry *blocks, const struct entry *scales, const struct hf_tensor *t,
                            const struct rows *b, struct apart_watch *watch, struct titan_error *err)
{
    const int64_t part = b->part, row = b->row, n = b->n, col = b->col, cols = b->cols;
    const int64_t each = t->cols / MXFP4_BLOCK, half = t->cols / 2, most = MAX(1, CHUNK_BYTES / (half * t->step));
    _cleanup_free_ uint8_t *codes = malloc((size_t)(most * t->step * (half + each)));
    _cleanup_free_ float *values = calloc((size_t)t->cols, sizeof *values);

    titan_assert(t->stacked && part < t->parts && row >= 0 && n > 0 && row + n <= t->rows && col + cols <= t->cols);
    if (!codes || !values)
        return titan_fail(err, TITAN_ENOMEM, "no memory to decode MXFP4");
    for (int64_t done = 0, step; done < n; done += step) {
        step = MIN(most, n - done);
        const int64_t from = part * t->whole + t->from + (row + done) * t->step, width = (step - 1) * t->step + 1;
        uint8_t *const exponents = codes + width * half;
        TRY(go_on(watch, err));
        TRY(safetensors_read(blocks->st, blocks->tensor, (uint64_t)(from * half), codes, (size_t)(width * half), err));
        TRY(safetensors_read(scales->st, scales->tensor, (uint64_t)(from * each), exponents, (size_t)(width * each),
                             err));
        for (int64_t i = 0; i < step; i++) {
            mxfp4_decode(values, codes + i * t->step * half, exponents + i * t->step * each, t->cols);
            memcpy(b->out + (done + i) * cols, values + col, (size_t)cols * sizeof *values);
        }
    }
    return TITAN_OK;
}

titan_status hf_weights_read(const struct hf_weights *w, const struct model *m, const struct shard_slice *p,
                             struct apart_watch *watch, struct titan_error *err)
{
    const bool vector = m->tensors[p->tensor].ndim == 1; /* a row in p, a column in t */
    const int64_t from = vector ? p->col : p->row, n = vector ? p->cols : p->rows;
    const int64_t col = vector ? 0 : p->col, cols = vector ? 1 : p->cols;
    char name[HF_NAME_MAX];
    const struct hf_family *family;
    struct hf_tensor t;
    titan_status status = TITAN_OK;

    titan_assert(p->tensor >= 0 && p->tensor < m->n_tensors && p->data);
    TRY(family_of(w, m, &family, err));
    hf_find(family, m, p->tensor, w->config.halves, &t);
    if (t.stacked) {
        /* All experts are in one tensor: reads a part at a time. A row of our biases is a column of a part. */
        const bool bias = model_is_expert_bias(&m->tensors[p->tensor]);
        const int64_t each = bias ? 1 : t.rows;
        hf_name(family, m, p->tensor, 0, name);
        const struct entry *e = find(w, name), *blocks = mx_blocks(w, name), *scales = mx_scales(w, name);
        titan_assert(e || (blocks && scales && !bias));
        for (int64_t done = 0, rows; done < p->rows && status == TITAN_OK; done += rows) {
            const int64_t at = (p->row + done) % each;
            rows = MIN(p->rows - done, each - at);
            const struct rows b = {.part = (p->row + done) / each,
                                   .row = bias ? p->col : at,
                                   .n = bias ? p->cols : rows,
                                   .col = bias ? 0 : p->col,
                                   .cols = bias ? 1 : p->cols,
                                   .out = p->data + done * p->cols};
            status = e ? read_side(e, &t, &b, watch, err) : read_mx(blocks, scales, &t, &b, watch, err);
        }
    }
    for (int64_t done = 0, run; done < n && !t.stacked && status == TITAN_OK; done += run) {
        const int64_t row = from + done, part = row / t.rows, theirs = hf_row(&t, row % t.rows);
        float *const out = p->data + done * cols;
        hf_name(family, m, p->tensor, (int)part, name);
        const struct entry *e = find(w, takes_embedding(w, m, p->tensor) ? "model.embed_tokens.weight" : name);
        titan_assert(e);

        /* Counts the next rows that also follow each other in the same part in the file. */
        const int64_t most = MIN(n - done, (part + 1) * t.rows - row);
        run = t.head == 0 ? most : 1;
        while (run < most && hf_row(&t, row % t.rows + run) == theirs + run)
            run++;
        titan_assert(run >= 1 && run <= most);
        titan_assert(theirs >= t.from && theirs + run <= t.from + t.rows && col >= 0 && col + cols <= t.cols);
        TRY(go_on(watch, err));
        if (cols == t.cols)
            status =
                safetensors_read_floats(e->st, e->tensor, (uint64_t)(theirs * t.cols), out, (size_t)(run * cols), err);
        for (int64_t r = 0; r < run && cols < t.cols && status == TITAN_OK; r++)
            status = safetensors_read_floats(e->st, e->tensor, (uint64_t)((theirs + r) * t.cols + col), out + r * cols,
                                             (size_t)cols, err);
    }
    if (status != TITAN_OK && err)
        (void)titan_error_wrap(err, "'%s'", w->path);
    return status;
}

titan_status hf_weights_read_biases(const struct hf_weights *w, const struct model *m, int layer, float *out,
                                    struct titan_error *err)
{
    titan_assert(layer >= 0 && layer < model_all_layers(m));
    const struct hf_family *family;
    char name[HF_NAME_MAX];
    TRY(family_of(w, m, &family, err));
    hf_bias_name(family, layer, name);
    const struct entry *e = find(w, name);
    memset(out, 0, (size_t)m->dims.n_experts * sizeof *out);
    return e ? safetensors_read_floats(e->st, e->tensor, 0, out, (size_t)m->dims.n_experts, err) : TITAN_OK;
}
