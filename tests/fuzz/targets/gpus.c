/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA_VISIBLE_DEVICES, any text: each GPU that it names is handed on as a list of that one. */
#include "tests/fuzz/common.h"

#include "base/machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char one[128], again[128];
    _cleanup_free_ char *text = fuzz_text(data, size);
    const uint32_t n = machine_gpus_in(text, "/nowhere");
    fuzz_assert(n <= strlen(text));
    fuzz_assert(!machine_gpu_in(text, "/nowhere", n, one));
    for (uint32_t i = 0; i < n && i < 100; i++) {
        fuzz_assert(machine_gpu_in(text, "/nowhere", i, one));
        fuzz_assert(strstr(text, one) && machine_gpus_in(one, "/nowhere") == 1);
        fuzz_assert(machine_gpu_in(one, "/nowhere", 0, again) && strcmp(one, again) == 0);
    }
    return 0;
}
