/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/dataset.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/vec.h"

#define CORPUS_BYTES_DEFAULT (UINT64_C(1) << 30)
/* Files from this size on are mapped; smaller ones are copied into one buffer, since a mapping costs whole pages and a
 * process may hold 65,530 of them. */
#define MAP_BYTES_MIN (UINT64_C(1) << 20)
#define BINARY_PROBE_BYTES 4096
#define FILES_MAX 4000000
#define SEPARATOR 0

/* One document: bytes [start, start+bytes) of the token stream, then one separator. */
struct document {
    const uint8_t *data; /* mapped or inside small; NULL until placed */
    uint64_t start, bytes;
    size_t small_offset;
    bool mapped;
};

struct path_list {
    char **path;
    size_t n, cap;
};

struct dataset {
    struct document *docs;
    size_t ndocs, docs_cap;
    uint8_t *small; /* all small files, one after the other */
    size_t small_len, small_cap;
    uint64_t tokens, windows, seed, hash, left_out;
    struct titan_error first_left_out;
    int64_t seq_len;
};

static void path_list_clear(struct path_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->path[i]);
    free(list->path);
    *list = (struct path_list){0};
}

static titan_status path_list_add(struct path_list *list, const char *path, struct titan_error *err)
{
    if (list->n == FILES_MAX)
        return titan_fail(err, TITAN_ELIMIT, "more than %d files of training data", FILES_MAX);
    if (!VEC_RESERVE(list->path, list->cap, list->n + 1))
        return titan_fail(err, TITAN_ENOMEM, "no memory for a list of %zu files", list->n + 1);
    list->path[list->n] = strdup(path);
    if (!list->path[list->n])
        return titan_fail(err, TITAN_ENOMEM, "no memory for a path");
    list->n++;
    return TITAN_OK;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void close_fts(FTS **fts)
{
    if (*fts)
        (void)fts_close(*fts);
}

/* What cannot be read. Below the path that was named it is left out, and counted. */
static titan_status leave_out(struct dataset *ds, bool named, const char *path, int why, struct titan_error *err)
{
    struct titan_error fault = {0};
    (void)titan_fail(&fault, TITAN_EINVAL, "training data '%s': %s", path, strerror(why));
    if (!named && ds->left_out++ == 0)
        ds->first_left_out = fault;
    if (named && err)
        *err = fault;
    return named ? TITAN_EINVAL : TITAN_OK;
}

/* Every regular file below root (or root itself), sorted by the bytes of its path. Links below root are not followed.
 */
static titan_status collect_paths(struct dataset *ds, const char *root, struct path_list *list, struct titan_error *err)
{
    char *roots[2] = {(char *)root, NULL};
    _cleanup_(close_fts) FTS *fts =
        fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR | (file_refuses_links() ? 0 : FTS_COMFOLLOW), NULL);
    if (!fts)
        return titan_fail_errno(err, "cannot list '%s'", root);
    FTSENT *e;
    while ((errno = 0, e = fts_read(fts))) {
        if (e->fts_info == FTS_DNR || e->fts_info == FTS_ERR || e->fts_info == FTS_NS)
            TRY(leave_out(ds, e->fts_level == 0, e->fts_path, e->fts_errno, err));
        if (e->fts_info == FTS_F && e->fts_statp->st_size > 0)
            TRY(path_list_add(list, e->fts_path, err));
    }
    if (errno != 0)
        return leave_out(ds, true, root, errno, err);
    if (list->n > 0)
        qsort(list->path, list->n, sizeof(*list->path), compare_paths);
    return TITAN_OK;
}

/* below: its path below the one that was named. */
static titan_status document_add(struct dataset *ds, struct document doc, const char *below, struct titan_error *err)
{
    ds->hash = hash_bytes(ds->hash, below, strlen(below) + 1);
    ds->hash = hash_bytes(ds->hash, &doc.bytes, sizeof(doc.bytes));
    doc.start = ds->tokens;
    if (!VEC_PUSH(ds->docs, ds->ndocs, ds->docs_cap, doc))
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu documents", ds->ndocs + 1);
    ds->tokens += doc.bytes + 1;
    return TITAN_OK;
}

static titan_status small_reserve(struct dataset *ds, size_t more, struct titan_error *err)
{
    if (!VEC_RESERVE(ds->small, ds->small_cap, ds->small_len + more))
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu bytes of training data", ds->small_len + more);
    return TITAN_OK;
}

/* Up to len bytes from the beginning of fd; a file that shrank meanwhile gives fewer. 0, or the errno of a failure. */
static int read_up_to(int fd, uint8_t *out, size_t len, size_t *ret_got)
{
    *ret_got = 0;
    while (*ret_got < len) {
        ssize_t n = pread(fd, out + *ret_got, len - *ret_got, (off_t)*ret_got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        if (n == 0)
            break;
        *ret_got += (size_t)n;
    }
    return 0;
}

/* *ret_why: errno where it cannot be read. */
static titan_status add_small_file(struct dataset *ds, int fd, uint64_t bytes, const char *below, int *ret_why,
                                   struct titan_error *err)
{
    TRY(small_reserve(ds, bytes, err));
    uint8_t *at = ds->small + ds->small_len;
    size_t got = 0;
    *ret_why = at ? read_up_to(fd, at, bytes, &got) : 0;
    if (*ret_why || got == 0 || memchr(at, 0, MIN(got, (size_t)BINARY_PROBE_BYTES)))
        return TITAN_OK;
    struct document doc = {.bytes = got, .small_offset = ds->small_len};
    TRY(document_add(ds, doc, below, err));
    ds->small_len += got;
    return TITAN_OK;
}

static titan_status add_mapped_file(struct dataset *ds, int fd, uint64_t bytes, const char *below, int *ret_why,
                                    struct titan_error *err)
{
    uint8_t probe[BINARY_PROBE_BYTES];
    size_t got = 0;
    *ret_why = read_up_to(fd, probe, sizeof(probe), &got);
    if (*ret_why || got == 0 || memchr(probe, 0, got))
        return TITAN_OK;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return titan_fail_errno(err, "cannot map %" PRIu64 " bytes of training data", bytes);
    struct document doc = {.data = map, .bytes = bytes, .mapped = true};
    titan_status status = document_add(ds, doc, below, err);
    if (status != TITAN_OK)
        (void)munmap(map, bytes);
    return status;
}

/* Take path into the corpus unless it is binary; at most `room` bytes of it. root: what was named, or a folder that it
 * lies below. */
static titan_status add_file(struct dataset *ds, const char *root, const char *path, uint64_t room,
                             struct titan_error *err)
{
    const char *below = path + strlen(root);
    _cleanup_fd_ int fd = file_open_named(path, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    int why = 0;
    if (fd < 0 || fstat(fd, &st) < 0)
        return leave_out(ds, !*below, path, errno, err);
    if (!S_ISREG(st.st_mode) || st.st_size <= 0)
        return TITAN_OK;
    uint64_t bytes = MIN((uint64_t)st.st_size, room);
    titan_status status = bytes < MAP_BYTES_MIN ? add_small_file(ds, fd, bytes, below, &why, err)
                                                : add_mapped_file(ds, fd, bytes, below, &why, err);
    if (why)
        return leave_out(ds, !*below, path, why, err);
    return status == TITAN_OK ? status : titan_error_wrap(err, "%s", path);
}

static titan_status load_corpus(struct dataset *ds, const struct dataset_options *options, struct titan_error *err)
{
    _cleanup_(path_list_clear) struct path_list list = {0};
    TRY(collect_paths(ds, options->path, &list, err));
    uint64_t max = options->corpus_bytes_max ? options->corpus_bytes_max : CORPUS_BYTES_DEFAULT;
    for (size_t i = 0; i < list.n && ds->tokens < max; i++)
        TRY(add_file(ds, options->path, list.path[i], max - ds->tokens, err));
    for (size_t i = 0; i < ds->ndocs; i++)
        if (!ds->docs[i].mapped)
            ds->docs[i].data = ds->small + ds->docs[i].small_offset;
    return TITAN_OK;
}

titan_status dataset_open(const struct dataset_options *options, struct dataset **ret, struct titan_error *err)
{
    if (options->seq_len < 1)
        return titan_fail(err, TITAN_EINVAL, "seq_len must be at least 1, got %" PRId64, options->seq_len);
    if (strcmp(options->tokenizer, "bytes") != 0)
        return titan_fail(err, TITAN_EUNSUPPORTED, "tokenizer '%s' is not known; there is \"bytes\"",
                          options->tokenizer);
    _cleanup_fd_ int named = file_open_named(options->path, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    if (named < 0) {
        const bool missing = titan_fail_errno(err, "training data '%s'", options->path) == TITAN_ENOTFOUND;
        if (err && !missing)
            err->status = TITAN_EINVAL;
        return missing ? TITAN_ENOTFOUND : TITAN_EINVAL;
    }
    struct dataset *ds = calloc(1, sizeof(*ds));
    if (!ds)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a dataset");
    ds->seq_len = options->seq_len;
    ds->seed = options->seed;
    ds->hash = HASH_INIT;
    titan_status status = load_corpus(ds, options, err);
    if (status != TITAN_OK)
        goto fail;
    ds->windows = ds->tokens > 0 ? (ds->tokens - 1) / (uint64_t)ds->seq_len : 0;
    if (ds->windows == 0) {
        status = titan_fail(err, TITAN_EINVAL,
                            "'%s' has %" PRIu64 " tokens of text, one sample needs %" PRId64 " (seq_len + 1)",
                            options->path, ds->tokens, ds->seq_len + 1);
        goto fail;
    }
    *ret = ds;
    return TITAN_OK;
fail:
    dataset_close(ds);
    return status;
}

void dataset_close(struct dataset *ds)
{
    if (!ds)
        return;
    for (size_t i = 0; i < ds->ndocs; i++)
        if (ds->docs[i].mapped)
            (void)munmap((void *)ds->docs[i].data, ds->docs[i].bytes);
    free(ds->docs);
    free(ds->small);
    free(ds);
}

int64_t dataset_vocabulary(const struct dataset *ds)
{
    (void)ds; /* bytes */
    return 256;
}

int32_t dataset_separator(const struct dataset *ds)
{
    (void)ds;
    return SEPARATOR;
}

uint64_t dataset_tokens(const struct dataset *ds)
{
    return ds->tokens;
}

uint64_t dataset_windows(const struct dataset *ds)
{
    return ds->windows;
}

uint64_t dataset_hash(const struct dataset *ds)
{
    return ds->hash;
}

uint64_t dataset_left_out(const struct dataset *ds, const char **ret_first)
{
    *ret_first = ds->first_left_out.msg;
    return ds->left_out;
}

/* The document that holds token number t (its separator included). */
static size_t find_document(const struct dataset *ds, uint64_t t)
{
    size_t lo = 0, hi = ds->ndocs - 1;
    while (lo < hi) {
        size_t mid = lo + (hi - lo + 1) / 2;
        if (ds->docs[mid].start <= t)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

void dataset_sample(const struct dataset *ds, uint64_t g, int32_t *inputs, int32_t *targets)
{
    char stream[48];
    titan_assert(ds->windows > 0 && ds->ndocs > 0);
    (void)snprintf(stream, sizeof(stream), "data.pass.%" PRIu64, g / ds->windows);
    uint64_t window = rng_permute(rng_key(ds->seed, stream), g % ds->windows, ds->windows);
    uint64_t t = window * (uint64_t)ds->seq_len;
    size_t d = find_document(ds, t);
    for (int64_t i = 0; i <= ds->seq_len; i++, t++) {
        titan_debug_assert(d < ds->ndocs);
        const struct document *doc = &ds->docs[d];
        uint64_t at = t - doc->start;
        int32_t token = SEPARATOR;
        if (at < doc->bytes)
            token = doc->data[at];
        else
            d++;
        if (i < ds->seq_len)
            inputs[i] = token;
        if (i > 0)
            targets[i - 1] = token;
    }
}
