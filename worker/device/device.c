/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - finding, loading and opening a device plug-in. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "worker/device/device.h"

enum { PATH_MAX_BYTES = 4096 };

/* Path of libtitan-NAME.so; TITAN_ENOTFOUND names the places looked at. */
static titan_status plugin_find(const char *name, char path[PATH_MAX_BYTES], struct titan_error *err)
{
    char exe[PATH_MAX_BYTES], library[PATH_MAX_BYTES] = "", checked[PATH_MAX_BYTES] = "";
    const ssize_t bytes = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[MAX(bytes, 0)] = '\0';
    char *const slash = strrchr(exe, '/');
    if (slash) {
        *slash = '\0';
        if (snprintf(library, sizeof library, "%s/../lib/titan", exe) >= PATH_MAX_BYTES)
            library[0] = '\0';
    }
    /* the program's folder, the library folder beside it, and the folder that the user names */
    const char *const folders[] = {slash ? exe : "", library, getenv("TITAN_PLUGIN_DIR")};
    for (size_t i = 0; i < ARRAY_SIZE(folders); i++) {
        const char *const folder = folders[i];
        if (!folder || !*folder || snprintf(path, PATH_MAX_BYTES, "%s/libtitan-%s.so", folder, name) >= PATH_MAX_BYTES)
            continue;
        if (access(path, R_OK) == 0)
            return TITAN_OK;
        size_t used = strlen(checked);
        int n = snprintf(checked + used, sizeof(checked) - used, "%s%s", used ? ", " : "", folder);
        if (n < 0 || (size_t)n >= sizeof(checked) - used)
            checked[used] = '\0';
    }
    titan_fail(err, TITAN_ENOTFOUND, "libtitan-%s.so is not in %s", name, checked);
    titan_error_hint(err, "build it (make, make cuda) or set TITAN_PLUGIN_DIR to its folder");
    return TITAN_ENOTFOUND;
}

/* Reports why a plug-in cannot be loaded. If a library is too old and lacks a function that the plug-in needs, the
 * plug-in's own reason is reported, otherwise the loader's message. */
static titan_status not_loaded(const char *name, const char *path, struct titan_error *err)
{
    titan_fail(err, TITAN_EUNSUPPORTED, "device '%s' cannot be loaded: %s", name, dlerror());
    void *const library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    titan_device_plugin_fn fn = NULL;
    if (library)
        *(void **)&fn = dlsym(library, "titan_device_plugin");
    const struct device_plugin *const plugin = fn ? fn() : NULL;
    const bool known = plugin && plugin->abi == TITAN_DEVICE_ABI && plugin->unusable;
    const char *const reason = known ? plugin->unusable() : NULL;
    if (reason)
        titan_fail(err, TITAN_EUNSUPPORTED, "device '%s' cannot be used here: %s", name, reason);
    if (library)
        dlclose(library);
    return TITAN_EUNSUPPORTED;
}

/* Loads and checks the plug-in, without opening a device. */
static titan_status plugin_load(const char *name, struct device_handle *h, struct titan_error *err)
{
    titan_assert(name[0] && !h->library);
    char path[PATH_MAX_BYTES];
    TRY(plugin_find(name, path, err));
    /* Sets how a plug-in's threads wait for each other; libgomp reads this when it is loaded. Workers share cores, so a
     * waiting thread must sleep soon. But a wake-up at each end of an operation is slow on a virtual machine. So a
     * thread spins 1,000 times first: 20 us (AMD) to 45 us (Intel), computed from the processor's pause. */
    if (!getenv("OMP_WAIT_POLICY")) {
        (void)setenv("OMP_WAIT_POLICY", "passive", 0);
        (void)setenv("GOMP_SPINCOUNT", "1000", 0);
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return not_loaded(name, path, err);
    titan_device_plugin_fn fn;
    *(void **)&fn = dlsym(library, "titan_device_plugin");
    const struct device_plugin *plugin = fn ? fn() : NULL;
    if (!plugin || plugin->abi != TITAN_DEVICE_ABI) {
        titan_fail(err, TITAN_EVERSION, "'%s' is not a device plug-in of this version (%u, expected %u)", path,
                   plugin ? plugin->abi : 0, TITAN_DEVICE_ABI);
        dlclose(library);
        return TITAN_EVERSION;
    }
    const char *reason = plugin->unusable ? plugin->unusable() : NULL;
    if (reason) {
        titan_fail(err, TITAN_EUNSUPPORTED, "device '%s' cannot be used here: %s", name, reason);
        dlclose(library);
        return TITAN_EUNSUPPORTED;
    }
    h->library = library;
    h->plugin = plugin;
    h->ops = plugin->ops;
    return TITAN_OK;
}

static titan_status open_named(const char *name, const struct device_options *options, struct device_handle *ret,
                               struct titan_error *err)
{
    struct device_handle h = {0};
    TRY(plugin_load(name, &h, err));
    titan_assert(h.plugin && h.ops && h.ops->open);
    titan_status status = h.ops->open(options, &h.dev, err);
    if (status != TITAN_OK) {
        dlclose(h.library);
        return status;
    }
    h.ops->info(h.dev, &h.info);
    *ret = h;
    return TITAN_OK;
}

titan_status device_open(const char *name, const struct device_options *options, struct device_handle *ret,
                         struct titan_error *err)
{
    titan_assert(name && ret);
    struct device_options defaults = {0};
    if (!options)
        options = &defaults;
    if (strcmp(name, "cpu") != 0 && strcmp(name, "cuda") != 0 && strcmp(name, "auto") != 0)
        return titan_fail(err, TITAN_EINVAL, "device '%s' is unknown; there are cpu, cuda and auto", name);
    if (strcmp(name, "auto") == 0) {
        /* Without a plug-in, a driver or a GPU, "auto" means the CPU. A GPU that exists but fails to open is an
         * error. */
        struct device_handle probe = {0};
        /* Loading the CUDA libraries takes at least a tenth of a second. Without a driver they are not loaded. */
        void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
        if (driver)
            (void)dlclose(driver);
        if (!driver || plugin_load("cuda", &probe, NULL) != TITAN_OK)
            return open_named("cpu", options, ret, err);
        titan_assert(probe.library);
        dlclose(probe.library);
        return open_named("cuda", options, ret, err);
    }
    return open_named(name, options, ret, err);
}

void device_close(struct device_handle *handle)
{
    if (!handle || !handle->dev)
        return;
    handle->ops->close(handle->dev);
    /* The library stays loaded: OpenMP and the CUDA runtime have threads and exit handlers inside it. */
    memset(handle, 0, sizeof(*handle));
}

#ifdef __SANITIZE_ADDRESS__
/* The leak checker follows thread-local blocks that it saw being allocated. oneDNN's libraries are loaded late: the
 * checker takes their blocks for something else and crashes. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "intercept_tls_get_addr=0";
}
#endif
