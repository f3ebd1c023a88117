/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/auth/acl.h"

#include <endian.h>
#include <string.h>

#include "base/error.h"

/* The kernel's format: a version and entries, little-endian. */
#define VERSION 2
enum { OWNER = 0x01, USER = 0x02, OWN_GROUP = 0x04, GROUP = 0x08, MASK = 0x10, OTHERS = 0x20 };
struct entry {
    uint16_t tag, bits;
    uint32_t id;
};

bool acl_in_group(const struct acl_user *u, gid_t gid)
{
    titan_assert(u->n_groups >= 0);
    for (int i = 0; i < u->n_groups; i++)
        if (u->groups[i] == gid)
            return true;
    return false;
}

static struct entry entry_at(const void *list, size_t i)
{
    struct entry e;
    memcpy(&e, (const char *)list + sizeof(uint32_t) + i * sizeof(e), sizeof(e));
    return (struct entry){le16toh(e.tag), le16toh(e.bits), le32toh(e.id)};
}

/* The mask limits all entries except the owner's and others'. */
bool acl_permits(const struct acl_user *u, const void *list, size_t len, const struct stat *st, mode_t bits)
{
    titan_assert(bits <= 7);
    uint32_t version;
    mode_t mask = 7;
    bool member = false, granted = false;
    if (len < sizeof(version) || (len - sizeof(version)) % sizeof(struct entry))
        return false;
    memcpy(&version, list, sizeof(version));
    const size_t n = (len - sizeof(version)) / sizeof(struct entry);
    if (le32toh(version) != VERSION)
        return false;

    /* Would the kernel accept this list? Entries are in the order of their tags. Owner, group and others appear once. A
     * mask is there if a user or group is named. */
    unsigned last = 0, seen = 0;
    for (size_t i = 0; i < n; i++) {
        const struct entry e = entry_at(list, i);
        const bool named = e.tag == USER || e.tag == GROUP;
        if (e.bits > 7 || e.tag < last || (e.tag == last && !named) || e.tag > OTHERS || (e.tag & (e.tag - 1)))
            return false;
        last = e.tag;
        seen |= e.tag;
    }
    if (!(seen & OWNER) || !(seen & OWN_GROUP) || !(seen & OTHERS) || (!(seen & MASK) && (seen & (USER | GROUP))))
        return false;

    for (size_t i = 0; i < n; i++)
        if (entry_at(list, i).tag == MASK)
            mask = entry_at(list, i).bits;
    for (size_t i = 0; i < n; i++) {
        const struct entry e = entry_at(list, i);
        const mode_t allowed = e.bits & mask;
        if (e.tag == USER && e.id == (uint32_t)u->uid)
            return (allowed & bits) == bits;
        if ((e.tag == OWN_GROUP && acl_in_group(u, st->st_gid)) || (e.tag == GROUP && acl_in_group(u, e.id))) {
            member = true;
            granted |= (allowed & bits) == bits;
        }
    }
    return member ? granted : (st->st_mode & bits) == bits;
}
