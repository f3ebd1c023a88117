/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/agent/shell/nvml.h"

#include <dlfcn.h>
#include <string.h>

#include "base/cleanup.h"

titan_status nvml_load(const char *path, struct nvml *ret, struct titan_error *err)
{
    *ret = (struct nvml){.library = dlopen(path && *path ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!ret->library)
        return titan_fail(err, TITAN_ENOTFOUND, "cannot load NVML: %s", dlerror());
    const struct {
        const char *name;
        void *at;
    } symbols[] = {{"nvmlInit_v2", &ret->init},
                   {"nvmlShutdown", &ret->shutdown},
                   {"nvmlDeviceGetCount_v2", &ret->count},
                   {"nvmlDeviceGetHandleByIndex_v2", &ret->by_index},
                   {"nvmlDeviceGetHandleByUUID", &ret->by_uuid},
                   {"nvmlDeviceGetName", &ret->name},
                   {"nvmlDeviceGetUUID", &ret->uuid},
                   {"nvmlDeviceGetMemoryInfo", &ret->memory},
                   {"nvmlDeviceGetTemperature", &ret->temperature},
                   {"nvmlDeviceGetTotalEccErrors", &ret->ecc_errors},
                   {"nvmlEventSetCreate", &ret->events_create},
                   {"nvmlDeviceRegisterEvents", &ret->events_register},
                   {"nvmlEventSetWait_v2", &ret->events_wait},
                   {"nvmlEventSetFree", &ret->events_free},
                   {"nvmlErrorString", &ret->error_string}};
    for (size_t i = 0; i < ARRAY_SIZE(symbols); i++) {
        void *const symbol = dlsym(ret->library, symbols[i].name);
        if (!symbol)
            return titan_fail(err, TITAN_ENOTFOUND, "NVML has no %s: its driver is too old", symbols[i].name);
        memcpy(symbols[i].at, &symbol, sizeof(symbol)); /* a data pointer becomes a function pointer, as POSIX allows */
    }
    return TITAN_OK;
}
