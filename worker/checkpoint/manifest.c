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
#define VERSION 1
#define SUM_KEY ",\"manifest_crc32c\":\""
#define SUM_BYTES (sizeof(SUM_KEY) - 1 + 8 + 3) /* key, digits, "}\n */

void manifest_file_clear(struct manifest_file *file)
{
    free(file->pieces);
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

/* --- reading ------------------------------------------------------------------------------------------------------ */

static int count_members(const struct json *list)
{
    int n = 0;
    for (const struct json *m = list && list->type == JSON_ARRAY ? list->first : NULL; m && n < INT_MAX; m = m->next)
        n++;
    return n;
}

/* Exactly `digits` hexadecimal digits. */
static bool parse_hex(const char *text, int digits, uint64_t *ret)
{
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

static titan_status parse_tensor(const struct json *member, struct tensor_spec *spec, struct titan_error *err)
{
    const char *name = json_string(member, "name", "");
    if (!*name || strlen(name) >= sizeof(spec->name))
        return titan_fail(err, TITAN_ECORRUPT, "a tensor has no name, or one over %zu bytes", sizeof(spec->name) - 1);
    (void)snprintf(spec->name, sizeof(spec->name), "%s", name);
    if (strcmp(json_string(member, "dtype", ""), "F32") != 0)
        return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' is not F32", name);
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
    return TITAN_OK;
}

static titan_status parse_piece(const struct json *triple, const struct manifest *m, struct manifest_piece *ret,
                                struct titan_error *err)
{
    int64_t v[3] = {0};
    int n = 0;
    for (const struct json *x = triple->type == JSON_ARRAY ? triple->first : NULL; x; x = x->next) {
        if (n == 3 || x->type != JSON_INT)
            return titan_fail(err, TITAN_ECORRUPT, "a piece is not [tensor,start,count]");
        v[n++] = x->integer;
    }
    if (n != 3 || v[0] < 0 || v[0] >= m->ntensors)
        return titan_fail(err, TITAN_ECORRUPT, "a piece names no tensor of the list");
    const struct tensor_spec *spec = &m->tensors[v[0]];
    if (v[1] < 0 || v[2] < 1 || v[1] > spec->numel || v[2] > spec->numel - v[1])
        return titan_fail(err, TITAN_ECORRUPT, "elements %" PRId64 "+%" PRId64 " of tensor '%s', which has %" PRId64,
                          v[1], v[2], spec->name, spec->numel);
    *ret = (struct manifest_piece){.tensor = (int)v[0], .start = v[1], .count = v[2]};
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
    const struct json *pieces = json_get(member, "pieces");
    if (!pieces || pieces->type != JSON_ARRAY)
        return titan_fail(err, TITAN_ECORRUPT, "file '%s' has no list of pieces", name);
    file->pieces = calloc((size_t)count_members(pieces) + 1, sizeof(*file->pieces));
    if (!file->pieces)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the pieces of '%s'", name);
    for (const struct json *p = pieces->first; p; p = p->next) {
        if (parse_piece(p, m, &file->pieces[file->npieces], err) != TITAN_OK)
            return titan_error_wrap(err, "file '%s'", name);
        file->npieces++;
    }
    return TITAN_OK;
}

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
    info->step = (uint64_t)v[0];
    info->epoch = (uint64_t)v[1];
    info->tokens = (uint64_t)v[2];
    info->world = (int)v[3];
    info->skipped_steps = (uint64_t)v[4];
    if (!parse_hex(json_string(root, "recipe_hash", ""), 16, &info->recipe_hash))
        return titan_fail(err, TITAN_ECORRUPT, "'recipe_hash' is missing or no hash");
    info->recipe = strdup(json_string(root, "recipe", ""));
    return info->recipe ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "no memory for a recipe");
}

static titan_status parse_lists(const struct json *root, struct manifest *m, struct titan_error *err)
{
    const struct json *tensors = json_get(root, "tensors"), *files = json_get(root, "files");
    if (!tensors || tensors->type != JSON_ARRAY || !files || files->type != JSON_ARRAY)
        return titan_fail(err, TITAN_ECORRUPT, "no list of tensors or of files");
    m->tensors = calloc((size_t)count_members(tensors) + 1, sizeof(*m->tensors));
    m->files = calloc((size_t)count_members(files) + 1, sizeof(*m->files));
    if (!m->tensors || !m->files)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the lists of a manifest");
    for (const struct json *t = tensors->first; t; t = t->next)
        TRY(parse_tensor(t, &m->tensors[m->ntensors++], err));
    for (const struct json *f = files->first; f; f = f->next) {
        TRY(parse_file(f, m, &m->files[m->nfiles++], err));
        m->info.bytes += m->files[m->nfiles - 1].bytes;
    }
    return manifest_check_cover(m, err);
}

static void free_json(struct json **root)
{
    json_free(*root);
}

static titan_status check_sum(const char *text, size_t len, struct titan_error *err)
{
    char digits[9] = {0};
    uint64_t crc = 0;
    if (len < SUM_BYTES || memcmp(text + len - SUM_BYTES, SUM_KEY, sizeof(SUM_KEY) - 1) != 0)
        return titan_fail(err, TITAN_ECORRUPT, "does not end with its checksum");
    size_t body = len - SUM_BYTES;
    memcpy(digits, text + body + sizeof(SUM_KEY) - 1, 8);
    uint32_t got = crc32c(0, text, body);
    if (!parse_hex(digits, 8, &crc) || (uint32_t)crc != got)
        return titan_fail(err, TITAN_ECORRUPT, "crc32c %08x, expected %.8s", got, digits);
    return TITAN_OK;
}

titan_status manifest_parse(const char *text, size_t len, struct manifest *ret, struct titan_error *err)
{
    *ret = (struct manifest){0};
    TRY(check_sum(text, len, err));
    _cleanup_(free_json) struct json *root = NULL;
    if (json_parse(text, len, &root, err) != TITAN_OK) {
        if (err)
            err->status = TITAN_ECORRUPT;
        return TITAN_ECORRUPT;
    }
    if (strcmp(json_string(root, "format", ""), FORMAT) != 0)
        return titan_fail(err, TITAN_ECORRUPT, "not the manifest of a checkpoint");
    if (json_int(root, "version", -1) != VERSION)
        return titan_fail(err, TITAN_EVERSION, "manifest version %" PRId64 ", this program reads version %d",
                          json_int(root, "version", -1), VERSION);
    TRY(parse_info(root, &ret->info, err));
    return parse_lists(root, ret, err);
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

static int compare_pieces(const void *a, const void *b)
{
    const struct manifest_piece *x = a, *y = b;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return x->start < y->start ? -1 : x->start > y->start;
}

/* Sorted pieces tile tensors 0, 1, ... without gap or overlap. */
static titan_status check_tiling(const struct manifest *m, const struct manifest_piece *all, size_t n,
                                 struct titan_error *err)
{
    size_t i = 0;
    for (int t = 0; t < m->ntensors; t++) {
        int64_t at = 0;
        for (; i < n && all[i].tensor == t; i++) {
            if (all[i].start != at)
                return titan_fail(err, TITAN_ECORRUPT, "tensor '%s': elements from %" PRId64 " on are %s",
                                  m->tensors[t].name, MIN(at, all[i].start),
                                  all[i].start > at ? "missing" : "there twice");
            at += all[i].count;
        }
        if (at != m->tensors[t].numel)
            return titan_fail(err, TITAN_ECORRUPT, "tensor '%s': elements from %" PRId64 " on are missing",
                              m->tensors[t].name, at);
    }
    return TITAN_OK;
}

titan_status manifest_check_cover(const struct manifest *m, struct titan_error *err)
{
    size_t n = 0;
    for (int f = 0; f < m->nfiles; f++)
        n += (size_t)m->files[f].npieces;
    _cleanup_free_ struct manifest_piece *all = calloc(n + 1, sizeof(*all));
    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "no memory to check %zu pieces", n);
    size_t at = 0;
    for (int f = 0; f < m->nfiles; f++)
        for (int p = 0; p < m->files[f].npieces; p++)
            all[at++] = m->files[f].pieces[p];
    qsort(all, n, sizeof(*all), compare_pieces);
    return check_tiling(m, all, n, err);
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
    for (int i = 0; i < file->npieces; i++) {
        json_begin_array(w, NULL);
        json_put_int(w, NULL, file->pieces[i].tensor);
        json_put_int(w, NULL, file->pieces[i].start);
        json_put_int(w, NULL, file->pieces[i].count);
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

static void print_tensor(struct json_writer *w, const struct tensor_spec *spec)
{
    json_begin_object(w, NULL);
    json_put_string(w, "name", spec->name);
    json_put_string(w, "dtype", "F32");
    json_begin_array(w, "shape");
    for (int d = 0; d < spec->ndim; d++)
        json_put_int(w, NULL, spec->shape[d]);
    json_end_array(w);
    json_end_object(w);
}

titan_status manifest_print(const struct manifest *m, struct buf *out, struct titan_error *err)
{
    char hash[24];
    size_t begin = out->len;
    struct json_writer w = {.out = out};
    json_begin_object(&w, NULL);
    json_put_string(&w, "format", FORMAT);
    json_put_int(&w, "version", VERSION);
    json_put_uint(&w, "step", m->info.step);
    json_put_uint(&w, "epoch", m->info.epoch);
    json_put_uint(&w, "tokens", m->info.tokens);
    json_put_int(&w, "world", m->info.world);
    json_put_uint(&w, "skipped_steps", m->info.skipped_steps);
    (void)snprintf(hash, sizeof(hash), "%016" PRIx64, m->info.recipe_hash);
    json_put_string(&w, "recipe_hash", hash);
    json_put_string(&w, "recipe", m->info.recipe ? m->info.recipe : "");
    json_begin_array(&w, "tensors");
    for (int i = 0; i < m->ntensors; i++)
        print_tensor(&w, &m->tensors[i]);
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
