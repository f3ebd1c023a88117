/* SPDX-License-Identifier: Apache-2.0 */
/* check_ops [samples [reduced]] - every operation of the CUDA plug-in against the fp64 reference; TAP. samples:
 * instead, the large ones at the shapes of Llama 3 8B by samples, or reduced to what the emulator does in a second. */
#include <stdio.h>
#include <string.h>

#include "support/device_ops.h"
#include "support/device_samples.h"

int main(int argc, char **argv)
{
    const bool samples = argc > 1 && strcmp(argv[1], "samples") == 0,
               reduced = argc > 2 && strcmp(argv[2], "reduced") == 0;
    if (argc > 1 + samples + (samples && reduced)) {
        (void)fprintf(stderr, "usage: check_ops [samples [reduced]]\n");
        return 2;
    }
    struct device_handle device;
    struct titan_error err = {0};
    if (device_open("cuda", NULL, &device, &err) != TITAN_OK) {
        (void)fprintf(stderr, "check_ops: %s\n", err.msg);
        return 2;
    }
    printf("# %s\n", device.info.name);
    int failed = samples ? device_samples_check(&device, reduced, stdout) : device_ops_check(&device, stdout);
    device_close(&device);
    return failed > 0;
}
