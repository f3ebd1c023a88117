/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/agent/shell/installation.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"

#define TEXT_MAX 160
#define MACHINE_MAX 64

/* One line: "NUMBER INODE MACHINE". */
static void print(const uint8_t number[INSTALLATION_BYTES], uint64_t inode, const char *machine, char out[TEXT_MAX])
{
    int at = 0;
    for (size_t i = 0; i < INSTALLATION_BYTES; i++)
        at += snprintf(out + at, (size_t)(TEXT_MAX - at), "%02x", number[i]);
    (void)snprintf(out + at, (size_t)(TEXT_MAX - at), " %" PRIu64 " %s\n", inode, machine);
}

titan_status installation_read(const char *run_dir, uint8_t ret[INSTALLATION_BYTES], struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    char path[PATH_MAX], machine[MACHINE_MAX + 1], now[TEXT_MAX];
    struct stat st;
    if (snprintf(path, sizeof(path), "%s/installation", run_dir) >= (int)sizeof(path))
        return titan_fail(err, TITAN_EINVAL, "'%s' is too long", run_dir);
    if (stat(run_dir, &st) != 0)
        return titan_fail_errno(err, "'%s'", run_dir);

    /* The machine's id is empty if it has none, as in most containers. */
    _cleanup_(buf_free) struct buf id = BUF_INIT;
    machine[0] = '\0';
    if (file_read("/etc/machine-id", MACHINE_MAX, &id, NULL) == TITAN_OK && id.len)
        (void)snprintf(machine, MACHINE_MAX + 1, "%.*s", (int)strspn(id.data, "0123456789abcdef"), id.data);

    bool known = file_read(path, TEXT_MAX, &text, NULL) == TITAN_OK && text.len >= 2 * INSTALLATION_BYTES;
    for (size_t i = 0; i < INSTALLATION_BYTES && known; i++) {
        unsigned byte = 0;
        known = sscanf(text.data + 2 * i, "%2x", &byte) == 1;
        ret[i] = (uint8_t)byte;
    }
    if (known) {
        print(ret, (uint64_t)st.st_ino, machine, now);
        if (strcmp(text.data, now) == 0)
            return TITAN_OK;
    }
    if (getrandom(ret, INSTALLATION_BYTES, 0) != INSTALLATION_BYTES)
        return titan_fail_errno(err, "no random numbers");
    print(ret, (uint64_t)st.st_ino, machine, now);
    return file_replace(path, now, strlen(now), err);
}
