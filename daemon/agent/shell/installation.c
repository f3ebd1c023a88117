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

/* Empty if the machine has no id, as in most containers. */
static void read_machine(char ret[MACHINE_MAX + 1])
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    ret[0] = '\0';
    if (file_read("/etc/machine-id", MACHINE_MAX, &text, NULL) == TITAN_OK && text.len)
        (void)snprintf(ret, MACHINE_MAX + 1, "%.*s", (int)strspn(text.data, "0123456789abcdef"), text.data);
}

/* One line: "NUMBER INODE MACHINE". */
static void print(const uint8_t number[INSTALLATION_BYTES], uint64_t inode, const char *machine, char out[TEXT_MAX])
{
    int at = 0;
    for (size_t i = 0; i < INSTALLATION_BYTES; i++)
        at += snprintf(out + at, (size_t)(TEXT_MAX - at), "%02x", number[i]);
    (void)snprintf(out + at, (size_t)(TEXT_MAX - at), " %" PRIu64 " %s\n", inode, machine);
}

static bool parse(const struct buf *text, uint8_t number[INSTALLATION_BYTES])
{
    for (size_t i = 0; i < INSTALLATION_BYTES; i++) {
        unsigned byte;
        if (text->len < 2 * INSTALLATION_BYTES || sscanf(text->data + 2 * i, "%2x", &byte) != 1)
            return false;
        number[i] = (uint8_t)byte;
    }
    return true;
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
    read_machine(machine);
    if (file_read(path, TEXT_MAX, &text, NULL) == TITAN_OK && parse(&text, ret)) {
        print(ret, (uint64_t)st.st_ino, machine, now);
        if (strcmp(text.data, now) == 0)
            return TITAN_OK;
    }
    if (getrandom(ret, INSTALLATION_BYTES, 0) != INSTALLATION_BYTES)
        return titan_fail_errno(err, "no random numbers");
    print(ret, (uint64_t)st.st_ino, machine, now);
    return file_replace(path, now, strlen(now), err);
}
