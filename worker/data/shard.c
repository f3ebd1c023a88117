/* SPDX-License-Identifier: Apache-2.0 */
/* shard.c - see shard.h. */
#include "worker/data/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/vec.h"

#define SET_FORMAT "titan-data"
#define SET_BYTES_MAX (64 << 20)
#define SHARDS_MAX 1000000
#define VERIFY_BYTES_MAX (UINT64_C(1) << 28) /* sets up to this size are verified whenever they are opened */

/* --- one file ----------------------------------------------------------------------------------------------------- */

uint64_t shard_index_at(const struct shard_header *h)
{
    return SHARD_HEADER_BYTES + ((h->tokens * h->width + 7) & ~UINT64_C(7));
}

uint64_t shard_mask_at(const struct shard_header *h)
{
    return shard_index_at(h) + 8 * (h->documents + 1);
}

uint64_t shard_mask_bytes(const struct shard_header *h)
{
    return h->version == SHARD_VERSION_MASKED ? (h->tokens + 63) / 64 * 8 : 0;
}

static titan_status damaged(const char *path, const char *what, struct titan_error *err)
{
    (void)titan_fail(err, TITAN_ECORRUPT, "shard '%s': %s", path, what);
    if (err)
        titan_error_hint(err, "build it again: titanctl data build");
    return TITAN_ECORRUPT;
}

titan_status shard_header_read(const char *path, const void *file, uint64_t bytes, struct shard_header *ret,
                               struct titan_error *err)
{
    struct shard_header *h = ret;
    if (bytes < sizeof(*h))
        return damaged(path, "the file is cut off", err);
    memcpy(h, file, sizeof(*h));
    if (memcmp(h->magic, SHARD_MAGIC, sizeof(h->magic)) != 0)
        return damaged(path, "it is not a shard of tokens", err);
    if (h->version != SHARD_VERSION && h->version != SHARD_VERSION_MASKED)
        return titan_fail(err, TITAN_EVERSION, "shard '%s' has version %u; versions %d and %d are read", path,
                          h->version, SHARD_VERSION, SHARD_VERSION_MASKED);
    if (h->header_crc != crc32c(0, h, offsetof(struct shard_header, header_crc)))
        return damaged(path, "the checksum of its header is wrong", err);
    if ((h->width != 2 && h->width != 4) || h->eos > INT32_MAX || h->id_max > INT32_MAX)
        return damaged(path, "its header is not as it should be", err);
    if (h->tokens > bytes / h->width || h->documents >= bytes / 8 || shard_mask_at(h) + shard_mask_bytes(h) != bytes)
        return titan_fail(err, TITAN_ECORRUPT,
                          "shard '%s' has %" PRIu64 " bytes and not what its header says (%" PRIu64
                          " tokens of %u bytes, "
                          "%" PRIu64 " documents): it is cut off",
                          path, bytes, h->tokens, h->width, h->documents);
    return TITAN_OK;
}

titan_status shard_verify(const char *path, const void *file, const struct shard_header *h, struct titan_error *err)
{
    const uint8_t *at = file;
    if (crc32c(0, at + SHARD_HEADER_BYTES, h->tokens * h->width) != h->tokens_crc)
        return damaged(path, "the checksum of its tokens is wrong", err);
    if (crc32c(0, at + shard_index_at(h), 8 * (h->documents + 1) + shard_mask_bytes(h)) != h->index_crc)
        return damaged(path, "the checksum of its index is wrong", err);
    return TITAN_OK;
}

/* --- the description ---------------------------------------------------------------------------------------------- */

void shard_set_clear(struct shard_set *set)
{
    free(set->shards);
    *set = (struct shard_set){0};
}

void shard_path(const char *dir, size_t i, char ret[PATH_MAX])
{
    (void)snprintf(ret, PATH_MAX, "%s/shard-%05zu.bin", dir, i);
}

static bool has_file(const char *dir, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    return snprintf(path, sizeof(path), "%s/%s", dir, name) < PATH_MAX && stat(path, &st) == 0;
}

bool shard_folder(const char *path)
{
    return has_file(path, SHARD_SET_NAME) || has_file(path, SHARD_BUILD_NAME);
}

static void put_hash(struct json_writer *w, const char *key, uint64_t value, int digits)
{
    char text[20];
    (void)snprintf(text, sizeof(text), "%0*" PRIx64, digits, value);
    json_put_string(w, key, text);
}

static bool get_hash(const struct json *o, const char *key, uint64_t *ret)
{
    const char *text = json_string(o, key, "");
    char *end;
    errno = 0;
    *ret = strtoull(text, &end, 16);
    return *text && *text != '-' && !*end && errno == 0;
}

titan_status shard_set_write(const char *dir, const struct shard_set *set, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text, .pretty = true};
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s/%s", dir, SHARD_SET_NAME) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "'%s': the path is too long", dir);
    json_begin_object(&w, NULL);
    json_put_string(&w, "format", SET_FORMAT);
    json_put_int(&w, "version", SHARD_VERSION);
    json_put_string(&w, "tokenizer", set->tokenizer);
    put_hash(&w, "tokenizer_hash", set->tokenizer_hash, 16);
    json_put_string(&w, "tokenizer_pattern", set->pattern);
    json_put_int(&w, "vocab_size", set->vocab_size);
    json_put_int(&w, "eos", set->eos);
    json_put_int(&w, "id_max", set->id_max);
    json_put_uint(&w, "token_bytes", set->width);
    json_put_uint(&w, "tokens", set->tokens);
    json_put_uint(&w, "documents", set->documents);
    json_put_uint(&w, "text_bytes", set->text_bytes);
    json_put_uint(&w, "bad_records", set->bad_records);
    json_begin_array(&w, "shards");
    for (size_t i = 0; i < set->n; i++) {
        json_begin_object(&w, NULL);
        json_put_uint(&w, "tokens", set->shards[i].tokens);
        json_put_uint(&w, "documents", set->shards[i].documents);
        put_hash(&w, "tokens_crc32c", set->shards[i].tokens_crc, 8);
        put_hash(&w, "index_crc32c", set->shards[i].index_crc, 8);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_end_object(&w);
    buf_puts(&text, "\n");
    if (buf_failed(&text))
        return titan_fail(err, TITAN_ENOMEM, "no memory for the description of %zu shards", set->n);
    return file_replace(path, text.data, text.len, err);
}

static titan_status read_set(const char *path, const struct json *o, struct shard_set *set, struct titan_error *err)
{
    if (strcmp(json_string(o, "format", ""), SET_FORMAT) != 0)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' does not describe data of Titan", path);
    const int64_t version = json_int(o, "version", 0), width = json_int(o, "token_bytes", 0),
                  tokens = json_int(o, "tokens", -1), documents = json_int(o, "documents", -1),
                  text_bytes = json_int(o, "text_bytes", -1), bad = json_int(o, "bad_records", -1),
                  vocab = json_int(o, "vocab_size", -1), eos = json_int(o, "eos", -1),
                  id_max = json_int(o, "id_max", -1);
    if (version != SHARD_VERSION)
        return titan_fail(err, TITAN_EVERSION, "'%s' has version %" PRId64 "; version %d is read", path, version,
                          SHARD_VERSION);
    if ((width != 2 && width != 4) || tokens < 0 || documents < 0 || text_bytes < 0 || bad < 0 || vocab < 1 ||
        eos < 0 || eos > INT32_MAX || id_max < 0 || id_max > INT32_MAX ||
        !get_hash(o, "tokenizer_hash", &set->tokenizer_hash))
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is damaged", path);
    (void)snprintf(set->tokenizer, sizeof(set->tokenizer), "%s", json_string(o, "tokenizer", ""));
    (void)snprintf(set->pattern, sizeof(set->pattern), "%s", json_string(o, "tokenizer_pattern", ""));
    set->width = (uint32_t)width;
    set->tokens = (uint64_t)tokens;
    set->documents = (uint64_t)documents;
    set->text_bytes = (uint64_t)text_bytes;
    set->bad_records = (uint64_t)bad;
    set->vocab_size = vocab;
    set->eos = (int32_t)eos;
    set->id_max = (int32_t)id_max;

    uint64_t all_tokens = 0, all_documents = 0;
    const struct json *list = json_get(o, "shards");
    for (const struct json *e = list && list->type == JSON_ARRAY ? list->first : NULL; e; e = e->next) {
        uint64_t tokens_crc, index_crc;
        const int64_t its_tokens = json_int(e, "tokens", -1), its_documents = json_int(e, "documents", -1);
        if (its_tokens < 0 || its_documents < 0 || its_tokens > INT64_MAX - (int64_t)all_tokens ||
            its_documents > INT64_MAX - (int64_t)all_documents || set->n == SHARDS_MAX ||
            !get_hash(e, "tokens_crc32c", &tokens_crc) || !get_hash(e, "index_crc32c", &index_crc))
            return titan_fail(err, TITAN_ECORRUPT, "'%s': entry %zu of its shards is damaged", path, set->n);
        const struct shard_info info = {(uint64_t)its_tokens, (uint64_t)its_documents, (uint32_t)tokens_crc,
                                        (uint32_t)index_crc};
        if (!VEC_PUSH(set->shards, set->n, set->cap, info))
            return titan_fail(err, TITAN_ENOMEM, "no memory for %zu shards", set->n + 1);
        all_tokens += info.tokens;
        all_documents += info.documents;
    }
    if (all_tokens != set->tokens || all_documents != set->documents)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is damaged: %" PRIu64 " tokens in all, %" PRIu64 " in its shards",
                          path, set->tokens, all_tokens);
    return TITAN_OK;
}

titan_status shard_set_read(const char *dir, struct shard_set *ret, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    char path[PATH_MAX];
    struct json *root = NULL;
    *ret = (struct shard_set){0};
    if (snprintf(path, sizeof(path), "%s/%s", dir, SHARD_SET_NAME) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "'%s': the path is too long", dir);
    if (!has_file(dir, SHARD_SET_NAME) && has_file(dir, SHARD_BUILD_NAME)) {
        (void)titan_fail(err, TITAN_EINVAL, "'%s' is a build that is not finished", dir);
        if (err)
            titan_error_hint(err, "give the same titanctl data build again: it goes on where it was");
        return TITAN_EINVAL;
    }
    text.limit = SET_BYTES_MAX;
    _cleanup_fd_ int fd = file_open_named(dir, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return titan_fail_errno(err, "training data '%s'", dir);
    TRY(file_read_at(fd, SHARD_SET_NAME, file_refuses_links() ? O_NOFOLLOW : 0, SET_BYTES_MAX - 1, &text, err));
    titan_status status = json_parse(text.data, text.len, &root, err);
    if (status != TITAN_OK)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is damaged: it is no JSON", path);
    status = read_set(path, root, ret, err);
    json_free(root);
    if (status != TITAN_OK)
        shard_set_clear(ret);
    return status;
}

/* --- as a corpus -------------------------------------------------------------------------------------------------- */

/* Adds a shard's file to the corpus. want: the shard's entry in the set, or NULL. */
static titan_status add_shard(struct corpus *c, const char *path, const struct shard_info *want, bool verify,
                              struct shard_header *h, struct titan_error *err)
{
    struct segment s = {0};
    char name[40];
    titan_status status = corpus_map(path, &s.mapping, err);
    if (status == TITAN_OK)
        status = shard_header_read(path, s.mapping.at, s.mapping.bytes, h, err);
    if (status == TITAN_OK && want &&
        (want->tokens != h->tokens || want->documents != h->documents || want->tokens_crc != h->tokens_crc ||
         want->index_crc != h->index_crc))
        status = damaged(path, "it is not the one that " SHARD_SET_NAME " tells of", err);
    if (status == TITAN_OK && verify)
        status = shard_verify(path, s.mapping.at, h, err);
    if (status != TITAN_OK) {
        corpus_unmap(&s.mapping);
        return status;
    }
    const uint8_t *at = s.mapping.at;
    s.data = at + SHARD_HEADER_BYTES;
    s.tokens = h->tokens;
    s.width = h->width;
    s.id_max = h->id_max;
    s.mask = shard_mask_bytes(h) > 0 ? at + shard_mask_at(h) : NULL;
    s.index = (struct document_index){
        .offsets = at + shard_index_at(h), .n_offsets = h->documents + 1, .documents = h->documents, .unit = 1};
    /* the name is made of the checksums, so equal shards have equal names */
    (void)snprintf(name, sizeof(name), "%08x%08x", h->tokens_crc, h->index_crc);
    return corpus_add(c, s, name, err);
}

titan_status corpus_open_shards(struct corpus *c, const char *path, struct shard_set *ret, struct titan_error *err)
{
    char file[PATH_MAX];
    struct shard_header h;
    struct stat st;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
        TRY(add_shard(c, path, NULL, false, &h, err));
        *ret = (struct shard_set){.tokenizer_hash = h.tokenizer_hash,
                                  .eos = (int32_t)h.eos,
                                  .id_max = (int32_t)h.id_max,
                                  .width = h.width,
                                  .tokens = h.tokens,
                                  .documents = h.documents};
        c->separator = ret->eos;
        return TITAN_OK;
    }
    TRY(shard_set_read(path, ret, err));
    const bool verify = ret->tokens * ret->width + 8 * ret->documents <= VERIFY_BYTES_MAX;
    titan_status status = TITAN_OK;
    for (size_t i = 0; i < ret->n && status == TITAN_OK; i++) {
        shard_path(path, i, file);
        status = add_shard(c, file, &ret->shards[i], verify, &h, err);
        if (status == TITAN_ENOTFOUND)
            status = damaged(file, "it is missing", err);
    }
    c->separator = ret->eos;
    return status;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

struct shard_writer {
    int fd;
    char path[PATH_MAX], part[PATH_MAX + 8];
    struct shard_header header;
    uint64_t *ends; /* ends of the documents; the first entry is 0 */
    size_t n_ends, cap_ends;
    uint64_t *mask; /* a bit per token; NULL: no mask was given */
    size_t cap_mask;
    uint8_t *buffer; /* bytes that are not written yet */
    size_t buffered;
};
#define WRITE_BYTES ((size_t)1 << 20)

static titan_status write_fully(const struct shard_writer *w, const void *data, size_t len, struct titan_error *err)
{
    titan_assert(w->fd >= 0);
    const uint8_t *at = data;
    while (len > 0) {
        const ssize_t n = write(w->fd, at, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return titan_fail_errno(err, "cannot write '%s'", w->part);
        at += n;
        len -= (size_t)n;
    }
    return TITAN_OK;
}

titan_status shard_writer_open(const char *path, uint32_t width, uint64_t tokenizer_hash, int32_t eos,
                               struct shard_writer **ret, struct titan_error *err)
{
    struct shard_writer *w = calloc(1, sizeof(*w));
    titan_assert((width == 2 || width == 4) && eos >= 0);
    if (w)
        w->buffer = malloc(WRITE_BYTES);
    if (!w || !w->buffer || !VEC_PUSH(w->ends, w->n_ends, w->cap_ends, 0)) {
        if (w) {
            w->fd = -1;
            shard_writer_abandon(w);
        }
        return titan_fail(err, TITAN_ENOMEM, "no memory to write a shard");
    }
    memcpy(w->header.magic, SHARD_MAGIC, sizeof(w->header.magic));
    w->header.version = SHARD_VERSION;
    w->header.width = width;
    w->header.tokenizer_hash = tokenizer_hash;
    w->header.eos = (uint32_t)eos;
    (void)snprintf(w->path, sizeof(w->path), "%s", path);
    (void)snprintf(w->part, sizeof(w->part), "%s.part", path);
    w->fd = open(w->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    titan_status status = w->fd < 0 ? titan_fail_errno(err, "cannot write '%s'", w->part) : TITAN_OK;
    if (status == TITAN_OK) /* reserves the header's place; the final header is written at the end */
        status = write_fully(w, &w->header, sizeof(w->header), err);
    if (status == TITAN_OK)
        *ret = w;
    else
        shard_writer_abandon(w);
    return status;
}

static titan_status flush(struct shard_writer *w, struct titan_error *err)
{
    titan_assert(w->buffered <= WRITE_BYTES);
    TRY(write_fully(w, w->buffer, w->buffered, err));
    w->buffered = 0;
    return TITAN_OK;
}

static titan_status put(struct shard_writer *w, const void *data, size_t len, struct titan_error *err)
{
    titan_assert(w->buffered <= WRITE_BYTES);
    const uint8_t *at = data;
    while (len > 0) {
        const size_t n = MIN(len, WRITE_BYTES - w->buffered);
        memcpy(w->buffer + w->buffered, at, n);
        w->buffered += n;
        at += n;
        len -= n;
        if (w->buffered == WRITE_BYTES)
            TRY(flush(w, err));
    }
    return TITAN_OK;
}

titan_status shard_writer_add(struct shard_writer *w, const void *ids, const uint8_t *trained, uint64_t n,
                              uint32_t id_max, struct titan_error *err)
{
    titan_assert(ids || n == 0);
    titan_assert(!w->mask || trained);
    struct shard_header *h = &w->header;
    const uint64_t before = h->tokens;
    titan_assert(!trained || w->mask || before == 0);
    if (trained) {
        if (!VEC_RESERVE(w->mask, w->cap_mask, (before + n + 63) / 64))
            return titan_fail(err, TITAN_ENOMEM, "no memory for a mask of %" PRIu64 " tokens", before + n);
        h->version = SHARD_VERSION_MASKED;
        for (uint64_t t = before; t < before + n; t++) {
            uint64_t *word = &w->mask[t / 64];
            *word = (t % 64 ? *word : 0) | (uint64_t)(trained[t - before] != 0) << t % 64;
        }
    }
    h->tokens_crc = crc32c(h->tokens_crc, ids, n * h->width);
    h->tokens += n;
    h->id_max = MAX(h->id_max, id_max);
    return put(w, ids, n * h->width, err);
}

titan_status shard_writer_end_document(struct shard_writer *w, struct titan_error *err)
{
    titan_assert(w->n_ends == w->header.documents + 1);
    w->header.documents++;
    if (!VEC_PUSH(w->ends, w->n_ends, w->cap_ends, w->header.tokens))
        return titan_fail(err, TITAN_ENOMEM, "no memory for an index of %zu documents", w->n_ends);
    return TITAN_OK;
}

uint64_t shard_writer_tokens(const struct shard_writer *w)
{
    return w->header.tokens;
}

static titan_status finish(struct shard_writer *w, struct titan_error *err)
{
    static const uint8_t zeros[8];
    struct shard_header *h = &w->header;
    titan_assert(w->n_ends == h->documents + 1);
    char folder[PATH_MAX];
    TRY(put(w, zeros, shard_index_at(h) - SHARD_HEADER_BYTES - h->tokens * h->width, err));
    TRY(put(w, w->ends, 8 * w->n_ends, err));
    TRY(put(w, w->mask, shard_mask_bytes(h), err));
    TRY(flush(w, err));
    h->index_crc = crc32c(crc32c(0, w->ends, 8 * w->n_ends), w->mask, shard_mask_bytes(h));
    h->header_crc = crc32c(0, h, offsetof(struct shard_header, header_crc));
    if (pwrite(w->fd, h, sizeof(*h), 0) != (ssize_t)sizeof(*h) || fsync(w->fd) < 0 || rename(w->part, w->path) < 0)
        return titan_fail_errno(err, "cannot write '%s'", w->path);
    (void)snprintf(folder, sizeof(folder), "%s", w->path);
    return dir_sync(dirname(folder), err);
}

titan_status shard_writer_finish(struct shard_writer *w, struct shard_info *ret, uint32_t *ret_id_max,
                                 struct titan_error *err)
{
    const titan_status status = finish(w, err);
    const struct shard_header *h = &w->header;
    *ret = (struct shard_info){h->tokens, h->documents, h->tokens_crc, h->index_crc};
    *ret_id_max = h->id_max;
    shard_writer_abandon(w); /* frees w; if the write succeeded, the file already has its final name */
    return status;
}

void shard_writer_abandon(struct shard_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0) {
        (void)unlink(w->part);
        (void)close(w->fd);
    }
    free(w->ends);
    free(w->mask);
    free(w->buffer);
    free(w);
}
