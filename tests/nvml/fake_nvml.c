/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for libnvidia-ml.so.1. What it says is in the file that TITAN_FAKE_NVML names, read again at every call
 * (write it beside and rename it): a line for each GPU,
 *
 *     UUID NAME MEMORY_MIB USED_MIB CELSIUS ECC CODE EVENT:XID
 *
 * where ECC -1 is "not supported", CODE what every call about that GPU returns (0: as documented), and a new EVENT
 * number brings an event with that Xid. A line "init CODE" makes nvmlInit_v2 fail; while there is a line "silent" no
 * call returns, as in a driver that hangs. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/agent/shell/nvml.h"

#define GPUS_MAX 16

struct gpu {
    char uuid[NVML_UUID_SIZE], name[NVML_NAME_SIZE];
    unsigned long long total, used, event, xid;
    long long ecc;
    unsigned celsius;
    int code;
};
struct nvmlEventSet_st {
    unsigned long long seen[GPUS_MAX];
    long long ecc[GPUS_MAX];
    bool registered[GPUS_MAX];
};
static int init_code;

#define EXPORT __attribute__((visibility("default")))

static bool is_silent(const char *path)
{
    FILE *f = path ? fopen(path, "re") : NULL;
    char line[512];
    bool silent = false;
    while (f && !silent && fgets(line, sizeof(line), f))
        silent = strcmp(line, "silent\n") == 0;
    if (f)
        (void)fclose(f);
    return silent;
}

static int read_all(struct gpu gpus[GPUS_MAX])
{
    const char *path = getenv("TITAN_FAKE_NVML");
    while (is_silent(path))
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL); /* timing: a device */
    FILE *f = path ? fopen(path, "re") : NULL;
    char line[512];
    int n = 0;
    init_code = f ? 0 : 9; /* the driver is not loaded */
    while (f && n < GPUS_MAX && fgets(line, sizeof(line), f)) {
        struct gpu *g = &gpus[n];
        *g = (struct gpu){0};
        if (sscanf(line, "init %d", &init_code) == 1)
            continue;
        n += sscanf(line, "%95s %95s %llu %llu %u %lld %d %llu:%llu", g->uuid, g->name, &g->total, &g->used,
                    &g->celsius, &g->ecc, &g->code, &g->event, &g->xid) == 9;
    }
    if (f)
        (void)fclose(f);
    return n;
}

static nvmlDevice_t handle_of(int i)
{
    return (nvmlDevice_t)(uintptr_t)(i + 1); // NOLINT: never followed
}

static nvmlReturn_t gpu_of(nvmlDevice_t device, struct gpu *ret)
{
    struct gpu gpus[GPUS_MAX];
    const int n = read_all(gpus), i = (int)(uintptr_t)device - 1;
    if (i < 0 || i >= n)
        return NVML_ERROR_NOT_FOUND;
    *ret = gpus[i];
    return ret->code;
}

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *ret);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *ret);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *ret);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *ret, unsigned size);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *ret, unsigned size);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *ret);
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *ret);
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *ret);
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *ret);
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set);
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *ret, unsigned timeout_ms);
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set);
const char *nvmlErrorString(nvmlReturn_t code);

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    struct gpu gpus[GPUS_MAX];
    (void)read_all(gpus);
    return init_code;
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *ret)
{
    struct gpu gpus[GPUS_MAX];
    *ret = (unsigned)read_all(gpus);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *ret)
{
    struct gpu gpus[GPUS_MAX];
    if ((int)index >= read_all(gpus))
        return NVML_ERROR_NOT_FOUND;
    *ret = handle_of((int)index);
    return gpus[index].code;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *ret)
{
    struct gpu gpus[GPUS_MAX];
    const int n = read_all(gpus);
    for (int i = 0; i < n; i++)
        if (!strcmp(gpus[i].uuid, uuid)) {
            *ret = handle_of(i);
            return gpus[i].code;
        }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *ret, unsigned size)
{
    struct gpu g;
    const nvmlReturn_t code = gpu_of(device, &g);
    if (code == NVML_SUCCESS)
        (void)snprintf(ret, size, "%s", g.name);
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *ret, unsigned size)
{
    struct gpu g;
    const nvmlReturn_t code = gpu_of(device, &g);
    if (code == NVML_SUCCESS)
        (void)snprintf(ret, size, "%s", g.uuid);
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *ret)
{
    struct gpu g;
    const nvmlReturn_t code = gpu_of(device, &g);
    if (code == NVML_SUCCESS)
        *ret = (nvmlMemory_t){.total = g.total << 20, .used = g.used << 20, .free = (g.total - g.used) << 20};
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *ret)
{
    struct gpu g;
    const nvmlReturn_t code = gpu_of(device, &g);
    if (code == NVML_SUCCESS)
        *ret = g.celsius;
    return sensor == NVML_TEMPERATURE_GPU ? code : 2;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *ret)
{
    struct gpu g;
    const nvmlReturn_t code = gpu_of(device, &g);
    if (type != NVML_MEMORY_ERROR_TYPE_UNCORRECTED || counter != NVML_VOLATILE_ECC)
        return 2;
    if (code == NVML_SUCCESS && g.ecc < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS)
        *ret = (unsigned long long)g.ecc;
    return code;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *ret)
{
    *ret = calloc(1, sizeof(**ret));
    return *ret ? NVML_SUCCESS : 20;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    struct gpu g;
    const int i = (int)(uintptr_t)device - 1;
    const nvmlReturn_t code = gpu_of(device, &g);
    if (code != NVML_SUCCESS || types != (nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError))
        return code ? code : 2;
    set->registered[i] = true;
    set->seen[i] = g.event;
    set->ecc[i] = g.ecc;
    return NVML_SUCCESS;
}

/* What has happened to one of them; NVML_ERROR_TIMEOUT: nothing. */
static nvmlReturn_t event_of(nvmlEventSet_t set, nvmlEventData_t *ret)
{
    struct gpu gpus[GPUS_MAX];
    const int n = read_all(gpus);
    for (int i = 0; i < n; i++) {
        const struct gpu *g = &gpus[i];
        if (!set->registered[i])
            continue;
        if (g->code == NVML_ERROR_GPU_IS_LOST)
            return g->code;
        *ret = (nvmlEventData_t){.device = handle_of(i), .gpuInstanceId = ~0u, .computeInstanceId = ~0u};
        if (g->event != set->seen[i]) {
            set->seen[i] = g->event;
            ret->eventType = nvmlEventTypeXidCriticalError;
            ret->eventData = g->xid;
            return NVML_SUCCESS;
        }
        if (g->ecc != set->ecc[i]) {
            set->ecc[i] = g->ecc;
            ret->eventType = nvmlEventTypeDoubleBitEccError;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_TIMEOUT;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *ret, unsigned timeout_ms)
{
    nvmlReturn_t code = NVML_ERROR_TIMEOUT;
    for (unsigned ms = 0; ms < timeout_ms && (code = event_of(set, ret)) == NVML_ERROR_TIMEOUT; ms += 5)
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL); /* timing: a device */
    return code;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    free(set);
    return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case 9:
        return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED:
        return "GPU requires reset";
    default:
        return "Unknown Error";
    }
}
