/* SPDX-License-Identifier: Apache-2.0 */
/* formats.c - see formats.h. */
#include "worker/data/formats.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/path_pattern.h"
#include "base/vec.h"
#include "worker/data/decoded.h"
#include "worker/data/packed.h"
#include "worker/data/shard.h"

/* Files from this size on are mapped, and smaller files are copied into one buffer. A mapping costs whole pages, and a
 * process may have at most 65,530 mappings. */
#define MAP_BYTES_MIN (UINT64_C(1) << 20)
#define BINARY_PROBE_BYTES 4096

/* --- which it is -------------------------------------------------------------------------------------------------- */

#define LLMC_MAGIC_GPT2 20240520
#define LLMC_MAGIC 20240801
#define LLMC_HEADER_BYTES 1024
#define LLMC_VERSION_GPT2 1
#define LLMC_VERSION_LLAMA3 7

const char *data_format_name(enum data_format format)
{
    titan_assert(format <= DATA_NANOGPT);
    static const char *const names[] = {"text", "shards", "Megatron", "llm.c", "nanoGPT"};
    return names[format];
}

/* Reads the first bytes of a regular file. Returns the number of bytes; 0: the file cannot be read. */
static size_t read_head(const char *path, void *ret, size_t len)
{
    _cleanup_fd_ int fd = file_open_named(path, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    const ssize_t n = pread(fd, ret, len, 0);
    return n < 0 ? 0 : (size_t)n;
}

/* Makes the path NAME.idx from NAME.bin, or the other way round. False: the path does not end in `from`, or is too
 * long. */
static bool other_half(const char *path, const char *from, const char *to, char ret[PATH_MAX])
{
    titan_assert(strlen(from) == strlen(to));
    const size_t len = strlen(path), n = strlen(from);
    if (len < n || strcmp(path + len - n, from) != 0 || len >= PATH_MAX)
        return false;
    memcpy(ret, path, len + 1);
    memcpy(ret + len - n, to, n);
    return true;
}

static bool is_megatron(const char *bin)
{
    char idx[PATH_MAX], magic[9];
    return other_half(bin, ".bin", ".idx", idx) && read_head(idx, magic, sizeof(magic)) == sizeof(magic) &&
           memcmp(magic, "MMIDIDX\0\0", sizeof(magic)) == 0;
}

/* Files of llm.c that hold no training tokens. */
static const struct {
    int32_t magic;
    const char *what;
} llmc_others[] = {{20240326, "a model"},
                   {20240327, "a state to debug with"},
                   {20240328, "a tokenizer"},
                   {20240522, "questions for an evaluation (HellaSwag, MMLU)"},
                   {20240527, "a state of a run"}};

static enum data_format format_of_bin(const char *path)
{
    uint8_t head[SHARD_HEADER_BYTES];
    int32_t magic = 0;
    const size_t n = read_head(path, head, sizeof(head));
    if (n >= 8 && memcmp(head, SHARD_MAGIC, 8) == 0)
        return DATA_SHARDS;
    if (is_megatron(path))
        return DATA_MEGATRON;
    if (n >= sizeof(magic))
        memcpy(&magic, head, sizeof(magic));
    for (size_t i = 0; i < ARRAY_SIZE(llmc_others); i++)
        if (magic == llmc_others[i].magic)
            return DATA_LLMC;
    return magic == LLMC_MAGIC_GPT2 || magic == LLMC_MAGIC ? DATA_LLMC : DATA_NANOGPT;
}

static bool ends_in(const char *path, const char *suffix)
{
    const size_t len = strlen(path), n = strlen(suffix);
    return len >= n && strcmp(path + len - n, suffix) == 0;
}

static bool is_bin(const struct data_file *file, const void *with)
{
    (void)with;
    return ends_in(file->path, ".bin");
}

/* Returns the format of the .bin files of a folder or a pattern. Files without a header count only if one has "train"
 * in its name, or if all other files are companions. */
static enum data_format format_of_many(const char *path)
{
    /* Ends of the names of companions, the files usual beside files of tokens: scripts, indexes, the vocabulary's
     * characters. */
    static const char *const companions[] = {".idx", ".pkl", ".py", ".md", ".json", "/input.txt", "/.gitignore"};
    _cleanup_(data_files_clear) struct data_files files = {0};
    enum data_format first = DATA_TEXT;
    bool alone = true;
    if (data_files_add(&files, path, NULL) != TITAN_OK)
        return DATA_TEXT;
    for (size_t i = 0; i < files.n; i++) {
        const char *its = files.file[i].path;
        if (!ends_in(its, ".bin")) {
            bool companion = false;
            for (size_t k = 0; k < ARRAY_SIZE(companions); k++)
                companion = companion || ends_in(its, companions[k]);
            alone = alone && companion;
            continue;
        }
        const enum data_format format = format_of_bin(its);
        if (format != DATA_NANOGPT || data_name_has(its + files.file[i].name, "train"))
            return format;
        first = format;
    }
    return alone ? first : DATA_TEXT;
}

enum data_format data_format_of(const char *path)
{
    char bin[PATH_MAX];
    struct stat st;
    if (shard_folder(path))
        return DATA_SHARDS;
    if (stat(path, &st) == 0 ? S_ISDIR(st.st_mode) : path_is_pattern(path))
        return format_of_many(path);
    if (other_half(path, ".idx", ".bin", bin) && is_megatron(bin))
        return DATA_MEGATRON;
    return ends_in(path, ".bin") ? format_of_bin(path) : DATA_TEXT;
}

titan_status data_format_files(const char *path, enum data_format format, enum data_split split, struct data_files *ret,
                               struct titan_error *err)
{
    char bin[PATH_MAX];
    titan_assert(format != DATA_SHARDS && ret->n == 0);
    if (other_half(path, ".idx", ".bin", bin))
        path = bin;
    TRY(data_files_add(ret, path, err));
    if (format != DATA_TEXT) {
        const bool named = ret->n == 1 && !ret->file[0].path[ret->file[0].name];
        if (ret->left_out.by[OMITTED_UNREADABLE].n > 0) /* without this file the stream would have a gap */
            return titan_fail(err, TITAN_EINVAL, "training data '%s': %s", ret->left_out.by[OMITTED_UNREADABLE].first,
                              strerror(ret->left_out.by[OMITTED_UNREADABLE].error));
        if (!named)
            data_files_filter(ret, 0, OMITTED_KIND, is_bin, NULL);
    }
    data_files_select(ret, 0, path, split);
    return ret->n > 0 ? TITAN_OK : data_files_none(ret, path, err);
}

/* --- text --------------------------------------------------------------------------------------------------------- */

/* Reads up to len bytes from the beginning of fd. If the file has shrunk meanwhile, *ret_got is smaller. Returns 0, or
 * the errno of a failure. */
static int read_up_to(int fd, uint8_t *out, size_t len, size_t *ret_got)
{
    titan_assert(fd >= 0);
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

/* The kind of a file by its first bytes. */
enum opening { OPENING_TEXT, OPENING_MARK, OPENING_BINARY, OPENING_ENCODED };

#define MARK_BYTES 3 /* UTF-8's byte order mark */

/* OPENING_ENCODED: the file is packed or UTF-16, so its bytes are not its text. */
static enum opening opening_of(const uint8_t *at, size_t n)
{
    size_t mark;
    if (decoded_encoding(at, n, TEXT_UTF8, &mark) != TEXT_UTF8 || packed_begins(at, n))
        return OPENING_ENCODED;
    if (memchr(at, 0, MIN(n, (size_t)BINARY_PROBE_BYTES)))
        return OPENING_BINARY;
    return mark == MARK_BYTES && n > mark ? OPENING_MARK : OPENING_TEXT;
}

static titan_status add_text_file(struct corpus *c, struct data_files *files, const struct data_file *file,
                                  bool *ret_encoded, struct titan_error *err)
{
    const char *const path = file->path, *const name = path + file->name;
    uint8_t probe[BINARY_PROBE_BYTES];
    enum opening opening = OPENING_TEXT;
    struct stat st = {0};
    size_t got = 0;
    _cleanup_fd_ int fd = file_open_named(path, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    int why = fd < 0 || fstat(fd, &st) < 0 ? errno : 0; /* errno if the file cannot be read */
    if (!why && (!S_ISREG(st.st_mode) || st.st_size <= 0))
        return TITAN_OK;

    /* A small file is read whole into c->small, behind the other small files. */
    const uint64_t bytes = (uint64_t)st.st_size;
    const bool small = bytes < MAP_BYTES_MIN;
    if (!why && small && !VEC_RESERVE(c->small, c->small_cap, c->small_len + bytes)) {
        (void)titan_fail(err, TITAN_ENOMEM, "no memory for %zu bytes of training data", c->small_len + bytes);
        return titan_error_wrap(err, "%s", path);
    }
    uint8_t *const head = small && !why ? c->small + c->small_len : probe;
    why = why ? why : read_up_to(fd, head, small ? bytes : sizeof(probe), &got);
    if (!why && got > 0)
        opening = opening_of(head, got);
    if (why && !*name)
        return titan_fail(err, TITAN_EINVAL, "training data '%s': %s", path, strerror(why));
    if (why || opening > OPENING_MARK)
        data_leave_out(&files->left_out,
                       why                         ? OMITTED_UNREADABLE
                       : opening == OPENING_BINARY ? OMITTED_BINARY
                                                   : OMITTED_ENCODED,
                       path, why);
    *ret_encoded = opening == OPENING_ENCODED;
    if (why || got == 0 || opening > OPENING_MARK)
        return TITAN_OK;

    const size_t mark = opening == OPENING_MARK ? MARK_BYTES : 0;
    struct segment s = {.small_offset = c->small_len + mark,
                        .tokens = (small ? got : bytes) - mark + 1,
                        .width = 1,
                        .separated = true,
                        .id_max = 255};
    if (!small) {
        void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
            (void)titan_fail_errno(err, "cannot map %" PRIu64 " bytes of training data", bytes);
            return titan_error_wrap(err, "%s", path);
        }
        s.small_offset = 0;
        s.data = (const uint8_t *)map + mark;
        s.mapping = (struct mapping){.at = map, .bytes = bytes};
    }
    const titan_status status = corpus_add(c, s, name, err);
    if (status == TITAN_OK && small)
        c->small_len += got;
    return status == TITAN_OK ? status : titan_error_wrap(err, "%s", path);
}

titan_status corpus_open_text(struct corpus *c, struct data_files *files, bool decodes, bool *ret_encoded,
                              struct titan_error *err)
{
    bool encoded = false;
    c->separator = 0;
    for (size_t i = 0; i < files->n && !(encoded && decodes); i++)
        TRY(add_text_file(c, files, &files->file[i], &encoded, err));
    *ret_encoded = encoded && decodes;
    return TITAN_OK;
}

/* --- Megatron ----------------------------------------------------------------------------------------------------- */

/* NAME.idx: char[9] "MMIDIDX\0\0", uint64 version, uint8 type of the ids, uint64 sequences S, uint64 documents+1 D,
 * int32 lengths[S], int64 places[S] in bytes, int64 documents[D]: the first sequence of each document. Later bytes of
 * the file are not read. Sequences follow each other in NAME.bin without gaps. So NAME.bin is the stream, and the
 * places divide it into documents. */
#define MEGATRON_HEADER_BYTES 34

static uint64_t load64(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof(v));
    return v;
}

static titan_status damaged(const char *path, const char *what, struct titan_error *err)
{
    return titan_fail(err, TITAN_ECORRUPT, "'%s' is cut off or damaged: %s", path, what);
}

/* Reads the index of a segment whose file is already mapped. */
static titan_status read_megatron_index(const char *idx, const struct mapping *m, struct segment *s,
                                        struct titan_error *err)
{
    static const uint8_t widths[] = {
        [1] = 1, [3] = 2, [4] = 4, [5] = 8, [8] = 2}; /* uint8, int16, int32, int64, uint16 */
    const uint8_t *at = m->at;
    if (m->bytes < MEGATRON_HEADER_BYTES || memcmp(at, "MMIDIDX\0\0", 9) != 0)
        return damaged(idx, "it has no Megatron header", err);
    const uint64_t version = load64(at + 9), sequences = load64(at + 18), documents = load64(at + 26);
    s->width = at[17] < sizeof(widths) ? widths[at[17]] : 0;
    if (version != 1)
        return titan_fail(err, TITAN_EVERSION, "'%s' has version %" PRIu64 " of Megatron's index; version 1 is read",
                          idx, version);
    if (!s->width)
        return titan_fail(err, TITAN_EINVAL, "'%s' is an index of values of type %d, not of token ids", idx, at[17]);
    const uint64_t left = m->bytes - MEGATRON_HEADER_BYTES;
    if (sequences > left / 12 || documents > (left - 12 * sequences) / 8)
        return damaged(idx, "it is shorter than its header says", err);
    if (sequences == 0)
        return titan_fail(err, TITAN_EINVAL, "'%s' has no sequences", idx);
    const uint8_t *places = at + MEGATRON_HEADER_BYTES + 4 * sequences, *last_length = places - 4;
    int32_t length;
    memcpy(&length, last_length, sizeof(length));
    const uint64_t last = load64(places + 8 * (sequences - 1)), bytes = s->mapping.bytes;
    if (length < 0 || load64(places) != 0 || last > bytes || (uint64_t)length > (bytes - last) / s->width ||
        last + (uint64_t)length * s->width != bytes)
        return titan_fail(err, TITAN_ECORRUPT,
                          "'%s' tells of a file of %" PRIu64 " bytes, its .bin has %" PRIu64
                          ": one of the two is cut off or of another data set",
                          idx, last + (uint64_t)MAX(length, 0) * s->width, bytes);
    s->data = s->mapping.at;
    s->tokens = bytes / s->width;
    s->index = (struct document_index){.offsets = places,
                                       .n_offsets = sequences,
                                       .select = documents > 1 ? places + 8 * sequences : NULL,
                                       .documents = documents > 1 ? documents - 1 : sequences,
                                       .unit = s->width};
    return TITAN_OK;
}

/* --- llm.c and nanoGPT -------------------------------------------------------------------------------------------- */

/* 256 int32: magic, version, tokens. GPT-2's documents begin with token 50256, Llama 3's with 128000. */
static titan_status read_llmc_header(const char *path, struct segment *s, int32_t *ret_separator,
                                     struct titan_error *err)
{
    int32_t head[3] = {0};
    memcpy(head, s->mapping.at, MIN(s->mapping.bytes, sizeof(head)));
    for (size_t i = 0; i < ARRAY_SIZE(llmc_others); i++)
        if (head[0] == llmc_others[i].magic)
            return titan_fail(err, TITAN_EINVAL, "'%s' is %s of llm.c's (magic %d), no tokens to train on", path,
                              llmc_others[i].what, head[0]);
    if (s->mapping.bytes < LLMC_HEADER_BYTES)
        return damaged(path, "it has no llm.c header of 1024 bytes", err);
    const bool gpt2 = head[1] == LLMC_VERSION_GPT2, llama3 = head[0] == LLMC_MAGIC && head[1] == LLMC_VERSION_LLAMA3;
    if (head[0] != LLMC_MAGIC_GPT2 && head[0] != LLMC_MAGIC)
        return damaged(path, "it has no llm.c header", err);
    if (!gpt2 && !llama3)
        return titan_fail(err, TITAN_EVERSION,
                          "'%s' has version %d of llm.c's format; 1 (GPT-2, 16 bits) and 7 (Llama 3, 32 bits) are read",
                          path, head[1]);
    s->width = llama3 ? 4 : 2;
    *ret_separator = llama3 ? 128000 : 50256;
    const uint64_t tokens = (s->mapping.bytes - LLMC_HEADER_BYTES) / s->width;
    if (head[2] < 0 || (uint64_t)head[2] * s->width != s->mapping.bytes - LLMC_HEADER_BYTES)
        return titan_fail(err, TITAN_ECORRUPT,
                          "'%s' has %" PRIu64 " tokens, its header says %d: it is cut off or damaged", path, tokens,
                          head[2]);
    s->data = (const uint8_t *)s->mapping.at + LLMC_HEADER_BYTES;
    s->tokens = tokens;
    return TITAN_OK;
}

#define PROBE_PAIRS 4096
#define PROBE_PAIRS_MIN 16

/* For files without a header: do the ids seem to have 32 or 64 bits? Then every second 16-bit number is 0 or small. */
static bool looks_wide(const uint8_t *at, size_t bytes)
{
    const size_t pairs = MIN(bytes / 4, (size_t)PROBE_PAIRS);
    bool any = false;
    for (size_t i = 0; i < pairs; i++) {
        uint16_t low, high;
        memcpy(&low, at + 4 * i, sizeof(low));
        memcpy(&high, at + 4 * i + 2, sizeof(high));
        if (high >= 16) /* such an id needs a vocabulary of more than 2^20 */
            return false;
        any = any || low >= 16;
    }
    return any && pairs >= PROBE_PAIRS_MIN && bytes % 4 == 0;
}

static titan_status read_nanogpt(const char *path, struct segment *s, int32_t *ret_separator, struct titan_error *err)
{
    const uint8_t *at = s->mapping.at;
    const size_t bytes = s->mapping.bytes;
    s->width = ends_in(path, ".u32.bin") ? 4 : 2;
    *ret_separator = 50256;
    if (bytes >= 6 && (memcmp(at, "PK\3\4", 4) == 0 || memcmp(at, "\x93NUMPY", 6) == 0))
        return titan_fail(err, TITAN_EINVAL, "'%s' is %s, no file of tokens", path,
                          *at == 'P' ? "a zip archive (as PyTorch's weights are)"
                                     : "an array of NumPy's with a header");
    if (s->width == 2 && looks_wide(at, bytes)) {
        (void)titan_fail(err, TITAN_EINVAL,
                         "'%s' has no header and looks like ids of 32 bits: every second one of 16 is 0", path);
        if (err)
            titan_error_hint(
                err, "Megatron's NAME.bin needs its NAME.idx beside it; other ids of 32 bits the name NAME.u32.bin");
        return TITAN_EINVAL;
    }
    if (bytes % s->width)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' has %zu bytes, no whole number of ids of %u bits: it is cut off",
                          path, bytes, 8 * s->width);
    s->data = at;
    s->tokens = bytes / s->width;
    return TITAN_OK;
}

titan_status corpus_open_tokens(struct corpus *c, const struct data_files *files, enum data_format format,
                                int32_t *ret_separator, struct titan_error *err)
{
    *ret_separator = -1;
    for (size_t i = 0; i < files->n; i++) {
        const char *path = files->file[i].path, *name = path + files->file[i].name;
        const enum data_format its = format_of_bin(path);
        if (its != format)
            return titan_fail(err, TITAN_EINVAL, "'%s' is a file of %s, '%s' one of %s", path, data_format_name(its),
                              files->file[0].path, data_format_name(format));
        const bool indexed = format == DATA_MEGATRON;
        char idx[PATH_MAX];
        struct segment s = {.id_max = -1};
        if (indexed && !other_half(path, ".bin", ".idx", idx))
            return titan_fail(err, TITAN_EINVAL, "'%s' has no index: Megatron's NAME.bin needs NAME.idx beside it",
                              path);
        titan_status status = corpus_map(path, &s.mapping, err);
        if (status == TITAN_OK && indexed)
            status = corpus_map(idx, &s.index_mapping, err);
        if (status == TITAN_OK)
            status = indexed               ? read_megatron_index(idx, &s.index_mapping, &s, err)
                     : format == DATA_LLMC ? read_llmc_header(path, &s, ret_separator, err)
                                           : read_nanogpt(path, &s, ret_separator, err);
        if (status == TITAN_OK) {
            TRY(corpus_add(c, s, name, err));
            continue;
        }
        corpus_unmap(&s.mapping);
        corpus_unmap(&s.index_mapping);
        return status;
    }
    return TITAN_OK;
}
