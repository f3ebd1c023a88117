/* SPDX-License-Identifier: Apache-2.0 */
/* A POSIX access list as a file system may say it. One that the kernel would take grants what the kernel would; what it
 * would not take grants nothing. */
#include "tests/fuzz/common.h"

#include <endian.h>

#include "daemon/auth/acl.h"

enum { OWNER = 0x01, USER = 0x02, OWN_GROUP = 0x04, GROUP = 0x08, MASK = 0x10, OTHERS = 0x20, ENTRIES = 12 };
static const uint16_t tags[] = {OWNER, USER, OWN_GROUP, GROUP, MASK, OTHERS, 0x40, 0};

struct entry {
    uint16_t tag, bits;
    uint32_t id;
};
struct list {
    uint32_t version;
    struct entry e[ENTRIES];
};

/* Those of one file: the first three kinds and others once, all in the order of their tags, a mask where it is needed.
 */
static bool sound(const struct list *l, size_t n)
{
    unsigned seen[0x21] = {0};
    for (size_t i = 0; i < n; i++) {
        if (l->e[i].tag > OTHERS || !l->e[i].tag || (l->e[i].tag & (l->e[i].tag - 1)) || l->e[i].bits > 7)
            return false;
        if (i && l->e[i].tag < l->e[i - 1].tag)
            return false;
        seen[l->e[i].tag]++;
    }
    return seen[OWNER] == 1 && seen[OWN_GROUP] == 1 && seen[OTHERS] == 1 && seen[MASK] <= 1 &&
           (seen[MASK] == 1 || (!seen[USER] && !seen[GROUP]));
}

/* As acl(5) has it, for users that are not the owner: the first user's entry, else any of the groups', else others'. */
static bool allowed(const struct list *l, size_t n, const struct acl_user *u, gid_t gid, mode_t bits)
{
    mode_t mask = 7;
    bool member = false;
    for (size_t i = 0; i < n; i++)
        mask = l->e[i].tag == MASK ? l->e[i].bits : mask;
    for (size_t i = 0; i < n; i++)
        if (l->e[i].tag == USER && l->e[i].id == (uint32_t)u->uid)
            return (l->e[i].bits & mask & bits) == bits;
    for (size_t i = 0; i < n; i++) {
        const uint32_t group = l->e[i].tag == OWN_GROUP ? gid : l->e[i].id;
        if ((l->e[i].tag != OWN_GROUP && l->e[i].tag != GROUP) || !acl_in_group(u, group))
            continue;
        if ((l->e[i].bits & mask & bits) == bits)
            return true;
        member = true;
    }
    return !member && (l->e[n - 1].bits & bits) == bits;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    const uint64_t how = fuzz_take(&in, 1);
    const struct acl_user u = {.uid = 2, .groups = {2, 3}, .n_groups = (int)(how % 3)};
    struct stat st = {.st_uid = 1, .st_gid = (gid_t)(1 + how % 2), .st_mode = S_IFREG | 0604};
    struct list plain = {.version = 2}, l = {.version = htole32(2)};
    size_t n = 0;
    bool grants[8];
    if (how & 128) { /* the bytes as they are */
        _cleanup_free_ char *bytes = fuzz_text(in.data, in.len);
        for (mode_t bits = 1; bits < 8; bits++)
            (void)acl_permits(&u, bytes, in.len, &st, bits);
        return 0;
    }
    for (; in.len > 0 && n < ENTRIES; n++) {
        const uint64_t what = fuzz_take(&in, 1);
        plain.e[n] = (struct entry){tags[what % 8], (uint16_t)(what >> 3 & 7), 1 + (uint32_t)(what >> 6)};
        if (what == 255)
            plain.e[n].bits = (uint16_t)fuzz_take(&in, 2);
        l.e[n] = (struct entry){htole16(plain.e[n].tag), htole16(plain.e[n].bits), htole32(plain.e[n].id)};
    }
    const bool good = sound(&plain, n);
    if (good)
        st.st_mode = S_IFREG | 0600 | plain.e[n - 1].bits;
    const size_t len = sizeof(l.version) + n * sizeof(l.e[0]), odd = how >> 2 & 7;
    for (mode_t bits = 1; bits < 8; bits++) {
        grants[bits] = acl_permits(&u, &l, len, &st, bits);
        fuzz_assert(grants[bits] == (good && allowed(&plain, n, &u, st.st_gid, bits)));
        fuzz_assert(!odd || n == ENTRIES || !acl_permits(&u, &l, len + odd, &st, bits));
    }
    return 0;
}
