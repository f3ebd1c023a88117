/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bf16.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/crc32c.h"
#include "base/f16.h"
#include "base/file.h"
#include "base/json.h"
#include "base/progress.h"

#define LENGTH_BYTES 8
#define WRITE_BYTES_MAX ((size_t)8 << 20)
#define FLOATS_AT_ONCE ((size_t)1 << 16)

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
              {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8}};

size_t safetensors_dtype_bytes(const char *dtype)
{
    for (size_t i = 0; i < ARRAY_SIZE(dtypes); i++)
        if (strcmp(dtypes[i].name, dtype) == 0)
            return dtypes[i].bytes;
    return 0;
}

/* Computes a tensor's bytes. Returns false if a dimension is negative or the product overflows. */
static bool tensor_bytes(const int64_t *shape, int ndim, size_t element, uint64_t *ret)
{
    titan_assert(ndim >= 0 && ndim <= SAFETENSORS_DIMS_MAX && element > 0);
    uint64_t bytes = element;
    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)shape[i], &bytes))
            return false;
    *ret = bytes;
    return true;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static titan_status read_at(int fd, void *out, size_t len, uint64_t offset, struct titan_error *err)
{
    titan_assert(fd >= 0);
    for (size_t got = 0; got < len;) {
        ssize_t n = pread(fd, (char *)out + got, MIN(len - got, WRITE_BYTES_MAX), (off_t)(offset + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return titan_fail_errno(err, "read at byte %" PRIu64, offset + got);
        if (n == 0)
            return titan_fail(err, TITAN_ECORRUPT, "file ends at byte %" PRIu64, offset + got);
        got += (size_t)n;
        progress_action();
    }
    return TITAN_OK;
}

/* Parses one member of the header into *t. Offsets are still relative to the data. */
static titan_status parse_tensor(const struct json *member, uint64_t data_bytes, struct safetensors_tensor *t,
                                 struct titan_error *err)
{
    t->name = strdup(member->key);
    if (!t->name)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a tensor's name");
    if (member->type != JSON_OBJECT)
        return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' is no object", t->name);
    const char *dtype = json_string(member, "dtype", "");
    size_t element = safetensors_dtype_bytes(dtype);
    if (element == 0)
        return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' has an unknown dtype '%.16s'", t->name, dtype);
    (void)snprintf(t->dtype, sizeof(t->dtype), "%s", dtype);
    const struct json *shape = json_get(member, "shape");
    if (!shape || shape->type != JSON_ARRAY)
        return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' has no shape", t->name);
    for (const struct json *d = shape->first; d; d = d->next) {
        if (t->ndim == SAFETENSORS_DIMS_MAX)
            return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' has more than %d dimensions", t->name,
                              SAFETENSORS_DIMS_MAX);
        if (d->type != JSON_INT || d->integer < 0)
            return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' has a dimension that is no size", t->name);
        t->shape[t->ndim++] = d->integer;
    }
    const struct json *offsets = json_get(member, "data_offsets");
    const struct json *begin = offsets && offsets->type == JSON_ARRAY ? offsets->first : NULL;
    const struct json *end = begin ? begin->next : NULL;
    if (!end || end->next || begin->type != JSON_INT || end->type != JSON_INT)
        return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' has no pair of data_offsets", t->name);
    if (begin->integer < 0 || end->integer < begin->integer || (uint64_t)end->integer > data_bytes)
        return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' lies at bytes %" PRId64 " to %" PRId64 " of %" PRIu64,
                          t->name, begin->integer, end->integer, data_bytes);
    t->offset = (uint64_t)begin->integer;
    t->bytes = (uint64_t)end->integer - t->offset;
    uint64_t expected = 0;
    if (!tensor_bytes(t->shape, t->ndim, element, &expected) || expected != t->bytes)
        return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' has %" PRIu64 " bytes, its shape does not", t->name,
                          t->bytes);
    return TITAN_OK;
}

static int compare_offset(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty tensors first */
}

static int compare_name(const void *a, const void *b, void *tensors)
{
    const struct safetensors_tensor *t = tensors;
    return strcmp(t[*(const size_t *)a].name, t[*(const size_t *)b].name);
}

static void free_json(struct json **root)
{
    json_free(*root);
}

static titan_status read_header(struct safetensors *st, struct titan_error *err)
{
    unsigned char raw[LENGTH_BYTES];
    if (st->file_bytes < LENGTH_BYTES)
        return titan_fail(err, TITAN_ECORRUPT, "file of %" PRIu64 " bytes is no safetensors file", st->file_bytes);
    TRY(read_at(st->fd, raw, sizeof(raw), 0, err));
    uint64_t length = 0;
    for (int i = 0; i < LENGTH_BYTES; i++)
        length |= (uint64_t)raw[i] << (8 * i);
    if (length > SAFETENSORS_HEADER_MAX || length > st->file_bytes - LENGTH_BYTES)
        return titan_fail(err, TITAN_ECORRUPT, "header of %" PRIu64 " bytes in a file of %" PRIu64, length,
                          st->file_bytes);
    _cleanup_free_ char *text = malloc(length + 1);
    if (!text)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a header of %" PRIu64 " bytes", length);
    TRY(read_at(st->fd, text, length, LENGTH_BYTES, err));
    text[length] = '\0';
    _cleanup_(free_json) struct json *root = NULL;
    if (json_parse(text, length, &root, err) != TITAN_OK || root->type != JSON_OBJECT) {
        if (root)
            return titan_fail(err, TITAN_ECORRUPT, "header is no JSON object");
        if (err)
            err->status = TITAN_ECORRUPT;
        (void)titan_error_wrap(err, "header");
        return TITAN_ECORRUPT;
    }
    size_t n = 0;
    for (const struct json *m = root->first; m; m = m->next)
        n++;
    st->tensors = calloc(n + 1, sizeof(*st->tensors));
    st->by_name = calloc(n + 1, sizeof(*st->by_name));
    if (!st->tensors || !st->by_name)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu tensors", n);
    uint64_t data_start = LENGTH_BYTES + length;
    for (const struct json *m = root->first; m; m = m->next)
        if (strcmp(m->key, "__metadata__") != 0)
            TRY(parse_tensor(m, st->file_bytes - data_start, &st->tensors[st->ntensors++], err));

    /* The ranges tile the data, and names are unique. Offsets become positions in the file. */
    qsort(st->tensors, st->ntensors, sizeof(*st->tensors), compare_offset);
    uint64_t at = data_start;
    for (size_t i = 0; i < st->ntensors; i++) {
        struct safetensors_tensor *t = &st->tensors[i];
        t->offset += data_start;
        if (t->offset != at)
            return titan_fail(err, TITAN_ECORRUPT, "tensor '%s' begins at byte %" PRIu64 ", expected %" PRIu64, t->name,
                              t->offset, at);
        at += t->bytes;
        st->by_name[i] = i;
    }
    if (at != st->file_bytes)
        return titan_fail(err, TITAN_ECORRUPT, "tensors end at byte %" PRIu64 ", the file at %" PRIu64, at,
                          st->file_bytes);
    qsort_r(st->by_name, st->ntensors, sizeof(*st->by_name), compare_name, st->tensors);
    for (size_t i = 1; i < st->ntensors; i++)
        if (compare_name(&st->by_name[i - 1], &st->by_name[i], st->tensors) == 0)
            return titan_fail(err, TITAN_ECORRUPT, "two tensors are named '%s'", st->tensors[st->by_name[i]].name);
    return TITAN_OK;
}

titan_status safetensors_open(const char *path, struct safetensors **ret, struct titan_error *err)
{
    int fd = -1;
    TRY(file_open_regular(AT_FDCWD, path, 0, &fd, err));
    return safetensors_open_fd(fd, path, ret, err);
}

titan_status safetensors_open_fd(int fd, const char *name, struct safetensors **ret, struct titan_error *err)
{
    titan_assert(fd >= 0);
    struct safetensors *st = calloc(1, sizeof(*st));
    if (!st) {
        (void)close(fd);
        return titan_fail(err, TITAN_ENOMEM, "no memory to open '%s'", name);
    }
    st->fd = fd;
    struct stat info;
    titan_status status = TITAN_OK;
    if (fstat(st->fd, &info) < 0) {
        status = titan_fail_errno(err, "cannot look at '%s'", name);
    } else {
        st->file_bytes = (uint64_t)info.st_size;
        status = read_header(st, err);
        if (status != TITAN_OK)
            (void)titan_error_wrap(err, "'%s'", name);
    }
    if (status != TITAN_OK) {
        safetensors_close(st);
        return status;
    }
    *ret = st;
    return TITAN_OK;
}

void safetensors_close(struct safetensors *st)
{
    if (!st)
        return;
    if (st->fd >= 0)
        (void)close(st->fd);
    for (size_t i = 0; st->tensors && i < st->ntensors; i++)
        free(st->tensors[i].name);
    free(st->tensors);
    free(st->by_name);
    free(st);
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name)
{
    size_t lo = 0, hi = st->ntensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        titan_assert(st->by_name[mid] < st->ntensors);
        const struct safetensors_tensor *t = &st->tensors[st->by_name[mid]];
        int order = strcmp(name, t->name);
        if (order == 0)
            return t;
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

titan_status safetensors_read(const struct safetensors *st, const struct safetensors_tensor *tensor, uint64_t start,
                              void *out, size_t len, struct titan_error *err)
{
    titan_assert(tensor->offset <= st->file_bytes && tensor->bytes <= st->file_bytes - tensor->offset);
    if (start > tensor->bytes || len > tensor->bytes - start)
        return titan_fail(err, TITAN_EINVAL, "bytes %" PRIu64 " to %" PRIu64 " of tensor '%s', which has %" PRIu64,
                          start, start + len, tensor->name, tensor->bytes);
    return read_at(st->fd, out, len, tensor->offset + start, err);
}

titan_status safetensors_read_floats(const struct safetensors *st, const struct safetensors_tensor *tensor,
                                     uint64_t first, float *out, size_t n, struct titan_error *err)
{
    const bool bf16 = strcmp(tensor->dtype, "BF16") == 0;
    if (strcmp(tensor->dtype, "F32") == 0)
        return safetensors_read(st, tensor, first * sizeof(float), out, n * sizeof(float), err);
    if (!bf16 && strcmp(tensor->dtype, "F16") != 0)
        return titan_fail(err, TITAN_EUNSUPPORTED, "tensor '%s' is %s; F32, BF16 and F16 are read", tensor->name,
                          tensor->dtype);
    const size_t most = MIN(n, FLOATS_AT_ONCE);
    _cleanup_free_ uint16_t *block = calloc(most + 1, sizeof(*block));
    if (!block)
        return titan_fail(err, TITAN_ENOMEM, "no memory to read tensor '%s'", tensor->name);
    for (size_t done = 0; done < n;) {
        const size_t portion = MIN(n - done, most);
        TRY(safetensors_read(st, tensor, (first + done) * sizeof(*block), block, portion * sizeof(*block), err));
        for (size_t i = 0; i < portion; i++)
            out[done + i] = bf16 ? bf16_to_f32(block[i]) : f16_to_f32(block[i]);
        done += portion;
    }
    return TITAN_OK;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

struct safetensors_writer {
    int at, fd;
    char *path;          /* relative to `at` */
    uint64_t data_bytes; /* announced in the header */
    uint64_t given;      /* bytes of the data written so far */
    uint64_t file_bytes;
    uint64_t begun; /* bytes that the disk has been told to write */
    uint32_t crc;
};

static titan_status write_out(struct safetensors_writer *w, const void *data, size_t len, struct titan_error *err)
{
    titan_assert(w->fd >= 0);
    for (size_t done = 0; done < len;) {
        size_t portion = MIN(len - done, WRITE_BYTES_MAX);
        ssize_t n = write(w->fd, (const char *)data + done, portion);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return titan_fail_errno(err, "cannot write '%s'", w->path);
        w->crc = crc32c(w->crc, (const char *)data + done, (size_t)n);
        done += (size_t)n;
        w->file_bytes += (uint64_t)n;
        /* The disk starts to write early, so fsync waits for the last part only. fsync reports failures. */
        const uint64_t fresh = w->file_bytes - w->begun;
        if (fresh >= WRITE_BYTES_MAX) {
            (void)sync_file_range(w->fd, (off_t)w->begun, (off_t)fresh, SYNC_FILE_RANGE_WRITE);
            w->begun = w->file_bytes;
        }
        progress_action();
    }
    return TITAN_OK;
}

/* Makes the header text of the entries. *ret_data_bytes gets the bytes of data that must follow. */
static titan_status make_header(const struct safetensors_header *header, struct buf *out, uint64_t *ret_data_bytes,
                                struct titan_error *err)
{
    uint64_t at = 0;
    struct json_writer w = {.out = out};
    json_begin_object(&w, NULL);
    if (header->format) {
        json_begin_object(&w, "__metadata__");
        json_put_string(&w, "format", header->format);
        json_end_object(&w);
    }
    for (const struct safetensors_entry *e = header->entries; e < header->entries + header->n; e++) {
        size_t element = safetensors_dtype_bytes(e->dtype);
        uint64_t bytes = 0;
        if (element == 0 || e->ndim < 0 || e->ndim > SAFETENSORS_DIMS_MAX ||
            !tensor_bytes(e->shape, e->ndim, element, &bytes) || bytes > (uint64_t)INT64_MAX - at)
            return titan_fail(err, TITAN_EINVAL, "tensor '%s' has a dtype or shape that cannot be written", e->name);
        json_begin_object(&w, e->name);
        json_put_string(&w, "dtype", e->dtype);
        json_begin_array(&w, "shape");
        for (int d = 0; d < e->ndim; d++)
            json_put_int(&w, NULL, e->shape[d]);
        json_end_array(&w);
        json_begin_array(&w, "data_offsets");
        json_put_uint(&w, NULL, at);
        json_put_uint(&w, NULL, at + bytes);
        json_end_array(&w);
        json_end_object(&w);
        at += bytes;
    }
    json_end_object(&w);
    while ((LENGTH_BYTES + out->len) % 8 != 0 && !buf_failed(out))
        buf_puts(out, " ");
    if (buf_failed(out))
        return titan_fail(err, TITAN_ENOMEM, "no memory for a header of %zu tensors", header->n);
    if (out->len > SAFETENSORS_HEADER_MAX)
        return titan_fail(err, TITAN_ELIMIT, "header of %zu bytes, the format allows %u", out->len,
                          SAFETENSORS_HEADER_MAX);
    titan_assert((LENGTH_BYTES + out->len) % 8 == 0);
    *ret_data_bytes = at;
    return TITAN_OK;
}

titan_status safetensors_create(int at, const char *path, const struct safetensors_header *header,
                                struct safetensors_writer **ret, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    uint64_t data_bytes = 0;
    TRY(make_header(header, &text, &data_bytes, err));
    struct safetensors_writer *w = calloc(1, sizeof(*w));
    if (!w || !(w->path = strdup(path))) {
        free(w);
        return titan_fail(err, TITAN_ENOMEM, "no memory to write '%s'", path);
    }
    w->data_bytes = data_bytes;
    w->at = at;
    (void)unlinkat(at, path, 0);
    w->fd = openat(at, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    titan_status status = w->fd < 0 ? titan_fail_errno(err, "cannot create '%s'", path) : TITAN_OK;

    /* Contiguous space, if the file system can reserve it, is faster to write into. On a full disk the function fails
     * here at once. A size above INT64_MAX fails only when the file is written. */
    const uint64_t bytes = LENGTH_BYTES + text.len + data_bytes;
    if (status == TITAN_OK && bytes <= INT64_MAX && fallocate(w->fd, 0, 0, (off_t)bytes) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
        status = titan_fail_errno(err, "cannot write '%s'", path);
    unsigned char length[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++)
        length[i] = (unsigned char)(text.len >> (8 * i));
    if (status == TITAN_OK)
        status = write_out(w, length, sizeof(length), err);
    if (status == TITAN_OK)
        status = write_out(w, text.data, text.len, err);
    if (status != TITAN_OK) {
        safetensors_abandon(w);
        return status;
    }
    *ret = w;
    return TITAN_OK;
}

titan_status safetensors_append(struct safetensors_writer *w, const void *data, size_t len, struct titan_error *err)
{
    titan_assert(w->given <= w->data_bytes);
    if (len > w->data_bytes - w->given)
        return titan_fail(err, TITAN_EINVAL, "'%s': more data than the header announces", w->path);
    TRY(write_out(w, data, len, err));
    w->given += len;
    return TITAN_OK;
}

titan_status safetensors_append_floats(struct safetensors_writer *w, const char *tensor, const char *dtype,
                                       const float *data, size_t n, struct titan_error *err)
{
    const bool bf16 = strcmp(dtype, "BF16") == 0;
    if (strcmp(dtype, "F32") == 0)
        return safetensors_append(w, data, n * sizeof(*data), err);
    titan_assert(bf16 || strcmp(dtype, "F16") == 0);
    float largest = 0;
    for (size_t i = 0; !bf16 && i < n; i++)
        if (isfinite(data[i]))
            largest = MAX(largest, fabsf(data[i]));
    /* 65504 plus half a unit becomes an infinity in f16. With it every answer of the model would be NaN. */
    if (largest >= 65520.0F) {
        (void)titan_fail(err, TITAN_EINVAL, "tensor '%s' has magnitudes up to %g, f16 none above 65504", tensor,
                         (double)largest);
        titan_error_hint(err, "export it as bf16 or f32");
        return TITAN_EINVAL;
    }
    const size_t most = MIN(n, FLOATS_AT_ONCE);
    _cleanup_free_ uint16_t *block = malloc(most * sizeof(*block) + 1);
    if (!block)
        return titan_fail(err, TITAN_ENOMEM, "no memory to write '%s'", w->path);
    for (size_t done = 0; done < n;) {
        const size_t portion = MIN(n - done, most);
        for (size_t i = 0; i < portion; i++)
            block[i] = bf16 ? bf16_from_f32(data[done + i]) : f16_from_f32(data[done + i]);
        TRY(safetensors_append(w, block, portion * sizeof(*block), err));
        done += portion;
    }
    return TITAN_OK;
}

titan_status safetensors_append_halves(struct safetensors_writer *w, const char *tensor, const char *dtype,
                                       const uint16_t *data, size_t n, struct titan_error *err)
{
    if (strcmp(dtype, "BF16") == 0)
        return safetensors_append(w, data, n * sizeof(*data), err);
    const size_t most = MIN(n, FLOATS_AT_ONCE);
    _cleanup_free_ float *block = malloc(most * sizeof(*block) + 1);
    if (!block)
        return titan_fail(err, TITAN_ENOMEM, "no memory to write '%s'", w->path);
    for (size_t done = 0; done < n;) {
        const size_t portion = MIN(n - done, most);
        for (size_t i = 0; i < portion; i++)
            block[i] = bf16_to_f32(data[done + i]);
        TRY(safetensors_append_floats(w, tensor, dtype, block, portion, err));
        done += portion;
    }
    return TITAN_OK;
}

titan_status safetensors_finish(struct safetensors_writer *w, uint64_t *ret_bytes, uint32_t *ret_crc,
                                struct titan_error *err)
{
    titan_assert(w->given <= w->data_bytes);
    titan_status status = TITAN_OK;
    if (w->given != w->data_bytes)
        status = titan_fail(err, TITAN_EINVAL, "'%s': %" PRIu64 " bytes of data given, %" PRIu64 " announced", w->path,
                            w->given, w->data_bytes);
    else if (fsync(w->fd) < 0)
        status = titan_fail_errno(err, "cannot fsync '%s'", w->path);
    if (status != TITAN_OK) {
        safetensors_abandon(w);
        return status;
    }
    titan_assert(w->file_bytes > w->data_bytes);
    *ret_bytes = w->file_bytes;
    *ret_crc = w->crc;
    (void)close(w->fd);
    free(w->path);
    free(w);
    return TITAN_OK;
}

void safetensors_abandon(struct safetensors_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0) {
        (void)close(w->fd);
        (void)unlinkat(w->at, w->path, 0);
    }
    free(w->path);
    free(w);
}
