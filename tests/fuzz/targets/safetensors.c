/* SPDX-License-Identifier: Apache-2.0 */
/* A safetensors file: header and every tensor's data. */
#include "tests/fuzz/common.h"

#include "worker/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[128], out[64];
    struct titan_error err = {0};
    struct safetensors *st = NULL;
    (void)snprintf(path, sizeof(path), "%s/x.safetensors", fuzz_folder());
    fuzz_file(path, data, size);
    titan_status status = safetensors_open(path, &st, &err);
    if (status != TITAN_OK) {
        fuzz_error(status, &err);
        return 0;
    }
    for (size_t i = 0; i < st->ntensors; i++) {
        const struct safetensors_tensor *t = &st->tensors[i];
        fuzz_assert(t->offset + t->bytes >= t->bytes && t->offset + t->bytes <= size);
        fuzz_assert(safetensors_find(st, t->name));
        fuzz_assert(safetensors_read(st, t, 0, out, MIN(t->bytes, sizeof(out)), &err) == TITAN_OK);
    }
    safetensors_close(st);
    return 0;
}
