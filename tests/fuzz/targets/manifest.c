/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint's manifest, with the checksum put right: it protects against accidents, not against intent. */
#include "tests/fuzz/common.h"

#include "base/buf.h"
#include "base/crc32c.h"
#include "worker/checkpoint/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct titan_error err = {0};
    struct manifest m = {0}, back = {0};
    _cleanup_(buf_free) struct buf text = BUF_INIT, printed = BUF_INIT;
    if (size && buf_append(&text, data, size) != TITAN_OK)
        return 0;
    if (size % 8 != 0) /* else as it came */
        buf_printf(&text, ",\"manifest_crc32c\":\"%08x\"}\n", crc32c(0, text.data, text.len));
    titan_status status = manifest_parse(text.data ? text.data : "", text.len, &m, &err);
    if (status != TITAN_OK) {
        fuzz_error(status, &err);
    } else {
        (void)!manifest_check_cover(&m, &err);
        fuzz_assert(manifest_print(&m, &printed, &err) == TITAN_OK);
        fuzz_assert(manifest_parse(printed.data, printed.len, &back, &err) == TITAN_OK);
        fuzz_assert(back.ntensors == m.ntensors && back.nfiles == m.nfiles && back.info.step == m.info.step);
        for (int i = 0; i < m.ntensors; i++)
            fuzz_assert(manifest_find_tensor(&m, m.tensors[i].name) >= 0);
    }
    manifest_clear(&m);
    manifest_clear(&back);
    return 0;
}
