/* SPDX-License-Identifier: Apache-2.0 */
/* titand's configuration file over every role's defaults. */
#include "tests/fuzz/common.h"

#include "daemon/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[128];
    struct titan_error err = {0};
    struct daemon_config c = {.role = size % 3 == 0 ? ROLE_DEV : size % 3 == 1 ? ROLE_AGENT : ROLE_COORDINATOR};
    (void)snprintf(path, sizeof(path), "%s/titand.toml", fuzz_folder());
    fuzz_file(path, data, size);
    titan_status status = config_load(&c, path, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    fuzz_assert(c.n_listen >= 0 && c.n_listen <= CONFIG_LISTEN_MAX);
    return 0;
}
