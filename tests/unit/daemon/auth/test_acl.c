/* SPDX-License-Identifier: Apache-2.0 */
/* acl.h: what the kernel would take grants what acl(5) says, and all other bytes grant nothing. */
#include <endian.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/auth/acl.h"

enum { OWNER = 0x01, USER = 0x02, OWN_GROUP = 0x04, GROUP = 0x08, MASK = 0x10, OTHERS = 0x20, READS = 4 };

struct entry {
    uint16_t tag, bits;
    uint32_t id;
};

static const struct acl_user alice = {.uid = 7, .groups = {70}, .n_groups = 1};

/* May alice read a file with this list? extra: bytes behind it. */
static bool reads(uint32_t version, const struct entry *e, size_t n, size_t extra)
{
    const struct stat st = {.st_gid = 60, .st_mode = S_IFREG | 0604};
    unsigned char list[256] = {0};
    version = htole32(version);
    memcpy(list + 1, &version, sizeof(version)); /* unaligned */
    for (size_t i = 0; i < n; i++) {
        const struct entry le = {htole16(e[i].tag), htole16(e[i].bits), htole32(e[i].id)};
        memcpy(list + 5 + i * sizeof(le), &le, sizeof(le));
    }
    return acl_permits(&alice, list + 1, sizeof(version) + n * sizeof(*e) + extra, &st, READS);
}
#define READS_BY(...)                                                                                                  \
    reads(2, (const struct entry[]){__VA_ARGS__}, sizeof((struct entry[]){__VA_ARGS__}) / sizeof(struct entry), 0)

static void test_lists(void **state)
{
    (void)state;
    assert_true(READS_BY({OWNER, 6, 0}, {OWN_GROUP, 0, 0}, {OTHERS, 4, 0}));
    assert_true(READS_BY({OWNER, 6, 0}, {USER, 4, 7}, {OWN_GROUP, 0, 0}, {MASK, 4, 0}, {OTHERS, 4, 0}));
    assert_false(READS_BY({OWNER, 6, 0}, {USER, 0, 7}, {OWN_GROUP, 0, 0}, {MASK, 4, 0}, {OTHERS, 4, 0}));
    assert_false(READS_BY({OWNER, 6, 0}, {USER, 4, 7}, {OWN_GROUP, 0, 0}, {MASK, 3, 0}, {OTHERS, 4, 0}));
    assert_true(READS_BY({OWNER, 6, 0}, {OWN_GROUP, 0, 0}, {GROUP, 4, 70}, {MASK, 4, 0}, {OTHERS, 0, 0}));
    assert_false(READS_BY({OWNER, 6, 0}, {OWN_GROUP, 0, 0}, {GROUP, 3, 70}, {MASK, 7, 0}, {OTHERS, 4, 0}));
}

static void test_no_lists(void **state)
{
    (void)state;
    const struct entry good[] = {{OWNER, 6, 0}, {OWN_GROUP, 0, 0}, {OTHERS, 4, 0}};
    assert_true(reads(2, good, 3, 0));
    assert_false(reads(1, good, 3, 0));
    for (size_t extra = 1; extra < 8; extra++)
        assert_false(reads(2, good, 3, extra));
    for (size_t n = 0; n < 3; n++)
        assert_false(reads(2, good, n, 0)); /* cut off */
    for (size_t len = 0; len < 4; len++)
        assert_false(acl_permits(&alice, "\2\0\0\0", len, &(struct stat){.st_mode = 0604}, READS));
    assert_false(READS_BY({OWNER, 6, 0}, {USER, 4, 7}, {OWN_GROUP, 0, 0}, {OTHERS, 4, 0}));               /* no mask */
    assert_false(READS_BY({OWNER, 6, 0}, {OWN_GROUP, 0, 0}, {OTHERS, 4, 0}, {USER, 4, 7}));               /* no order */
    assert_false(READS_BY({OWNER, 6, 0}, {OWN_GROUP, 0, 0}, {OTHERS, 4, 0}, {0x40, 4, 0}));               /* no tag */
    assert_false(READS_BY({OWNER, 6, 0}, {OWN_GROUP, 0, 0}, {MASK, 4, 0}, {MASK, 7, 0}, {OTHERS, 4, 0})); /* twice */
    assert_false(READS_BY({OWNER, 6, 0}, {OWN_GROUP, 0, 0}, {OTHERS, 12, 0}));                            /* no bits */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_no_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
