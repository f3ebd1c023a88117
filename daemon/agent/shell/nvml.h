/* SPDX-License-Identifier: Apache-2.0 */
/* nvml.h - the functions of NVIDIA's management library that the agent calls, loaded at run time. Types, values and
 * names follow the documented C ABI (NVML API Reference Guide, nvml.h of driver 450 and later). Each function can block
 * for as long as the driver does. */
#ifndef TITAN_DAEMON_AGENT_SHELL_NVML_H
#define TITAN_DAEMON_AGENT_SHELL_NVML_H

#include "base/error.h"

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;
typedef int nvmlReturn_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
};
enum { NVML_TEMPERATURE_GPU = 0, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1, NVML_VOLATILE_ECC = 0 };
#define nvmlEventTypeDoubleBitEccError 2ULL
#define nvmlEventTypeXidCriticalError 8ULL
#define NVML_UUID_SIZE 96
#define NVML_NAME_SIZE 96

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;
typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData; /* the Xid of an nvmlEventTypeXidCriticalError; 999 = unknown */
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

struct nvml {
    void *library;
    nvmlReturn_t (*init)(void);
    nvmlReturn_t (*shutdown)(void);
    nvmlReturn_t (*count)(unsigned *ret);
    nvmlReturn_t (*by_index)(unsigned index, nvmlDevice_t *ret);
    nvmlReturn_t (*by_uuid)(const char *uuid, nvmlDevice_t *ret);
    nvmlReturn_t (*name)(nvmlDevice_t device, char *ret, unsigned size);
    nvmlReturn_t (*uuid)(nvmlDevice_t device, char *ret, unsigned size);
    nvmlReturn_t (*memory)(nvmlDevice_t device, nvmlMemory_t *ret);
    nvmlReturn_t (*temperature)(nvmlDevice_t device, int sensor, unsigned *ret);
    nvmlReturn_t (*ecc_errors)(nvmlDevice_t device, int type, int counter, unsigned long long *ret);
    nvmlReturn_t (*events_create)(nvmlEventSet_t *ret);
    nvmlReturn_t (*events_register)(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set);
    nvmlReturn_t (*events_wait)(nvmlEventSet_t set, nvmlEventData_t *ret, unsigned timeout_ms);
    nvmlReturn_t (*events_free)(nvmlEventSet_t set);
    const char *(*error_string)(nvmlReturn_t code);
};

/* path NULL or "": libnvidia-ml.so.1 from the loader's path. TITAN_ENOTFOUND: no library, or a function is missing. The
 * library stays loaded. */
titan_status nvml_load(const char *path, struct nvml *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
