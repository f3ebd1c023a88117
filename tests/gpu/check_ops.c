/* SPDX-License-Identifier: Apache-2.0 */
/* check_ops - every operation of the CUDA plug-in against the fp64 reference; TAP. */
#include <stdio.h>

#include "support/device_ops.h"

int main(void)
{
    struct device_handle device;
    struct titan_error err = {0};
    if (device_open("cuda", NULL, &device, &err) != TITAN_OK) {
        (void)fprintf(stderr, "check_ops: %s\n", err.msg);
        return 2;
    }
    printf("# %s\n", device.info.name);
    int failed = device_ops_check(&device, stdout);
    device_close(&device);
    return failed > 0;
}
