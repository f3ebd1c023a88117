/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/common/ha_members.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mac.h"

bool ha_name_ok(const char *name)
{
    const size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return len > 0 && len < HA_NAME_MAX && !name[len];
}

/* HOST:PORT, with a port that another member can connect to? */
static bool address_ok(const char *address)
{
    const char *colon = strrchr(address, ':');
    const size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
    const unsigned long port = digits > 0 && digits <= 5 ? strtoul(colon + 1, NULL, 10) : 0;
    return colon && colon > address && !colon[1 + digits] && port > 0 && port <= 65535 && address[0] != '=' &&
           strncmp(address, "unix:", 5) != 0;
}

titan_status ha_members_add(struct ha_members *m, const char *text, struct titan_error *err)
{
    const char *equals = strchr(text, '=');
    char name[HA_NAME_MAX];
    if (!equals || equals == text || (size_t)(equals - text) >= sizeof(name) || !address_ok(equals + 1))
        return titan_fail(err, TITAN_EINVAL, "'%.100s' is not a member: write NAME=HOST:PORT", text);
    (void)snprintf(name, sizeof(name), "%.*s", (int)(equals - text), text);
    if (!ha_name_ok(name))
        return titan_fail(err, TITAN_EINVAL, "'%s' is not a name: letters, digits, '.', '_' and '-'", name);
    if (strlen(equals + 1) >= HA_ADDRESS_MAX)
        return titan_fail(err, TITAN_EINVAL, "the address of member '%s' is too long", name);
    if (m->n == HA_MEMBERS_MAX)
        return titan_fail(err, TITAN_EINVAL, "more than %d members", HA_MEMBERS_MAX);
    int at = m->n;
    for (int i = m->n - 1; i >= 0; i--) {
        const int order = strcmp(name, m->at[i].name);
        if (order == 0)
            return titan_fail(err, TITAN_EINVAL, "the name '%s' is given twice", name);
        if (strcmp(equals + 1, m->at[i].address) == 0)
            return titan_fail(err, TITAN_EINVAL, "the members '%s' and '%s' have one address", m->at[i].name, name);
        if (order < 0)
            at = i;
    }
    memmove(m->at + at + 1, m->at + at, (size_t)(m->n - at) * sizeof(m->at[0]));
    memset(&m->at[at], 0, sizeof(m->at[at]));
    (void)snprintf(m->at[at].name, HA_NAME_MAX, "%s", name);
    (void)snprintf(m->at[at].address, HA_ADDRESS_MAX, "%s", equals + 1);
    m->n++;
    return TITAN_OK;
}

int ha_members_find(const struct ha_members *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->at[i].name, name) == 0)
            return i;
    return -1;
}

uint64_t ha_members_hash(const struct ha_members *m)
{
    struct sha256 s;
    uint8_t hash[MAC_BYTES];
    uint64_t ret;
    sha256_begin(&s);
    for (int i = 0; i < m->n; i++) { /* with their NULs, so that no two lists give the same bytes */
        sha256_add(&s, m->at[i].name, strlen(m->at[i].name) + 1);
        sha256_add(&s, m->at[i].address, strlen(m->at[i].address) + 1);
    }
    sha256_end(&s, hash);
    memcpy(&ret, hash, sizeof(ret));
    return le64toh(ret);
}
