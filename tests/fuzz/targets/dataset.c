/* SPDX-License-Identifier: Apache-2.0 */
/* Training data: files of any bytes below a folder of any names. The tokens are the bytes of what is text, in the order
 * of the paths, with a separator behind each; samples are windows of them. */
#include "tests/fuzz/common.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "worker/data/dataset.h"
#include "worker/data/decoded.h"
#include "worker/data/packed.h"

enum { FILES = 6, PROBE = 4096, SEQ_MAX = 9 };

struct given {
    char path[128];
    struct fuzz_input bytes;
};

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct given *)a)->path, ((const struct given *)b)->path);
}

/* What is to come of them, by the contract in dataset.h. *ret_decoded: the text is not what lies in the files. */
static size_t expect(struct given *files, int n, uint8_t *out, bool *ret_decoded)
{
    size_t len = 0;
    *ret_decoded = false;
    qsort(files, (size_t)n, sizeof(*files), by_path);
    for (int i = 0; i < n; i++) {
        const struct fuzz_input f = files[i].bytes;
        size_t mark;
        if (decoded_encoding(f.data, f.len, TEXT_UTF8, &mark) != TEXT_UTF8 || packed_begins(f.data, f.len))
            *ret_decoded = true;
        if (f.len == 0 || memchr(f.data, 0, MIN(f.len, (size_t)PROBE)))
            continue;
        mark = mark < f.len ? mark : 0;
        memcpy(out + len, f.data + mark, f.len - mark);
        len += f.len - mark;
        out[len++] = 0;
    }
    return len;
}

static void look(const struct dataset *ds, const uint8_t *tokens, size_t len, int64_t seq_len, uint64_t at)
{
    int32_t inputs[SEQ_MAX], targets[SEQ_MAX];
    const uint64_t windows = (len - 1) / (uint64_t)seq_len;
    fuzz_assert(dataset_tokens(ds) == len && dataset_windows(ds) == windows);
    for (uint64_t g = at; g < at + 3; g++) {
        bool found = false;
        fuzz_assert(dataset_sample(ds, g, inputs, targets, NULL, NULL) == TITAN_OK);
        for (uint64_t w = 0; w < windows && !found; w++) {
            const uint8_t *from = tokens + w * (uint64_t)seq_len;
            found = true;
            for (int64_t i = 0; i < seq_len && found; i++)
                found = inputs[i] == from[i] && targets[i] == from[i + 1];
        }
        fuzz_assert(found);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct given files[FILES];
    struct titan_error err = {0};
    struct dataset *ds = NULL;
    char root[96];
    int n = 0;
    const int64_t seq_len = 1 + (int64_t)(fuzz_take(&in, 1) % SEQ_MAX);
    const uint64_t at = fuzz_take(&in, 8);
    static struct tokenizer *bytes;
    fuzz_assert(bytes || tokenizer_open("bytes", &bytes, NULL) == TITAN_OK);
    (void)snprintf(root, sizeof(root), "%s/data", fuzz_folder());
    (void)mkdir(root, 0700);
    _cleanup_free_ uint8_t *tokens = malloc(size + FILES + 1);
    fuzz_assert(tokens);
    while (in.len > 0 && n < FILES) { /* names of one letter: the same one twice is one file */
        struct given *f = &files[n];
        const int name = (int)(fuzz_take(&in, 1) & 0xff);
        int same = 0;
        (void)snprintf(f->path, sizeof(f->path), "%s/%c", root, name <= ' ' || name == '/' || name == '.' ? 'x' : name);
        f->bytes = fuzz_piece(&in);
        while (strcmp(files[same].path, f->path) != 0)
            same++;
        files[same].bytes = f->bytes;
        n += same == n;
        fuzz_file(f->path, f->bytes.data, f->bytes.len);
    }
    const struct dataset_source source = {.path = root};
    const struct dataset_options o = {.sources = &source,
                                      .n_sources = 1,
                                      .tokenizer_name = "bytes",
                                      .tokenizer = bytes,
                                      .seq_len = seq_len,
                                      .seed = size};
    bool decoded;
    const size_t len = expect(files, n, tokens, &decoded);
    const titan_status status = dataset_open(&o, &ds, &err);
    fuzz_assert(decoded || (status == TITAN_OK) == (len > (size_t)seq_len));
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    else if (!decoded)
        look(ds, tokens, len, seq_len, at);
    dataset_close(ds);
    for (int i = 0; i < n; i++)
        (void)unlink(files[i].path);
    return 0;
}
