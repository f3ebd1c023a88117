/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/manifest.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/crc32c.h"
#include "base/json.h"

#define FORMAT "titan-checkpoint"
#define VERSION 5       /* written if the step alone does not determine how to continue */
#define VERSION_MIXED 4 /* written if types differ */
#define VERSION_ALIKE 3 /* written if all tensors have one type other than fp32 */
#define VERSION_FLOAT 2 /* written if all tensors are fp32 */
#define COUNT_MAX (INT64_C(1) << 40)
#define SUM_KEY ",\"manifest_crc32c\":\""
#define SUM_BYTES (sizeof(SUM_KEY) - 1 + 8 + 3) /* key, digits, "}\n */

void manifest_file_clear(struct manifest_file *file)
{
    free(file->slices);
    *file = (struct manifest_file){0};
}

void manifest_clear(struct manifest *m)
{
    for (int i = 0; m->files && i < m->nfiles; i++)
        manifest_file_clear(&m->files[i]);
    free(m->files);
    free(m->tensors);
    free(m->info.recipe);
    *m = (struct manifest){0};
}

int manifest_find_tensor(const struct manifest *m, const char *name)
{
    for (int i = 0; i < m->ntensors; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return i;
    return -1;
}

static bool has_optimizer_tensors(const struct manifest *m)
{
    bool found = false;

    for (int i = 0; i < m->ntensors; i++)
        found = found || strncmp(m->tensors[i].name, "optim.", 6) == 0;
    return found;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static int count_members(const struct json *list)
{
    int n = 0;
    for (const struct json *m = list && list->type == JSON_ARRAY ? list->first : NULL; m && n < INT_MAX; m = m->next)
        n++;
    return n;
}

/* Parses exactly `digits` hexadecimal digits. */
static bool parse_hex(const char *text, int digits, uint64_t *ret)
{
    titan_assert(digits > 0 && digits <= 16);
    uint64_t value = 0;
    for (int i = 0; i < digits; i++) {
        char c = text[i];
        if (c >= '0' && c <= '9')
            value = value << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value << 4 | (uint64_t)(c - 'a' + 10);
        else
            return false;
    }
    *ret = value;
    return text[digits] == '\0';
}

static titan_status parse_tensor(const struct json *member, struct manifest *m, struct tensor_spec *spec,
                                 struct titan_error *err)
{
    const char *name = json_string(member, "name", ""), *dtype = json_string(member, "dtype", "");
    if (!*name || strlen(name) >= sizeof(spec->name))
        return titan_fail(err, TITAN_ECORRUPT, "a tensor has no name, or one over %zu bytes", sizeof(spec->name) - 1);
    (void)snprintf(spec->name, sizeof(spec->name), "%s", name);

    const char *const first = m->info.dtype; /* before version 4 all tensors have the first one's type */
    const bool half = strcmp(dtype, "BF16") == 0 || strcmp(dtype, "F16") == 0;
    if (strcmp(dtype, "F32") != 0 && !(m->version >= VERSION_ALIKE && half))
        return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' is '%.16s', which version %d has not", name, dtype,
                          m->version);
    if (m->version < VERSION_MIXED && first[0] && strcmp(dtype, first) != 0)
        return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' is '%.16s', not '%s'", name, dtype, first);
    (void)snprintf(spec->dtype, sizeof(spec->dtype), "%s", dtype);
    if (!first[0])
        (void)snprintf(m->info.dtype, sizeof(m->info.dtype), "%s", dtype);

    const struct json *shape = json_get(member, "shape");
    if (!shape || shape->type != JSON_ARRAY)
        return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' has no shape", name);
    spec->numel = 1;
    for (const struct json *d = shape->first; d; d = d->next) {
        if (spec->ndim == (int)ARRAY_SIZE(spec->shape) || d->type != JSON_INT || d->integer < 1 ||
            __builtin_mul_overflow(spec->numel, d->integer, &spec->numel) || spec->numel > INT64_MAX / 8)
            return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' has a shape that cannot be", name);
        spec->shape[spec->ndim++] = d->integer;
    }
    if (spec->ndim == 0)
        return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' has a shape without dimensions", name);
    return TITAN_OK;
}

static bool inside(int64_t from, int64_t count, int64_t size)
{
    return from >= 0 && count >= 1 && from <= size && count <= size - from;
}

/* Parses the numbers of a slice: tensor, row, rows, col and cols. In version 1 they are tensor, start and count, a
 * range of elements. */
static titan_status parse_slice(const struct json *list, const struct manifest *m, struct manifest_file *file,
                                struct titan_error *err)
{
    const int n = m->version == 1 ? 3 : 5;
    int64_t v[5] = {0}, rows, cols;
    int at = 0;
    for (const struct json *x = list->type == JSON_ARRAY ? list->first : NULL; x; x = x->next) {
        if (at == n || x->type != JSON_INT)
            return titan_fail(err, TITAN_ECORRUPT, "a piece is not a list of %d numbers", n);
        v[at++] = x->integer;
    }
    if (at != n || v[0] < 0 || v[0] >= m->ntensors)
        return titan_fail(err, TITAN_ECORRUPT, "a piece names no tensor of the list");

    const struct tensor_spec *spec = &m->tensors[v[0]];
    shard_slice_matrix(spec, &rows, &cols);
    if (n == 5) {
        if (!inside(v[1], v[2], rows) || !inside(v[3], v[4], cols))
            return titan_fail(err, TITAN_ECORRUPT,
                              "rows %" PRId64 "+%" PRId64 ", columns %" PRId64 "+%" PRId64
                              " of tensor '%s', which has %" PRId64 " and %" PRId64,
                              v[1], v[2], v[3], v[4], spec->name, rows, cols);
        file->slices[file->nslices++] = (struct manifest_slice){
            .slice = {.tensor = (int)v[0], .row = v[1], .rows = v[2], .col = v[3], .cols = v[4]}, .range = -1};
        return TITAN_OK;
    }
    if (!inside(v[1], v[2], spec->numel))
        return titan_fail(err, TITAN_ECORRUPT, "elements %" PRId64 "+%" PRId64 " of tensor '%s', which has %" PRId64,
                          v[1], v[2], spec->name, spec->numel);
    struct shard_slice slices[SHARD_SLICES_BETWEEN_MAX];
    const int n_slices = shard_slices_between(cols, v[1], v[1] + v[2], slices);
    titan_assert(n_slices >= 1 && n_slices <= SHARD_SLICES_BETWEEN_MAX);
    for (int i = 0; i < n_slices; i++) {
        slices[i].tensor = (int)v[0];
        file->slices[file->nslices++] = (struct manifest_slice){.slice = slices[i], .range = v[1]};
    }
    return TITAN_OK;
}

static titan_status parse_file(const struct json *member, const struct manifest *m, struct manifest_file *file,
                               struct titan_error *err)
{
    const char *name = json_string(member, "name", "");
    if (!*name || strlen(name) >= sizeof(file->name) || strchr(name, '/') || name[0] == '.')
        return titan_fail(err, TITAN_ECORRUPT, "a shard file has no plain name");
    (void)snprintf(file->name, sizeof(file->name), "%s", name);
    int64_t bytes = json_int(member, "bytes", -1);
    uint64_t crc = 0;
    if (bytes < 0 || !parse_hex(json_string(member, "crc32c", ""), 8, &crc))
        return titan_fail(err, TITAN_ECORRUPT, "file '%s' has no size or no checksum", name);
    file->bytes = (uint64_t)bytes;
    file->crc = (uint32_t)crc;
    const struct json *slices = json_get(member, "pieces");
    if (!slices || slices->type != JSON_ARRAY)
        return titan_fail(err, TITAN_ECORRUPT, "file '%s' has no list of pieces", name);
    const size_t most = m->version == 1 ? SHARD_SLICES_BETWEEN_MAX : 1;
    file->slices = calloc((size_t)count_members(slices) * most + 1, sizeof(*file->slices));
    if (!file->slices)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the pieces of '%s'", file->name);
    for (const struct json *p = slices->first; p; p = p->next)
        if (parse_slice(p, m, file, err) != TITAN_OK)
            return titan_error_wrap(err, "file '%s'", file->name);
    return TITAN_OK;
}

static bool parse_count(const struct json *from, const char *key, int64_t most, uint64_t *ret)
{
    const int64_t n = json_int(from, key, -1);
    *ret = (uint64_t)n;
    return n >= 0 && n <= most;
}

#define READ_MAX (INT64_MAX / 2) /* tokens */

static titan_status parse_info(const struct json *root, struct checkpoint_info *info, struct titan_error *err)
{
    static const char *const counts[] = {"step", "epoch", "tokens", "world", "skipped_steps"};
    int64_t v[ARRAY_SIZE(counts)];
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        v[i] = json_int(root, counts[i], -1);
        if (v[i] < 0)
            return titan_fail(err, TITAN_ECORRUPT, "'%s' is missing or no count", counts[i]);
    }
    if (v[3] < 1 || v[3] > INT_MAX)
        return titan_fail(err, TITAN_ECORRUPT, "world of %" PRId64, v[3]);
    /* No run trains longer than this: 2^40 tokens per step, 2^40 steps. */
    if (v[0] > COUNT_MAX || v[1] > COUNT_MAX || v[4] > v[0] || (v[0] == 0 ? v[2] > 0 : v[2] / v[0] > COUNT_MAX))
        return titan_fail(err, TITAN_ECORRUPT,
                          "step %" PRId64 ", epoch %" PRId64 ", %" PRId64 " tokens, %" PRId64
                          " skipped steps cannot be",
                          v[0], v[1], v[2], v[4]);
    info->step = (uint64_t)v[0];
    info->epoch = (uint64_t)v[1];
    info->tokens = (uint64_t)v[2];
    info->world = (int)v[3];
    info->skipped.total = (uint64_t)v[4];
    const struct json *const skipped =
        json_get(root, "skipped"); /* missing in older manifests, and if no step was skipped */
    if (skipped) {
        const int64_t in_a_row = json_int(skipped, "in_a_row", -1), first = json_int(skipped, "first", -1),
                      last = json_int(skipped, "last", -1);
        info->skipped.in_a_row = (uint64_t)in_a_row;
        info->skipped.first = (uint64_t)first;
        info->skipped.last = (uint64_t)last;
        if (in_a_row < 0 || first < 0 || last < 0 || !skipped_possible(&info->skipped, info->step))
            return titan_fail(err, TITAN_ECORRUPT,
                              "skipped steps %" PRId64 " to %" PRId64 ", %" PRId64 " in a row, cannot be", first, last,
                              in_a_row);
    }
    if (!parse_hex(json_string(root, "recipe_hash", ""), 16, &info->recipe_hash))
        return titan_fail(err, TITAN_ECORRUPT, "'recipe_hash' is missing or no hash");
    (void)snprintf(info->owner, sizeof(info->owner), "%s", json_string(root, "owner", ""));
    (void)snprintf(info->metrics, sizeof(info->metrics), "%s", json_string(root, "metrics", ""));
    (void)snprintf(info->run, sizeof(info->run), "%s", json_string(root, "run", ""));

    struct run_identity *const identity = &info->identity;
    const struct json *const from = json_get(root, "from"), *const o = json_get(root, "identity");
    TRY(checkpoint_line_parse(root, &identity->line, err));
    const struct json *const scales = json_get(root, "held_scales");
    if (scales) {
        struct held_scales *const h = &identity->scales;
        bool good = scales->type == JSON_ARRAY;
        h->step = info->step;
        for (const struct json *s = good ? scales->first : NULL; s && good; s = s->next) {
            good = h->n < HELD_SCALES_MAX && s->type == JSON_INT && s->integer >= INT8_MIN && s->integer <= INT8_MAX;
            if (good)
                h->power[h->n++] = (int8_t)s->integer;
        }
        if (!good)
            return titan_fail(err, TITAN_ECORRUPT, "'held_scales' are no exponents");
    }
    if (from && !parse_count(from, "step", COUNT_MAX, &identity->from_step))
        return titan_fail(err, TITAN_ECORRUPT, "'from' names no step");
    (void)snprintf(identity->from_run, sizeof(identity->from_run), "%s", json_string(from, "run", ""));
    if (o) {
        const struct json *const list = json_get(o, "data");
        struct data_identity *const d = &identity->data;
        uint64_t seq_len = 0;
        bool good = parse_hex(json_string(o, "tokenizer", ""), 16, &identity->tokenizer) &&
                    parse_count(o, "seq_len", INT32_MAX, &seq_len) && seq_len > 0 &&
                    parse_count(o, "samples", READ_MAX / (int64_t)seq_len, &identity->samples) &&
                    parse_count(o, "first", (int64_t)identity->samples, &d->first) && list && list->type == JSON_ARRAY;
        d->seq_len = (int64_t)seq_len;
        for (const struct json *s = good ? list->first : NULL; s && good; s = s->next) {
            struct data_source_identity *x = d->n < MIXTURE_MAX ? &d->source[d->n++] : NULL;
            good = x && parse_hex(json_string(s, "fingerprint", ""), 16, &x->fingerprint) &&
                   parse_count(s, "tokens", INT64_MAX, &x->tokens) &&
                   parse_count(s, "share", (int64_t)MIXTURE_BLOCK, &x->share) &&
                   parse_count(s, "from", READ_MAX / d->seq_len, &x->from);
        }
        identity->known = good && d->n > 0;
        if (!identity->known)
            return titan_fail(err, TITAN_ECORRUPT, "'identity' cannot be one");
    }
    info->recipe = strdup(json_string(root, "recipe", ""));
    return info->recipe ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "no memory for a recipe");
}

static void free_json(struct json **root)
{
    json_free(*root);
}

titan_status manifest_parse(const char *text, size_t len, struct manifest *ret, struct titan_error *err)
{
    char digits[9] = {0};
    uint64_t crc = 0;
    *ret = (struct manifest){0};
    if (len < SUM_BYTES || memcmp(text + len - SUM_BYTES, SUM_KEY, sizeof(SUM_KEY) - 1) != 0)
        return titan_fail(err, TITAN_ECORRUPT, "does not end with its checksum");
    const size_t body = len - SUM_BYTES;
    memcpy(digits, text + body + sizeof(SUM_KEY) - 1, 8);
    const uint32_t got = crc32c(0, text, body);
    if (!parse_hex(digits, 8, &crc) || (uint32_t)crc != got)
        return titan_fail(err, TITAN_ECORRUPT, "crc32c %08x, expected %.8s", got, digits);

    _cleanup_(free_json) struct json *root = NULL;
    if (json_parse(text, len, &root, err) != TITAN_OK) {
        if (err)
            err->status = TITAN_ECORRUPT;
        return TITAN_ECORRUPT;
    }
    if (strcmp(json_string(root, "format", ""), FORMAT) != 0)
        return titan_fail(err, TITAN_ECORRUPT, "not the manifest of a checkpoint");
    const int64_t version = json_int(root, "version", -1);
    if (version < 1 || version > VERSION)
        return titan_fail(err, TITAN_EVERSION, "manifest version %" PRId64 ", this program reads up to version %d",
                          version, VERSION);
    ret->version = (int)version;
    TRY(parse_info(root, &ret->info, err));

    const struct json *tensors = json_get(root, "tensors"), *files = json_get(root, "files");
    if (!tensors || tensors->type != JSON_ARRAY || !files || files->type != JSON_ARRAY)
        return titan_fail(err, TITAN_ECORRUPT, "no list of tensors or of files");
    ret->tensors = calloc((size_t)count_members(tensors) + 1, sizeof(*ret->tensors));
    ret->files = calloc((size_t)count_members(files) + 1, sizeof(*ret->files));
    if (!ret->tensors || !ret->files)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the lists of a manifest");
    for (const struct json *t = tensors->first; t; t = t->next)
        TRY(parse_tensor(t, ret, &ret->tensors[ret->ntensors++], err));
    /* "none": the optimizer keeps no tensors */
    ret->info.model_only = !has_optimizer_tensors(ret) && !json_get(root, "optimizer");
    for (int i = 0; i < ret->ntensors; i++) {
        ret->info.biases = ret->info.biases || strstr(ret->tensors[i].name, ".moe.expert_bias");
    }
    for (const struct json *f = files->first; f; f = f->next) {
        TRY(parse_file(f, ret, &ret->files[ret->nfiles++], err));
        ret->info.bytes += ret->files[ret->nfiles - 1].bytes;
    }
    return manifest_check_cover(ret, err);
}

titan_status manifest_parse_file(const char *text, size_t len, const struct manifest *m, struct manifest_file *ret,
                                 struct titan_error *err)
{
    *ret = (struct manifest_file){0};
    _cleanup_(free_json) struct json *root = NULL;
    TRY(json_parse(text, len, &root, err));
    titan_status status = parse_file(root, m, ret, err);
    if (status != TITAN_OK)
        manifest_file_clear(ret);
    return status;
}

/* --- cover -------------------------------------------------------------------------------------------------------- */

static int compare(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_slices(const void *a, const void *b)
{
    const struct shard_slice *x = a, *y = b;
    int order = compare(x->tensor, y->tensor);
    if (order == 0)
        order = compare(x->row, y->row);
    return order != 0 ? order : compare(x->col, y->col);
}

/* The covered part of a matrix: columns [col, col+cols) are covered down to row. The stretches are a heap, ordered by
 * row, then column. Sorted boxes tile the matrix exactly if each begins at the first stretch. */
struct front {
    struct stretch {
        int64_t row, col, cols;
    } * heap;
    size_t n;
};

static bool before(const struct stretch *a, const struct stretch *b)
{
    return a->row != b->row ? a->row < b->row : a->col < b->col;
}

static void push(struct front *f, struct stretch s)
{
    size_t i = f->n++;
    for (; i > 0 && before(&s, &f->heap[(i - 1) / 2]); i = (i - 1) / 2)
        f->heap[i] = f->heap[(i - 1) / 2];
    f->heap[i] = s;
}

static struct stretch pop(struct front *f)
{
    titan_assert(f->n > 0);
    const struct stretch top = f->heap[0], last = f->heap[--f->n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < f->n; i = child) {
        if (child + 1 < f->n && before(&f->heap[child + 1], &f->heap[child]))
            child++;
        if (!before(&f->heap[child], &last))
            break;
        f->heap[i] = f->heap[child];
    }
    if (f->n > 0)
        f->heap[i] = last;
    return top;
}

static titan_status not_once(const struct manifest *m, int tensor, int64_t row, int64_t col, const char *what,
                             struct titan_error *err)
{
    return titan_fail(err, TITAN_ECORRUPT, "tensor '%s': elements from row %" PRId64 ", column %" PRId64 " on are %s",
                      m->tensors[tensor].name, row, col, what);
}

/* Checks the sorted boxes of one tensor. Each must begin at the first stretch of the front, and the front must be level
 * over the box's width. */
static titan_status check_tensor(const struct manifest *m, int tensor, const struct shard_slice *slices, size_t n,
                                 struct front *f, struct titan_error *err)
{
    int64_t rows, cols;
    shard_slice_matrix(&m->tensors[tensor], &rows, &cols);
    f->n = 0;
    push(f, (struct stretch){0, 0, cols});
    for (const struct shard_slice *p = slices; p < slices + n; p++) {
        titan_assert(p->rows > 0 && p->cols > 0);
        for (int64_t col = p->col, left = p->cols; left > 0;) {
            const struct stretch at = {p->row, col, left};
            if (f->n == 0 || before(&at, &f->heap[0]))
                return not_once(m, tensor, p->row, col, "there twice", err);
            if (before(&f->heap[0], &at))
                return not_once(m, tensor, f->heap[0].row, f->heap[0].col, "missing", err);
            const struct stretch s = pop(f);
            const int64_t taken = MIN(left, s.cols);
            if (taken < s.cols)
                push(f, (struct stretch){s.row, s.col + taken, s.cols - taken});
            col += taken;
            left -= taken;
        }
        if (p->row + p->rows < rows)
            push(f, (struct stretch){p->row + p->rows, p->col, p->cols});
    }
    return f->n == 0 ? TITAN_OK : not_once(m, tensor, f->heap[0].row, f->heap[0].col, "missing", err);
}

titan_status manifest_check_cover(const struct manifest *m, struct titan_error *err)
{
    size_t n = 0, at = 0;
    for (int f = 0; f < m->nfiles; f++)
        n += (size_t)m->files[f].nslices;
    _cleanup_free_ struct shard_slice *all = calloc(n + 1, sizeof(*all));
    _cleanup_free_ struct stretch *heap = calloc(n + 2, sizeof(*heap)); /* a box adds one stretch at most */
    struct front front = {.heap = heap};
    if (!all || !heap)
        return titan_fail(err, TITAN_ENOMEM, "no memory to check %zu pieces", n);
    for (int f = 0; f < m->nfiles; f++)
        for (int p = 0; p < m->files[f].nslices; p++)
            all[at++] = m->files[f].slices[p].slice;
    titan_assert(at == n);
    qsort(all, n, sizeof(*all), compare_slices);
    at = 0;
    for (int t = 0; t < m->ntensors; t++) {
        size_t end = at;
        while (end < n && all[end].tensor == t)
            end++;
        TRY(check_tensor(m, t, all + at, end - at, &front, err));
        at = end;
    }
    titan_assert(at == n);
    return TITAN_OK;
}

/* --- names -------------------------------------------------------------------------------------------------------- */

void manifest_slice_name(const struct manifest *m, const struct manifest_slice *slice,
                         char ret[MANIFEST_SLICE_NAME_MAX], int64_t *ret_place)
{
    titan_assert(slice->slice.tensor >= 0 && slice->slice.tensor < m->ntensors);
    const struct tensor_spec *spec = &m->tensors[slice->slice.tensor];
    int64_t rows, cols;
    if (slice->range < 0) {
        (void)snprintf(ret, MANIFEST_SLICE_NAME_MAX, "%s@%" PRId64 ",%" PRId64, spec->name, slice->slice.row,
                       slice->slice.col);
        *ret_place = 0;
        return;
    }
    shard_slice_matrix(spec, &rows, &cols);
    (void)snprintf(ret, MANIFEST_SLICE_NAME_MAX, "%s@%" PRId64, spec->name, slice->range);
    *ret_place = slice->slice.row * cols + slice->slice.col - slice->range;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static void print_file(struct json_writer *w, const struct manifest_file *file)
{
    char crc[16];
    (void)snprintf(crc, sizeof(crc), "%08x", file->crc);
    json_begin_object(w, NULL);
    json_put_string(w, "name", file->name);
    json_put_uint(w, "bytes", file->bytes);
    json_put_string(w, "crc32c", crc);
    json_begin_array(w, "pieces");
    for (int i = 0; i < file->nslices; i++) {
        const struct shard_slice *p = &file->slices[i].slice;
        json_begin_array(w, NULL);
        json_put_int(w, NULL, p->tensor);
        json_put_int(w, NULL, p->row);
        json_put_int(w, NULL, p->rows);
        json_put_int(w, NULL, p->col);
        json_put_int(w, NULL, p->cols);
        json_end_array(w);
    }
    json_end_array(w);
    json_end_object(w);
}

void manifest_print_file(const struct manifest_file *file, struct buf *out)
{
    struct json_writer w = {.out = out};
    print_file(&w, file);
}

static void put_hash(struct json_writer *w, const char *key, uint64_t hash)
{
    char text[24];
    (void)snprintf(text, sizeof(text), "%016" PRIx64, hash);
    json_put_string(w, key, text);
}

/* Returns the oldest version that can represent the manifest. */
static int version_of(const struct manifest *m)
{
    const char *first = m->ntensors > 0 ? manifest_dtype(&m->tensors[0]) : "F32";

    if (m->info.identity.moved || m->info.identity.line.n > 0)
        return VERSION;
    for (int i = 1; i < m->ntensors; i++)
        if (strcmp(manifest_dtype(&m->tensors[i]), first) != 0)
            return VERSION_MIXED;
    return strcmp(first, "F32") == 0 ? VERSION_FLOAT : VERSION_ALIKE;
}

void manifest_print_writer(uint64_t recipe_hash, const char *owner, struct buf *out)
{
    struct json_writer w = {.out = out};
    put_hash(&w, "recipe_hash", recipe_hash);
    if (*owner)
        json_put_string(&w, "owner", owner);
    buf_puts(out, ",\"recipe\":");
}

titan_status manifest_print(const struct manifest *m, struct buf *out, struct titan_error *err)
{
    size_t begin = out->len;
    struct json_writer w = {.out = out};
    json_begin_object(&w, NULL);
    json_put_string(&w, "format", FORMAT);
    json_put_int(&w, "version", version_of(m));
    json_put_uint(&w, "step", m->info.step);
    json_put_uint(&w, "epoch", m->info.epoch);
    json_put_uint(&w, "tokens", m->info.tokens);
    json_put_int(&w, "world", m->info.world);
    json_put_uint(&w, "skipped_steps", m->info.skipped.total);
    if (!m->info.model_only && !has_optimizer_tensors(m))
        json_put_string(&w, "optimizer", "none");
    if (m->info.skipped.first != 0) {
        json_begin_object(&w, "skipped");
        json_put_uint(&w, "in_a_row", m->info.skipped.in_a_row);
        json_put_uint(&w, "first", m->info.skipped.first);
        json_put_uint(&w, "last", m->info.skipped.last);
        json_end_object(&w);
    }
    if (m->info.identity.scales.n > 0 && m->info.identity.scales.step == m->info.step) {
        json_begin_array(&w, "held_scales");
        for (int i = 0; i < m->info.identity.scales.n; i++)
            json_put_int(&w, NULL, m->info.identity.scales.power[i]);
        json_end_array(&w);
    }
    if (m->info.identity.line.n > 0)
        checkpoint_line_print(&m->info.identity.line, &w);
    buf_puts(out, ",");
    manifest_print_writer(m->info.recipe_hash, m->info.owner, out);
    w.comma = false; /* the key is already written */
    json_put_string(&w, NULL, m->info.recipe ? m->info.recipe : "");
    if (m->info.metrics[0])
        json_put_string(&w, "metrics", m->info.metrics);
    if (m->info.run[0])
        json_put_string(&w, "run", m->info.run);
    if (m->info.identity.from_run[0]) {
        json_begin_object(&w, "from");
        json_put_string(&w, "run", m->info.identity.from_run);
        json_put_uint(&w, "step", m->info.identity.from_step);
        json_end_object(&w);
    }
    if (m->info.identity.known) {
        const struct data_identity *d = &m->info.identity.data;
        json_begin_object(&w, "identity");
        put_hash(&w, "tokenizer", m->info.identity.tokenizer);
        json_put_uint(&w, "samples", m->info.identity.samples);
        json_put_int(&w, "seq_len", d->seq_len);
        json_put_uint(&w, "first", d->first);
        json_begin_array(&w, "data");
        for (int k = 0; k < d->n; k++) {
            const struct data_source_identity *s = &d->source[k];
            json_begin_object(&w, NULL);
            put_hash(&w, "fingerprint", s->fingerprint);
            json_put_uint(&w, "tokens", s->tokens);
            json_put_uint(&w, "share", s->share);
            json_put_uint(&w, "from", s->from);
            json_end_object(&w);
        }
        json_end_array(&w);
        json_end_object(&w);
    }
    json_begin_array(&w, "tensors");
    for (const struct tensor_spec *t = m->tensors; t < m->tensors + m->ntensors; t++) {
        json_begin_object(&w, NULL);
        json_put_string(&w, "name", t->name);
        json_put_string(&w, "dtype", manifest_dtype(t));
        json_begin_array(&w, "shape");
        for (int d = 0; d < t->ndim; d++)
            json_put_int(&w, NULL, t->shape[d]);
        json_end_array(&w);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_begin_array(&w, "files");
    for (int i = 0; i < m->nfiles; i++)
        print_file(&w, &m->files[i]);
    json_end_array(&w);
    if (!buf_failed(out))
        buf_printf(out, SUM_KEY "%08x\"}\n", crc32c(0, out->data + begin, out->len - begin));
    if (buf_failed(out))
        return titan_fail(err, TITAN_ENOMEM, "no memory for a manifest of %d tensors", m->ntensors);
    return TITAN_OK;
}
