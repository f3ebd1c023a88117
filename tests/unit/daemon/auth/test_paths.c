/* SPDX-License-Identifier: Apache-2.0 */
/* What a run file may name: by the modes along the way, links resolved, or below a root. */
#include <endian.h>
#include <pwd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "daemon/auth/paths.h"

#define NOBODY 65534 /* a user of every Debian */

static const char *const NONE[] = {NULL};
static char dir[64]; /* 0755, below /tmp */

static const char *in(const char *name)
{
    static char path[4][256];
    static unsigned n;
    char *at = path[n++ % 4];
    (void)snprintf(at, sizeof(path[0]), "%s/%s", dir, name);
    return at;
}

static void make_dir(const char *name, mode_t mode)
{
    assert_int_equal(mkdir(in(name), 0700), 0);
    assert_int_equal(chmod(in(name), mode), 0);
}

static void make_file(const char *name, mode_t mode)
{
    FILE *f = fopen(in(name), "we");
    assert_non_null(f);
    (void)fputs("0123456789", f);
    (void)fclose(f);
    assert_int_equal(chmod(in(name), mode), 0);
}

static int setup(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof(dir), "/tmp/titan-paths-XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chmod(dir, 0755), 0);
    make_dir("open", 0755);
    make_file("open/file", 0644);
    make_dir("closed", 0700);
    make_file("closed/file", 0644);
    make_file("secret", 0600);
    make_dir("mixed", 0755);
    make_file("mixed/file", 0644);
    make_file("mixed/secret", 0600);
    make_dir("drop", 0777);
    assert_int_equal(symlink(in("secret"), in("drop/link")), 0);
    assert_int_equal(symlink("../closed/file", in("drop/relative")), 0);
    assert_int_equal(symlink("../open", in("drop/good")), 0);
    assert_int_equal(symlink("loop", in("drop/loop")), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return dir_remove(dir, NULL) == TITAN_OK ? 0 : -1;
}

static const struct auth_user stranger = {.uid = 54321, .gid = 54321, .actor = "uid:54321", .name = "uid:54321"};
static const struct auth_user nobody_here = {
    .uid = JOB_NO_ID, .gid = JOB_NO_ID, .actor = "user/alice", .name = "alice"};

static titan_status reads(const struct paths_options *o, const struct auth_user *u, const char *path, char *ret)
{
    static struct recipe r;
    struct titan_error err = {0};
    recipe_init(&r);
    (void)snprintf(r.training.dataset_path, sizeof(r.training.dataset_path), "%s", path);
    titan_status status = paths_check(o, u, NONE, &r, &err);
    if (status == TITAN_EPERM) /* nothing of what is there */
        assert_true(strstr(err.msg, "cannot be read by you") && !strstr(err.msg, "No such"));
    if (ret)
        (void)strcpy(ret, r.training.dataset_path);
    if (strlen(path) < sizeof(r.model.tokenizer)) { /* another path that is read: the same rules */
        recipe_init(&r);
        (void)snprintf(r.model.tokenizer, sizeof(r.model.tokenizer), "%s", path);
        const titan_status other = paths_check(o, u, NONE, &r, NULL);
        assert_true(other == status || (other == TITAN_OK && o->checkpoints.n > 0)); /* which hold no data */
    }
    return status;
}

static titan_status writes(const struct paths_options *o, const struct auth_user *u, const char *dump, const char *path)
{
    static struct recipe r;
    recipe_init(&r);
    (void)snprintf(r.job.dump_folder, sizeof(r.job.dump_folder), "%s", dump);
    (void)snprintf(r.checkpoint.folder, sizeof(r.checkpoint.folder), "%s", path);
    return paths_check(o, u, NONE, &r, NULL);
}

static void test_reading(void **state)
{
    (void)state;
    static const struct paths_options none;
    static const char *const may[] = {"open",           "open/file",           "drop/good",
                                      "drop/good/file", "drop/../open/./file", "open//file"};
    static const char *const may_not[] = {"secret",       "closed",        "closed/file",   "mixed",
                                          "drop/link",    "drop/relative", "drop/loop",     "missing",
                                          "missing/file", "open/file/x",   "closed/../open"};
    char path[1100], expected[128];
    for (size_t i = 0; i < sizeof(may) / sizeof(*may); i++)
        if (reads(&none, &stranger, in(may[i]), path) != TITAN_OK)
            fail_msg("%s was refused", may[i]);
    for (size_t i = 0; i < sizeof(may_not) / sizeof(*may_not); i++)
        if (reads(&none, &stranger, in(may_not[i]), NULL) != TITAN_EPERM)
            fail_msg("%s was let through", may_not[i]);
    assert_int_equal(reads(&none, &stranger, "open", NULL), TITAN_EPERM); /* from where? */
    assert_int_equal(reads(&none, &nobody_here, in("open/file"), NULL), TITAN_EPERM);
    /* A link is replaced by what it leads to. */
    assert_int_equal(reads(&none, &stranger, in("drop/good/file"), path), TITAN_OK);
    (void)snprintf(expected, sizeof(expected), "%s/open/file", dir);
    assert_string_equal(path, expected);
    /* The owner of a file may what the owner may, not what others may. */
    struct auth_user owner = stranger;
    owner.uid = geteuid() ? (int64_t)geteuid() : 54321;
    if (geteuid() == 0)
        assert_int_equal(chown(in("secret"), 54321, 0), 0);
    assert_int_equal(reads(&none, &owner, in("secret"), NULL), TITAN_OK);
    assert_int_equal(chmod(in("secret"), 0044), 0);
    assert_int_equal(reads(&none, &owner, in("secret"), NULL), TITAN_EPERM);
    assert_int_equal(chmod(in("secret"), 0600), 0);
    if (geteuid() == 0)
        assert_int_equal(chown(in("secret"), 0, 0), 0);
}

/* A pattern of data: all that it could match lies in a folder that the caller may read whole. */
static void test_patterns(void **state)
{
    (void)state;
    static struct recipe r;
    static const struct paths_options none;
    static const struct {
        const char *path, *as; /* as NULL: refused */
    } rows[] = {{"open/*", "open/*"},
                {"drop/good/f*", "open/f*"},
                {"open/{file,other}.{a,b}", "open/{file,other}.{a,b}"},
                {"open/[f]ile", "open/[f]ile"},
                {"drop/l*", "drop/l*"}, /* links, which the worker does not follow */
                {"mixed/*", NULL},
                {"mixed/f*", NULL},
                {"closed/*", NULL},
                {"*", NULL},
                {"open/*/../secret", NULL},
                {"open/{..,x}/secret", NULL},
                {"open/{.,x}{.,y}/secret", NULL},
                {"open/{,x}./../secret", NULL},
                {"open/.*/secret", NULL},
                {"open/{x/,y}.?/secret", NULL},
                {"open/\\.?/*", NULL},
                {"drop/odd", NULL}};
    char expected[1100];
    make_dir("o[dp]*", 0755);
    assert_int_equal(symlink("../o[dp]*", in("drop/odd")), 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        recipe_init(&r);
        (void)snprintf(r.training.dataset_path, sizeof(r.training.dataset_path), "%s", in(rows[i].path));
        const titan_status status = paths_check(&none, &stranger, NONE, &r, NULL);
        if (status != (rows[i].as ? TITAN_OK : TITAN_EPERM))
            fail_msg("%s: %d", rows[i].path, (int)status);
        if (!rows[i].as)
            continue;
        (void)snprintf(expected, sizeof(expected), "%s/%s", dir, rows[i].as);
        assert_string_equal(r.training.dataset_path, expected);
    }
}

static void test_writing(void **state)
{
    (void)state;
    static const struct paths_options none;
    assert_int_equal(writes(&none, &stranger, "", in("drop/new/deeper")), TITAN_OK);
    assert_int_equal(writes(&none, &stranger, "", in("drop")), TITAN_OK);
    assert_int_equal(writes(&none, &stranger, "", in("open")), TITAN_EPERM);
    assert_int_equal(writes(&none, &stranger, "", in("open/new")), TITAN_EPERM);
    assert_int_equal(writes(&none, &stranger, "", in("drop/good/new")), TITAN_EPERM);
    assert_int_equal(writes(&none, &stranger, "", in("drop/new/../../open")), TITAN_EPERM);
    assert_int_equal(writes(&none, &stranger, "", "/etc/titan"), TITAN_EPERM);
    assert_int_equal(writes(&none, &stranger, in("open"), "checkpoint"), TITAN_EPERM);
    assert_int_equal(writes(&none, &stranger, in("drop"), "checkpoint"), TITAN_OK);
    assert_int_equal(writes(&none, &stranger, in("drop"), "good/new"), TITAN_EPERM);
    /* Of the job's own folder: inside it. */
    assert_int_equal(writes(&none, &stranger, "", "checkpoint"), TITAN_OK);
    assert_int_equal(writes(&none, &nobody_here, "", "checkpoint/a..b"), TITAN_OK);
    assert_int_equal(writes(&none, &stranger, "", "a/../../.."), TITAN_EPERM);
    assert_int_equal(writes(&none, &stranger, "", ".."), TITAN_EPERM);
}

struct entry {
    uint16_t tag, bits;
    uint32_t id;
};

/* acl(5): a named user, a named group, the file's group, the mask; false: this file system has none. */
static bool set_acl(const char *name, struct entry who, uint16_t group, uint16_t mask, uint16_t others)
{
    struct {
        uint32_t version;
        struct entry e[6];
    } acl = {.version = htole32(2)};
    struct entry e[] = {
        {1, 7, UINT32_MAX}, {0x04, group, UINT32_MAX}, {0x10, mask, UINT32_MAX}, {0x20, others, UINT32_MAX}};
    size_t n = 0;
    acl.e[n++] = e[0];
    if (who.tag == 2)
        acl.e[n++] = who;
    acl.e[n++] = e[1];
    if (who.tag == 8)
        acl.e[n++] = who;
    acl.e[n++] = e[2];
    acl.e[n++] = e[3];
    for (size_t i = 0; i < n; i++)
        acl.e[i] = (struct entry){htole16(acl.e[i].tag), htole16(acl.e[i].bits), htole32(acl.e[i].id)};
    return setxattr(in(name), "system.posix_acl_access", &acl, sizeof(acl.version) + n * sizeof(acl.e[0]), 0) == 0;
}

static void test_access_lists(void **state)
{
    (void)state;
    static const struct paths_options none;
    const struct entry user = {2, 4, 54321}, refused = {2, 0, 54321}, group = {8, 4, 54321}, other = {2, 7, 99};
    make_dir("acl", 0755);
    make_file("acl/file", 0600);
    if (!set_acl("acl/file", user, 0, 7, 0))
        skip();
    assert_int_equal(reads(&none, &stranger, in("acl/file"), NULL), TITAN_OK); /* named, whatever the mode says */
    assert_true(set_acl("acl/file", user, 7, 3, 7));
    assert_int_equal(reads(&none, &stranger, in("acl/file"), NULL), TITAN_EPERM); /* masked */
    assert_true(set_acl("acl/file", refused, 7, 7, 7));
    assert_int_equal(reads(&none, &stranger, in("acl/file"), NULL), TITAN_EPERM); /* all others may */
    assert_true(set_acl("acl/file", group, 0, 7, 0));
    assert_int_equal(reads(&none, &stranger, in("acl/file"), NULL), TITAN_OK);
    assert_true(set_acl("acl/file", (struct entry){8, 0, 54321}, 7, 7, 7));
    assert_int_equal(reads(&none, &stranger, in("acl/file"), NULL), TITAN_EPERM);
    assert_true(set_acl("acl/file", other, 0, 7, 0)); /* the mode shows the mask as the group's bits */
    assert_int_equal(reads(&none, &stranger, in("acl/file"), NULL), TITAN_EPERM);
    assert_true(set_acl("acl/file", other, 0, 7, 4));
    assert_int_equal(reads(&none, &stranger, in("acl/file"), NULL), TITAN_OK);
    assert_true(set_acl("acl", refused, 7, 7, 7)); /* the way there */
    assert_int_equal(reads(&none, &stranger, in("acl/file"), NULL), TITAN_EPERM);
    assert_int_equal(writes(&none, &stranger, "", in("acl/new")), TITAN_EPERM);
    assert_true(set_acl("acl", (struct entry){2, 7, 54321}, 0, 7, 0));
    assert_int_equal(writes(&none, &stranger, "", in("acl/new")), TITAN_OK);
}

/* A user has the groups that the machine knows for it, whatever group it came with; a user that the machine does not
 * know has the latter alone. */
static void test_groups(void **state)
{
    (void)state;
    static const struct paths_options none;
    const struct passwd *known = getpwuid(NOBODY);
    if (geteuid() != 0 || !known)
        skip();
    const int64_t group = known->pw_gid;
    const struct auth_user without = {.uid = NOBODY, .gid = JOB_NO_ID, .actor = "uid", .name = "uid"};
    const struct auth_user with_other = {.uid = NOBODY, .gid = stranger.gid, .actor = "uid", .name = "uid"};
    make_dir("groups", 0755);
    make_file("groups/of-machine", 0640);
    make_file("groups/of-caller", 0640);
    assert_int_equal(chown(in("groups/of-machine"), 0, (gid_t)group), 0);
    assert_int_equal(chown(in("groups/of-caller"), 0, (gid_t)stranger.gid), 0);
    assert_int_equal(reads(&none, &without, in("groups/of-machine"), NULL), TITAN_OK);
    assert_int_equal(reads(&none, &with_other, in("groups/of-machine"), NULL), TITAN_OK);
    assert_int_equal(reads(&none, &with_other, in("groups/of-caller"), NULL), TITAN_EPERM);
    assert_int_equal(reads(&none, &stranger, in("groups/of-caller"), NULL), TITAN_OK);
    assert_int_equal(reads(&none, &stranger, in("groups/of-machine"), NULL), TITAN_EPERM);
}

static void test_roots(void **state)
{
    (void)state;
    static struct paths_options o;
    static const struct paths_options none;
    assert_int_equal(paths_add_root(&o.data, in("closed"), NULL), TITAN_OK);
    assert_int_equal(paths_add_root(&o.checkpoints, in("open"), NULL), TITAN_OK);
    assert_int_equal(paths_add_root(&o.data, "relative", NULL), TITAN_EINVAL);
    assert_int_equal(paths_add_root(&o.data, in("missing"), NULL), TITAN_EINVAL);
    assert_int_equal(reads(&o, &nobody_here, in("closed/file"), NULL), TITAN_OK);
    assert_int_equal(reads(&o, &stranger, in("closed"), NULL), TITAN_OK);
    static struct recipe r;
    assert_int_equal(reads(&o, &nobody_here, in("open/file"), NULL), TITAN_EPERM); /* no data, but to begin from */
    recipe_init(&r);
    (void)snprintf(r.checkpoint.initial_load_path, sizeof(r.checkpoint.initial_load_path), "%s", in("open/file"));
    assert_int_equal(paths_check(&o, &nobody_here, NONE, &r, NULL), TITAN_OK);
    assert_int_equal(writes(&o, &nobody_here, "", in("open")), TITAN_EPERM); /* of many */
    assert_int_equal(writes(&o, &nobody_here, in("open"), "new"), TITAN_OK);
    assert_int_equal(writes(&o, &nobody_here, "", in("open/new")), TITAN_OK);
    assert_int_equal(writes(&o, &nobody_here, "", in("closed/new")), TITAN_EPERM);
    assert_int_equal(reads(&o, &nobody_here, in("closedx"), NULL), TITAN_EPERM);
    assert_int_equal(reads(&o, &nobody_here, in("closed/../secret"), NULL), TITAN_EPERM);
    assert_int_equal(symlink("../secret", in("closed/out")), 0); /* it leaves the root */
    assert_int_equal(reads(&o, &nobody_here, in("closed/out"), NULL), TITAN_EPERM);
    /* Titan's own folders are below no root, by no way in: from above, through them, or a name that is still free. */
    make_dir("closed/state", 0700);
    make_dir("closed/state/jobs", 0700);
    make_file("closed/state/jobs/file", 0600);
    assert_int_equal(paths_add_root(&o.checkpoints, in("closed"), NULL), TITAN_OK);
    assert_int_equal(writes(&o, &nobody_here, "", in("closed/state/jobs/9")), TITAN_OK);
    assert_int_equal(paths_add_root(&o.own, in("closed/state/jobs"), NULL), TITAN_OK);
    static const char *const own[] = {"closed/state/jobs/file", "closed/state/jobs", "closed/state", "closed"};
    for (size_t i = 0; i < sizeof(own) / sizeof(*own); i++)
        if (reads(&o, &nobody_here, in(own[i]), NULL) != TITAN_EPERM)
            fail_msg("%s was let through", own[i]);
    assert_int_equal(writes(&o, &nobody_here, "", in("closed/state/jobs/9")), TITAN_EPERM);
    assert_int_equal(writes(&o, &nobody_here, "", in("closed")), TITAN_EPERM);
    assert_int_equal(writes(&o, &nobody_here, "", in("closed/state/jobsx")), TITAN_OK);
    assert_int_equal(reads(&o, &nobody_here, in("closed/file"), NULL), TITAN_OK);
    /* Admins may name anything, and it stays as it is. */
    struct auth_user admin = {.uid = 1, .roles = POLICY_BIT(POLICY_ADMIN)};
    char path[1100];
    assert_int_equal(reads(&none, &admin, in("drop/link"), path), TITAN_OK);
    assert_string_equal(path, in("drop/link"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reading),      cmocka_unit_test(test_patterns), cmocka_unit_test(test_writing),
        cmocka_unit_test(test_access_lists), cmocka_unit_test(test_groups),   cmocka_unit_test(test_roots),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
