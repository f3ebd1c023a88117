/* SPDX-License-Identifier: Apache-2.0 */
/* ha_members.h - the coordinators of one cluster, as [ha] lists them. */
#ifndef TITAN_DAEMON_COMMON_HA_MEMBERS_H
#define TITAN_DAEMON_COMMON_HA_MEMBERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum {
    HA_MEMBERS_MAX = 7,
    HA_NAME_MAX = 64,     /* with its NUL */
    HA_ADDRESS_MAX = 256, /* with its NUL */
};

/* Letters, digits, '.', '_', '-'? */
bool ha_name_ok(const char *name);

/* The members of the cluster, sorted by name. */
struct ha_members {
    struct {
        char name[HA_NAME_MAX], address[HA_ADDRESS_MAX]; /* "a", "a.example:7073" */
    } at[HA_MEMBERS_MAX];
    int n;
};
/* Adds "name=HOST:PORT". TITAN_EINVAL: not of this form, a name or an address given twice, or too many. */
titan_status ha_members_add(struct ha_members *members, const char *text, struct titan_error *err) TITAN_MUST_USE;
/* The position of a name; -1: no member has it. */
int ha_members_find(const struct ha_members *members, const char *name);
/* Equal for equal lists in any order. */
uint64_t ha_members_hash(const struct ha_members *members);

#endif
