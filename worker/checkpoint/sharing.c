/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/sharing.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <pwd.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"

#define ACCESS "system.posix_acl_access"
#define INHERITED "system.posix_acl_default"
#define NAMED_MAX 64
#define WAY_MAX 16  /* most folders between a job's folder and its checkpoints' folder */
#define DEPTH_MAX 3 /* levels: checkpoint, its folders, their files */
#define NAME_BYTES 65536

/* The users and groups that a folder is shared with. A list has users before groups, as the kernel requires. */
struct shared {
    uint32_t users[NAMED_MAX], groups[NAMED_MAX];
    size_t n_users, n_groups;
    bool all, was_all; /* shared with all users; was shared with all until now */
    bool in_job;       /* the checkpoints are in a job's folder, which titand's group may read and remove */
    uint32_t titand;   /* titand's group */
};

struct list {
    struct posix_acl_xattr_header head;
    struct posix_acl_xattr_entry entries[2 * NAMED_MAX + 5];
    size_t n;
};

/* --- users of the entries ----------------------------------------------------------------------------------------- */

static void add(uint32_t ids[NAMED_MAX], size_t *n, int64_t id)
{
    if (id >= 0 && id < UINT32_MAX && *n < NAMED_MAX)
        ids[(*n)++] = (uint32_t)id;
}

static int64_t number(const char *text)
{
    char *end;
    const long long id = strtoll(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end ? id : -1;
}

static titan_status read_entries(const char *entries, struct shared *ret, struct titan_error *err)
{
    _cleanup_free_ char *memory = malloc(NAME_BYTES);
    char entry[512];
    struct passwd user, *found_user = NULL;
    struct group group, *found = NULL;
    if (!memory)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the users that a folder is shared with");
    for (const char *e = entries; *e; e += strcspn(e, ","), e += *e == ',') {
        (void)snprintf(entry, sizeof entry, "%.*s", (int)strcspn(e, ","), e);
        if (strcmp(entry, "*") == 0)
            ret->all = true;
        else if (strncmp(entry, "user:uid:", 9) == 0)
            add(ret->users, &ret->n_users, number(entry + 9));
        else if (strncmp(entry, "user:", 5) == 0)
            add(ret->users, &ret->n_users,
                getpwnam_r(entry + 5, &user, memory, NAME_BYTES, &found_user) == 0 && found_user
                    ? (int64_t)found_user->pw_uid
                    : -1);
        else if (strncmp(entry, "uid:", 4) == 0)
            add(ret->users, &ret->n_users, number(entry + 4));
        else if (strncmp(entry, "group:", 6) == 0)
            add(ret->groups, &ret->n_groups,
                getgrnam_r(entry + 6, &group, memory, NAME_BYTES, &found) == 0 && found ? (int64_t)found->gr_gid : -1);
    }
    return TITAN_OK;
}

/* --- lists -------------------------------------------------------------------------------------------------------- */

static void put(struct list *l, uint16_t tag, unsigned bits, uint32_t id)
{
    titan_assert(l->n < ARRAY_SIZE(l->entries) && bits <= 7);
    l->entries[l->n++] = (struct posix_acl_xattr_entry){htole16(tag), htole16((uint16_t)bits), htole32(id)};
}

enum { X = 1, R = 4, RX = 5, RWX = 7 };

/* Makes an access list. bits: permissions of the listed users; R for a file. */
static void make_list(const struct shared *s, unsigned owner, unsigned group, unsigned others, unsigned bits,
                      struct list *ret)
{
    const unsigned titand = !s->in_job ? 0 : bits == R ? R : RWX;
    *ret = (struct list){.head = {htole32(POSIX_ACL_XATTR_VERSION)}};
    put(ret, ACL_USER_OBJ, owner, ACL_UNDEFINED_ID);
    for (size_t i = 0; i < s->n_users; i++)
        put(ret, ACL_USER, bits, s->users[i]);
    put(ret, ACL_GROUP_OBJ, group, ACL_UNDEFINED_ID);
    for (size_t i = 0; i < s->n_groups; i++)
        put(ret, ACL_GROUP, bits, s->groups[i]);
    if (s->in_job)
        put(ret, ACL_GROUP, titand, s->titand);
    if (s->n_users + s->n_groups > 0 || s->in_job)
        put(ret, ACL_MASK, group | bits | titand, ACL_UNDEFINED_ID);
    put(ret, ACL_OTHER, s->all ? others | bits : s->was_all ? others & ~bits : others, ACL_UNDEFINED_ID);
}

static size_t list_bytes(const struct list *l)
{
    return sizeof l->head + l->n * sizeof l->entries[0];
}

/* Sets the access list of a file. Leaves another user's file as it is. */
static titan_status let(int fd, const struct shared *s, unsigned bits, struct titan_error *err)
{
    struct stat st;
    struct list l;
    if (fstat(fd, &st) != 0)
        return titan_fail_errno(err, "cannot be looked at");
    if (st.st_uid != geteuid())
        return TITAN_OK;
    /* If the file has an access list, the mode's group bits are the list's mask. The group's own permissions are then
     * in the list. */
    unsigned group = st.st_mode >> 3 & 7;
    const ssize_t size = fgetxattr(fd, ACCESS, &l, offsetof(struct list, n));
    for (size_t i = 0; size > 0 && i < ((size_t)size - sizeof l.head) / sizeof l.entries[0]; i++) {
        if (le16toh(l.entries[i].e_tag) == ACL_GROUP_OBJ) {
            group = le16toh(l.entries[i].e_perm) & 7U;
            break;
        }
    }
    make_list(s, st.st_mode >> 6 & 7, group, st.st_mode & 7, bits, &l);
    return fsetxattr(fd, ACCESS, &l, list_bytes(&l), 0) == 0 ? TITAN_OK : titan_fail_errno(err, "no access list");
}

/* --- the folder --------------------------------------------------------------------------------------------------- */

static titan_status let_read(int at, const struct shared *s, int depth, struct titan_error *err)
{
    _cleanup_fd_ int own = fcntl(at, F_DUPFD_CLOEXEC, 0);
    DIR *entries = own >= 0 ? fdopendir(own) : NULL;
    titan_status status = entries ? TITAN_OK : titan_fail_errno(err, "cannot be listed");
    if (entries)
        (void)TAKE_FD(own), rewinddir(entries);
    for (struct dirent *e; status == TITAN_OK && entries && (e = readdir(entries));) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        _cleanup_fd_ int fd = openat(at, e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) != 0 || st.st_uid != geteuid())
            continue; /* the file is gone, or another user's */
        if (S_ISDIR(st.st_mode) && depth < DEPTH_MAX)
            status = let_read(fd, s, depth + 1, err);
        else if (S_ISREG(st.st_mode) && (st.st_mode & 0040)) /* skips the lock, which the group cannot read */
            status = let(fd, s, R, err);
    }
    if (entries)
        (void)closedir(entries);
    TRY(status);
    return let(at, s, RX, err);
}

/* Collects the folders above `at` that have this process's user and this group, up to the job's folder. The job may be
 * an earlier one. Folders of a home have another group, so they are not collected. */
static size_t way_up(int at, gid_t group, int ret[WAY_MAX])
{
    struct stat st;
    size_t n = 0;
    for (int below = at; n < WAY_MAX; below = ret[n++]) {
        const int fd = openat(below, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() && st.st_gid == group) {
            ret[n] = fd;
            continue;
        }
        if (fd >= 0)
            (void)close(fd);
        break;
    }
    return n;
}

titan_status sharing_set(int at, const char *entries, struct titan_error *err)
{
    struct shared s = {.n_users = 0};
    struct list inherited, have, plain;
    struct stat st;
    int way[WAY_MAX];
    const ssize_t got = fgetxattr(at, INHERITED, &have, offsetof(struct list, n));
    const size_t size = got > 0 ? (size_t)got : 0;
    if (fstat(at, &st) != 0)
        return titan_fail_errno(err, "cannot be looked at");
    make_list(&s, RWX, RWX, 0, RX, &plain); /* the list that titan-spawnd gives a job's folder */
    if (!*entries && (!size || (size == list_bytes(&plain) && memcmp(&have, &plain, size) == 0)))
        return TITAN_OK;
    TRY(read_entries(entries, &s, err));
    s.in_job = !group_member(st.st_gid);
    s.titand = st.st_gid;
    const size_t n_have = size < sizeof have.head ? 0 : (size - sizeof have.head) / sizeof have.entries[0];
    s.was_all = n_have > 0 && (le16toh(have.entries[n_have - 1].e_perm) & R);
    make_list(&s, RWX, RX, 0, RX, &inherited);
    if (size == list_bytes(&inherited) && memcmp(&have, &inherited, size) == 0)
        return TITAN_OK;

    /* If the process is not in a folder's group, a new list clears the folder's set-group-ID bit. Then new content
     * would not get the group. So the list of new content names the group. */
    const struct shared titand = {.in_job = s.in_job, .titand = s.titand};
    struct list of_group;
    make_list(&titand, RWX, RX, 0, RX, &of_group);
    titan_status status = let_read(at, &s, 0, err);
    for (size_t n = s.in_job ? way_up(at, st.st_gid, way) : 0; n > 0; n--) {
        status = status == TITAN_OK ? let(way[n - 1], &s, X, err) : status;
        if (status == TITAN_OK && fsetxattr(way[n - 1], INHERITED, &of_group, list_bytes(&of_group), 0) != 0)
            status = titan_fail_errno(err, "no access list for what will be in the job's folder");
        (void)close(way[n - 1]);
    }
    TRY(status);
    /* This list comes last: it marks the whole work as done. */
    return fsetxattr(at, INHERITED, &inherited, list_bytes(&inherited), 0) == 0
               ? TITAN_OK
               : titan_fail_errno(err, "no access list for what will be in it");
}
