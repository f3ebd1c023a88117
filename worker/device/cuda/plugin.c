/* SPDX-License-Identifier: Apache-2.0 */
/* plugin.c - the table that the worker finds when it opens libtitan-cuda.so. */
#include "worker/comm/comm.h"
#include "worker/device/cuda/cuda.h"

static const char *unusable(void)
{
    const char *why = cuda_unusable();
    return why ? why : cuda_nccl_unusable();
}

static const struct device_plugin plugin = {
    .abi = TITAN_DEVICE_ABI,
    .name = "cuda",
    .ops = &cuda_ops,
    .comm = &comm_nccl,
    .unusable = unusable,
};

const struct device_plugin *titan_device_plugin(void)
{
    return &plugin;
}
