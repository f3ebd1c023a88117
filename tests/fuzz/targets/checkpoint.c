/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint's folder: a manifest with a right checksum and one shard, listed, read and loaded into memory. */
#include "tests/fuzz/common.h"

#include <sys/stat.h>

#include "base/buf.h"
#include "base/crc32c.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/manifest.h"

/* What the run wants: the two tensors of the corpus' manifests. */
static const struct tensor_spec specs[] = {{.name = "a", .shape = {4, 3}, .ndim = 2, .numel = 12},
                                           {.name = "b", .shape = {5}, .ndim = 1, .numel = 5}};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size}, shard = fuzz_piece(&in);
    char folder[128], path[256], newest[4096];
    struct titan_error err = {0};
    struct checkpoint_info info = {0};
    float a[12], b[5];
    uint64_t step = 0;
    struct shard_slice slices[] = {{.tensor = 0, .rows = 4, .cols = 3, .data = a},
                                   {.tensor = 1, .rows = 1, .cols = 5, .data = b}};
    (void)snprintf(folder, sizeof(folder), "%s/step-00000007", fuzz_folder());
    (void)mkdir(folder, 0700);
    (void)snprintf(path, sizeof(path), "%s/rank-00000.safetensors", folder);
    fuzz_file(path, shard.data, shard.len);
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    /* CRC of the shard is put in where the text asks for it. */
    for (; in.len > 0; in.data++, in.len--) {
        char c = (char)*in.data;
        if (c == '\x01')
            buf_printf(&text, "%08x", crc32c(0, shard.data, shard.len));
        else if (c == '\x02')
            buf_printf(&text, "%zu", shard.len);
        else if (buf_append(&text, &c, 1) != TITAN_OK)
            return 0;
    }
    buf_printf(&text, ",\"manifest_crc32c\":\"%08x\"}\n", crc32c(0, text.data, text.len));
    (void)snprintf(path, sizeof(path), "%s/" MANIFEST_NAME, folder);
    fuzz_file(path, (const uint8_t *)text.data, text.len);
    (void)!checkpoint_latest(fuzz_folder(), NULL, newest, &step, &err);
    titan_status status = checkpoint_read_info(folder, &info, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    checkpoint_info_clear(&info);
    err = (struct titan_error){0};
    status = checkpoint_load(folder, &(struct checkpoint_part){specs, 2, slices, 2, 0}, NULL, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    return 0;
}
