/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "base/vec.h"
#include "worker/tokenizer/tokenizer_parts.h"
#include "worker/tokenizer/unicode.h"

#define BYTES_VOCABULARY 256
#define BYTES_EOS 0
#define FILE_BYTES_MAX ((size_t)1 << 30)

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* Reads a whole file that a run file may name (file_open_named()). TITAN_ENOTFOUND: the file does not exist. */
static titan_status read_named(const char *path, struct buf *out, struct titan_error *err)
{
    struct stat st;
    _cleanup_fd_ int fd = file_open_named(path, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return titan_fail_errno(err, "tokenizer '%s'", path);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > FILE_BYTES_MAX)
        return titan_fail(err, TITAN_EINVAL, "tokenizer '%s' is %s", path,
                          S_ISREG(st.st_mode) ? "larger than 1 GiB" : "no regular file");
    if (buf_reserve(out, (size_t)st.st_size + 1) != TITAN_OK)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the %" PRId64 " bytes of '%s'", (int64_t)st.st_size, path);
    while (out->len < (size_t)st.st_size) {
        const ssize_t n = read(fd, out->data + out->len, (size_t)st.st_size - out->len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return titan_fail_errno(err, "tokenizer '%s'", path);
        if (n == 0)
            break;
        out->len += (size_t)n;
    }
    return TITAN_OK;
}

static titan_status read_tokenizer(struct tokenizer *t, const char *path, const char *pattern, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = {.limit = FILE_BYTES_MAX + 1};
    const size_t n = strlen(path);
    const bool json = n >= 5 && strcmp(path + n - 5, ".json") == 0;
    if (json && pattern)
        return titan_fail(
            err, TITAN_EINVAL,
            "tokenizer '%s' has its own pattern: --pattern (model.tokenizer_pattern) is for files of ranks", path);
    TRY(read_named(path, &text, err));
    t->bos = t->eos = TOKEN_NONE;
    t->hash = hash_text(HASH_INIT, json ? "json" : "ranks");
    const titan_status status = json ? tokenizer_read_json(t, text.data, text.len, err)
                                     : tokenizer_read_ranks(t, text.data, text.len, pattern, err);
    if (status != TITAN_OK)
        return titan_error_wrap(err, "tokenizer '%s'", path);
    if (t->names.n > 0) { /* reads the tokenizer_config.json beside the file, if it exists */
        char config[PATH_MAX];
        const char *slash = strrchr(path, '/');
        const int folder = slash ? (int)(slash + 1 - path) : 0;
        struct titan_error why = {0};
        _cleanup_(buf_free) struct buf beside = {.limit = FILE_BYTES_MAX + 1};
        if (snprintf(config, sizeof(config), "%.*stokenizer_config.json", folder, path) >= (int)sizeof(config))
            return titan_fail(err, TITAN_EINVAL, "tokenizer '%.64s...': the path is too long", path);
        titan_status read = read_named(config, &beside, &why);
        if (read == TITAN_OK)
            read = tokenizer_read_config(t, beside.data, beside.len, &why);
        else if (read == TITAN_ENOTFOUND)
            read = TITAN_OK;
        if (read != TITAN_OK)
            return titan_fail(err, read, "tokenizer '%s': %s", config, why.msg);
    }
    t->n_ids = (int64_t)t->vocabulary.n;
    titan_assert(t->n_ids > 0);
    t->hash = hash_word(t->hash, vocabulary_hash(&t->vocabulary));
    t->hash = hash_word(hash_word(t->hash, (uint64_t)(int64_t)t->bos), (uint64_t)(int64_t)t->eos);
    return TITAN_OK;
}

/* Finds the tokenizer's file: the path itself, or a file in the folder with this path. */
static titan_status find_file(const char *path, char ret[PATH_MAX], struct titan_error *err)
{
    static const char *const names[] = {"", "/tokenizer.json", "/tokenizer.model", "/original/tokenizer.model",
                                        "/tekken.json"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        struct stat st;
        if (snprintf(ret, PATH_MAX, "%s%s", path, names[i]) >= PATH_MAX)
            return titan_fail(err, TITAN_EINVAL, "tokenizer '%.64s...': the path is too long", path);
        if (stat(ret, &st) == 0 && (i > 0 || !S_ISDIR(st.st_mode)))
            return TITAN_OK;
        if (i == 0 && stat(ret, &st) < 0)
            return titan_fail_errno(err, "tokenizer '%s'", path);
    }
    return titan_fail(err, TITAN_ENOTFOUND,
                      "tokenizer '%s' has neither tokenizer.json nor a tokenizer.model or tekken.json", path);
}

titan_status tokenizer_open_as(const char *path, const char *pattern, struct tokenizer **ret, struct titan_error *err)
{
    char file[PATH_MAX];
    pattern = pattern && *pattern ? pattern : NULL;
    if (pattern && strcmp(path, "bytes") == 0)
        return titan_fail(err, TITAN_EINVAL, "the tokenizer \"bytes\" takes no pattern");
    struct tokenizer *t = calloc(1, sizeof(*t));
    if (!t)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a tokenizer");
    if (strcmp(path, "bytes") == 0) {
        *t = (struct tokenizer){.bytes = true, .n_ids = BYTES_VOCABULARY, .bos = TOKEN_NONE, .eos = BYTES_EOS};
        t->hash = hash_text(HASH_INIT, "bytes");
        *ret = t;
        return TITAN_OK;
    }
    titan_status status = find_file(path, file, err);
    if (status == TITAN_OK)
        status = read_tokenizer(t, file, pattern, err);
    if (status != TITAN_OK) {
        tokenizer_close(t);
        return status;
    }
    *ret = t;
    return TITAN_OK;
}

static void free_added(struct added_tokens *set)
{
    for (size_t i = 0; i < set->n; i++)
        free(set->tokens[i].text);
    free(set->tokens);
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    vocabulary_free(&t->vocabulary);
    vocabulary_free(&t->names);
    bpe_free(&t->bpe);
    unigram_free(&t->unigram);
    wordpiece_free(&t->wordpiece);
    normalize_free(&t->normalizer);
    normalize_free(&t->marks);
    split_free(&t->split);
    free_added(&t->added);
    free_added(&t->added_behind);
    free(t->pattern);
    free(t->decoder.from);
    free(t->decoder.to);
    free(t->decoder.prefix);
    free(t);
}

int64_t tokenizer_vocabulary(const struct tokenizer *t)
{
    return t->n_ids;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

const char *tokenizer_pattern(const struct tokenizer *t)
{
    return t->pattern ? t->pattern : "";
}

uint64_t tokenizer_hash(const struct tokenizer *t)
{
    return t->hash;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n)
{
    if (t->bytes)
        return n == 1 ? (unsigned char)*text : TOKEN_NONE;
    for (int64_t id = 0; id < t->n_ids; id++) {
        size_t len;
        const char *its = vocabulary_bytes(&t->vocabulary, id, &len);
        if (its && len == n && memcmp(its, text, n) == 0)
            return (int32_t)id;
    }
    return TOKEN_NONE;
}

/* --- words that were met ------------------------------------------------------------------------------------------ */

#define CACHE_SLOTS (1u << 16)
#define CACHED_WORD 24
#define CACHED_IDS 9
#define AHEAD 16 /* number of words that are looked up together, so that they wait for memory only once */

/* A cache line: a word and its tokens. */
struct cached {
    uint64_t word[CACHED_WORD / 8]; /* the word's bytes, then zeros */
    uint8_t len, n;                 /* len 0: free */
    int32_t ids[CACHED_IDS];
};

struct pending_word {
    const char *at;
    size_t n;
    uint64_t word[CACHED_WORD / 8];
    struct cached *cached; /* the word's slot in the cache; NULL: the word is too long */
};

struct tokenizer_encoder {
    const struct tokenizer *t;
    struct cached *cache;
    struct buf mended, work[2], marked[2];
    const char *end; /* end of the text that has the words; bytes before `end` may be read */
    struct tokens *out;
    struct pending_word pending[AHEAD];
    int n_pending;
};

titan_status tokenizer_encoder_open(const struct tokenizer *t, struct tokenizer_encoder **ret, struct titan_error *err)
{
    struct tokenizer_encoder *e = calloc(1, sizeof(*e));
    if (e && !t->bytes)
        e->cache = aligned_alloc(64, CACHE_SLOTS * sizeof(*e->cache));
    if (!e || (!t->bytes && !e->cache)) {
        free(e);
        return titan_fail(err, TITAN_ENOMEM, "no memory for an encoder");
    }
    if (e->cache)
        memset(e->cache, 0, CACHE_SLOTS * sizeof(*e->cache));
    e->t = t;
    *ret = e;
    return TITAN_OK;
}

void tokenizer_encoder_close(struct tokenizer_encoder *e)
{
    if (!e)
        return;
    buf_free(&e->mended);
    for (int i = 0; i < 2; i++) {
        buf_free(&e->work[i]);
        buf_free(&e->marked[i]);
    }
    free(e->cache);
    free(e);
}

/* --- encoding ----------------------------------------------------------------------------------------------------- */

/* Loads a word of n <= CACHED_WORD bytes, with zeros after it. */
static inline void load_word(const char *word, size_t n, const char *end, uint64_t out[CACHED_WORD / 8])
{
    titan_assert(n <= CACHED_WORD);
    if ((size_t)(end - word) < CACHED_WORD) {
        memset(out, 0, CACHED_WORD);
        memcpy(out, word, n);
        return;
    }
    memcpy(out, word, CACHED_WORD);
    for (size_t i = 0; i < CACHED_WORD / 8; i++) {
        const size_t left = n > 8 * i ? n - 8 * i : 0;
        out[i] &= left >= 8 ? UINT64_MAX : ((UINT64_C(1) << 8 * left) - 1);
    }
}

static titan_status encode_all_pending(struct tokenizer_encoder *e, struct titan_error *err)
{
    const struct tokenizer *t = e->t;
    struct tokens *out = e->out;
    const int n = e->n_pending;

    titan_assert(n >= 0 && n <= AHEAD);
    e->n_pending = 0;
    for (int i = 0; i < n; i++) {
        const struct pending_word *w = &e->pending[i];
        struct cached *c = w->cached;
        const size_t begin = out->n;
        titan_assert(w->n > 0);
        if (c && c->len == w->n && memcmp(c->word, w->word, sizeof(c->word)) == 0) {
            if (!VEC_RESERVE(out->ids, out->cap, begin + CACHED_IDS))
                return titan_fail(err, TITAN_ENOMEM, "no memory for %zu tokens", begin + CACHED_IDS);
            memcpy(out->ids + begin, c->ids, sizeof(c->ids));
            out->n += c->n;
            continue;
        }
        switch (t->kind) {
        case TOKENIZER_UNIGRAM:
            TRY(unigram_encode(&t->unigram, &t->vocabulary, w->at, w->n, out, err));
            break;
        case TOKENIZER_WORDPIECE:
            TRY(wordpiece_encode(&t->wordpiece, &t->vocabulary, w->at, w->n, out, err));
            break;
        default:
            TRY(bpe_encode(&t->bpe, &t->vocabulary, w->at, w->n, out, err));
        }
        if (c && out->n - begin <= CACHED_IDS) {
            memcpy(c->word, w->word, sizeof(c->word));
            c->len = (uint8_t)w->n;
            c->n = (uint8_t)(out->n - begin);
            if (c->n > 0)
                memcpy(c->ids, out->ids + begin, c->n * sizeof(*c->ids));
        }
    }
    return TITAN_OK;
}

static titan_status put_word(void *with, const char *word, size_t n, struct titan_error *err)
{
    struct tokenizer_encoder *e = with;
    titan_assert(e->n_pending >= 0 && e->n_pending < AHEAD);
    struct pending_word *w = &e->pending[e->n_pending++];
    w->at = word;
    w->n = n;
    w->cached = NULL;
    if (n <= CACHED_WORD) {
        load_word(word, n, e->end, w->word);
        const uint64_t hash = hash_mix(w->word[0] ^ (w->word[1] + n) * HASH_STEP ^ w->word[2] * HASH_PRIME);
        w->cached = &e->cache[hash % CACHE_SLOTS];
        __builtin_prefetch(w->cached, 1);
    }
    return e->n_pending < AHEAD ? TITAN_OK : encode_all_pending(e, err);
}

/* A piece of a text. */
struct piece {
    const char *at;
    size_t n;
    bool first; /* the piece is the beginning of the text */
};

/* Encodes a piece of normalized text without added tokens. */
static titan_status encode_part(struct tokenizer_encoder *e, struct piece p, struct titan_error *err)
{
    TRY(normalize_text(&e->t->marks, p.first, &p.at, &p.n, e->marked, err));
    if (p.n > INT32_MAX)
        return titan_fail(err, TITAN_ELIMIT, "a text of %zu bytes once normalized; at most %d are encoded", p.n,
                          INT32_MAX);
    e->end = p.at + p.n;
    e->n_pending = 0;
    TRY(split_text(&e->t->split, p.at, p.n, put_word, e, err));
    return encode_all_pending(e, err);
}

/* Encodes the added tokens of a piece, and calls gap() for the text between them. As in `tokenizers`, the leftmost
 * token is taken; of several tokens that begin there, the longest. */
static titan_status encode_around(struct tokenizer_encoder *e, const struct added_tokens *set, struct piece p,
                                  titan_status (*gap)(struct tokenizer_encoder *e, struct piece p,
                                                      struct titan_error *err),
                                  struct titan_error *err)
{
    const char *const text = p.at;
    size_t begin = 0, len;
    for (size_t at = 0; set->n > 0 && at < p.n;) {
        const unsigned first = (unsigned char)text[at], second = at + 1 < p.n ? (unsigned char)text[at + 1] : 0;
        const struct added_token *added = NULL; /* the longest token here: the set has longer tokens first */
        if (set->begins[first << 3 | second >> 5] >> (second & 31) & 1)
            for (size_t i = 0; i < set->n && !added; i++)
                if (set->tokens[i].len <= p.n - at && memcmp(set->tokens[i].text, text + at, set->tokens[i].len) == 0)
                    added = &set->tokens[i];
        size_t from = at++, to = added ? from + added->len : at;
        if (!added)
            continue;
        at = to;
        if (added->word && ((from > 0 && unicode_is_word(unicode_last(text, from, &len))) ||
                            (to < p.n && unicode_is_word(utf8_code((const unsigned char *)text + to, &len)))))
            continue; /* a character of a word is beside the token */
        if (added->takes_space_left)
            from = MAX(unicode_without_trailing_space(text, from), begin);
        if (added->takes_space_right)
            to += unicode_leading_space(text + to, p.n - to);
        if (from > begin)
            TRY(gap(e, (struct piece){text + begin, from - begin, p.first && begin == 0}, err));
        if (from < to && !VEC_PUSH(e->out->ids, e->out->n, e->out->cap, added->id))
            return titan_fail(err, TITAN_ENOMEM, "no memory for %zu tokens", e->out->n + 1);
        begin = to; /* white space that two tokens include counts twice, as in `tokenizers` */
    }
    return begin < p.n ? gap(e, (struct piece){text + begin, p.n - begin, p.first && begin == 0}, err) : TITAN_OK;
}

/* Encodes a piece between the added tokens that were found in the raw text. */
static titan_status encode_normalized(struct tokenizer_encoder *e, struct piece p, struct titan_error *err)
{
    TRY(normalize_text(&e->t->normalizer, p.first, &p.at, &p.n, e->work, err));
    return encode_around(e, &e->t->added_behind, p, encode_part, err);
}

titan_status tokenizer_encode(struct tokenizer_encoder *e, const char *text, size_t n, struct tokens *out,
                              struct titan_error *err)
{
    if (n > INT32_MAX)
        return titan_fail(err, TITAN_ELIMIT, "a text of %zu bytes; at most %d are encoded at a time", n, INT32_MAX);
    if (e->t->bytes) {
        titan_assert(out->n <= out->cap);
        if (!VEC_RESERVE(out->ids, out->cap, out->n + n))
            return titan_fail(err, TITAN_ENOMEM, "no memory for %zu tokens", out->n + n);
        for (size_t i = 0; i < n; i++)
            out->ids[out->n++] = (unsigned char)text[i];
        return TITAN_OK;
    }
    e->out = out;
    struct piece whole = {text, n, .first = true};
    if (utf8_check(text, n) != n) {
        buf_clear(&e->mended);
        e->mended.limit = SIZE_MAX / 4;
        if (unicode_mend(text, n, &e->mended) != TITAN_OK)
            return titan_fail(err, TITAN_ENOMEM, "no memory for %zu bytes of text", n);
        whole = (struct piece){e->mended.data, e->mended.len, .first = true};
    }
    return encode_around(e, &e->t->added, whole, encode_normalized, err);
}

/* --- decoding ----------------------------------------------------------------------------------------------------- */

static titan_status decode_token(const struct tokenizer *t, const char *token, size_t n, bool first, struct buf *out)
{
    static const char digits[] = "0123456789ABCDEF";
    static const char *const tidy[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                          {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                          {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    if (t->decoder.words) { /* WordPiece: puts a space before the token, or removes the token's prefix */
        _cleanup_(buf_free) struct buf text = BUF_INIT, other = BUF_INIT;
        const size_t prefix = strlen(t->decoder.prefix);
        const bool continues = !first && n >= prefix && memcmp(token, t->decoder.prefix, prefix) == 0;
        TRY(buf_append(&text, " ", first || continues ? 0 : 1));
        TRY(buf_append(&text, token + (continues ? prefix : 0), n - (continues ? prefix : 0)));
        for (size_t i = 0; t->decoder.tidy && i < ARRAY_SIZE(tidy); i++) {
            buf_clear(&other);
            TRY(normalize_replace(text.data, text.len, tidy[i][0], tidy[i][1], &other));
            const struct buf swap = text;
            text = other;
            other = swap;
        }
        return buf_append(out, text.data, text.len);
    }
    if (t->decoder.from_bytes && n == 6 && memcmp(token, "<0x", 3) == 0 && token[5] == '>') {
        const char *high = memchr(digits, token[3], 16), *low = memchr(digits, token[4], 16);
        const char byte = high && low ? (char)((high - digits) << 4 | (low - digits)) : '\0';
        if (high && low)
            return buf_append(out, &byte, 1);
    }
    return t->decoder.from ? normalize_replace(token, n, t->decoder.from, t->decoder.to, out)
                           : buf_append(out, token, n);
}

titan_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, struct buf *out,
                              struct titan_error *err)
{
    const size_t begin = out->len;
    for (size_t i = 0; i < n; i++) {
        size_t len = 1;
        const char byte = (char)ids[i];
        const bool there = ids[i] >= 0 && ids[i] < t->n_ids;
        const char *token = !there ? NULL : t->bytes ? &byte : vocabulary_bytes(&t->vocabulary, ids[i], &len);
        if (!token)
            return titan_fail(err, TITAN_EINVAL, "%" PRId32 " is not a token of this tokenizer", ids[i]);
        if (decode_token(t, token, len, i == 0, out) != TITAN_OK)
            return titan_fail(err, TITAN_ENOMEM, "no memory for %zu bytes of text", out->len + len);
    }
    size_t strip = 0;
    while ((int64_t)strip < t->decoder.strip && begin + strip < out->len && out->data[begin + strip] == ' ')
        strip++;
    if (strip > 0) {
        memmove(out->data + begin, out->data + begin + strip, out->len - begin - strip + 1);
        out->len -= strip;
    }
    return TITAN_OK;
}
