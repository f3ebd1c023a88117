/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of weights of transformers: config.json, the index and two shards, each a piece of the input; opened,
 * checked and converted as `titan-worker convert` does. */
#include "tests/fuzz/common.h"

#include <limits.h>
#include <unistd.h>

#include "base/file.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/hf_weights.h"

static const char *const names[] = {"config.json", "model.safetensors.index.json", "model-1.safetensors",
                                    "model.safetensors"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct titan_error err = {0};
    struct hf_weights *w = NULL;
    char dir[128], out[160], path[PATH_MAX];

    (void)snprintf(dir, sizeof dir, "%s/weights", fuzz_folder());
    (void)snprintf(out, sizeof out, "%s/out", fuzz_folder());
    fuzz_assert(dir_make(dir, &err) == TITAN_OK);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        const struct fuzz_input piece = i + 1 < ARRAY_SIZE(names) ? fuzz_piece(&in) : in;
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (piece.len > 0)
            fuzz_file(path, piece.data, piece.len);
        else
            (void)unlink(path);
    }
    titan_status status = hf_weights_open(dir, &w, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    hf_weights_close(w);
    status = convert_weights(dir, out, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    fuzz_assert(dir_remove(out, &err) == TITAN_OK);
    return 0;
}
