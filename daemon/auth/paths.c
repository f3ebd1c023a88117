/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/auth/paths.h"

#include <errno.h>
#include <fts.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/path_pattern.h"
#include "daemon/auth/acl.h"

#define LINKS_MAX 40
#define TREE_MAX 200000 /* files of a folder checked one by one, at most */

/* USE_BEGIN: for the checkpoint from which a run begins. USE_READ: for roots of data. */
enum use { USE_READ, USE_BEGIN, USE_WRITE };

/* Bits of "rwx", as in the mode for others. */
enum { MAY_X = 1, MAY_W = 2, MAY_R = 4 };

/* Does the user have the rights `bits` on path? st: stat of path. The path's POSIX ACL applies if there is one; an
 * unreadable ACL grants nothing. */
static bool may(const struct acl_user *r, const char *path, const struct stat *st, mode_t bits)
{
    unsigned char acl[ACL_BYTES_MAX];
    if (r->uid < 0)
        return false;
    if (r->uid == 0)
        return true;
    if (st->st_uid == (uid_t)r->uid)
        return ((st->st_mode >> 6) & bits) == bits;
    const ssize_t size = lgetxattr(*path ? path : "/", ACL_NAME, acl, sizeof(acl));
    if (size < 0 && (errno == ENODATA || errno == ENOTSUP))
        return ((st->st_mode >> (acl_in_group(r, st->st_gid) ? 3 : 0)) & bits) == bits;
    return size >= 0 && acl_permits(r, acl, (size_t)size, st, bits);
}

static void reader_of(const struct auth_user *u, struct acl_user *r)
{
    struct passwd entry, *who = NULL;
    char memory[4096];
    r->uid = u->uid;
    r->n_groups = 0;
    if (u->uid < 0)
        return;
    if (getpwuid_r((uid_t)u->uid, &entry, memory, sizeof(memory), &who) == 0 && who) {
        r->n_groups = ACL_GROUPS_MAX;
        if (getgrouplist(who->pw_name, who->pw_gid, r->groups, &r->n_groups) < 0)
            r->n_groups = ACL_GROUPS_MAX;
    } else if (u->gid >= 0) {
        r->groups[r->n_groups++] = (gid_t)u->gid;
    }
}

/* --- below a root ------------------------------------------------------------------------------------------------- */

titan_status paths_add_root(struct paths_roots *roots, const char *path, struct titan_error *err)
{
    char real[PATH_MAX];
    if (path[0] != '/')
        return titan_fail(err, TITAN_EINVAL, "'%s' is not an absolute path", path);
    if (!realpath(path, real)) {
        titan_fail_errno(err, "'%s'", path);
        return err ? (err->status = TITAN_EINVAL) : TITAN_EINVAL;
    }
    if (roots->n == PATHS_ROOTS_MAX || strlen(real) >= sizeof(roots->path[0]))
        return titan_fail(err, TITAN_EINVAL, "more than %d paths, or one of more than %zu bytes", PATHS_ROOTS_MAX,
                          sizeof(roots->path[0]) - 1);
    memcpy(roots->path[roots->n++], real, strlen(real) + 1);
    return TITAN_OK;
}

static bool lies_in(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    return strncmp(folder, path, n) == 0 && (path[n] == '/' || !path[n] || n <= 1);
}

static bool below(const struct paths_roots *roots, const char *path)
{
    for (size_t i = 0; i < roots->n; i++)
        if (lies_in(path, roots->path[i]))
            return true;
    return false;
}

/* --- the way there ------------------------------------------------------------------------------------------------ */

/* The part of a path that was walked so far. `at` "" stands for "/". With USE_WRITE the last part may be missing. */
struct walk {
    const struct acl_user *reader;
    char at[PATH_MAX], rest[2 * PATH_MAX];
    int links;
    bool searchable; /* the reader may search every folder so far */
    bool missing;    /* the rest of the path is missing; `at` holds its full name */
    bool writable;   /* the missing part may be created */
    bool closed;     /* the walk ended at a folder closed to this process */
    struct stat last;
};

/* Walks one component. False: the path cannot be walked. */
static bool step(struct walk *w)
{
    char *from = w->rest + strspn(w->rest, "/");
    size_t len = strcspn(from, "/");
    char rest[2 * PATH_MAX];
    (void)snprintf(rest, sizeof(rest), "%s", from + len);
    if (len == 0) {
        w->rest[0] = '\0';
        return true;
    }
    if (!w->missing && !may(w->reader, w->at, &w->last, MAY_X))
        w->searchable = false;
    if (len == 2 && from[0] == '.' && from[1] == '.') {
        char *slash = strrchr(w->at, '/');
        if (w->missing)
            return false;
        if (slash)
            *slash = '\0';
    } else if (len != 1 || from[0] != '.') {
        const bool may_make = !w->missing && may(w->reader, w->at, &w->last, MAY_W | MAY_X);
        size_t n = strlen(w->at);
        if (n + 1 + len >= sizeof(w->at))
            return false;
        w->at[n] = '/';
        memcpy(w->at + n + 1, from, len);
        w->at[n + 1 + len] = '\0';
        if (w->missing || (lstat(w->at, &w->last) != 0 && errno == ENOENT)) {
            if (!w->missing)
                w->writable = may_make;
            w->missing = true;
        } else if (lstat(w->at, &w->last) != 0) {
            w->closed = errno == EACCES;
            return false;
        } else if (S_ISLNK(w->last.st_mode)) {
            /* The last component is a link, so the walk continues at its target. */
            char target[PATH_MAX], joined[2 * PATH_MAX];
            ssize_t size = readlink(w->at, target, sizeof(target) - 1);
            if (size <= 0 || ++w->links > LINKS_MAX)
                return false;
            target[size] = '\0';
            int all = snprintf(joined, sizeof(joined), "%s%s", target, rest);
            if (all >= (int)sizeof(joined))
                return false;
            memcpy(w->rest, joined, (size_t)all + 1);
            if (target[0] == '/')
                w->at[0] = '\0';
            else
                *strrchr(w->at, '/') = '\0';
            return stat(*w->at ? w->at : "/", &w->last) == 0;
        }
        memcpy(w->rest, rest, sizeof(rest));
        return true;
    }
    memcpy(w->rest, rest, sizeof(rest));
    return w->missing || stat(*w->at ? w->at : "/", &w->last) == 0;
}

static bool walk(struct walk *w, const struct acl_user *reader, const char *path)
{
    titan_assert(path[0] == '/');
    *w = (struct walk){.reader = reader, .searchable = true};
    if (snprintf(w->rest, sizeof(w->rest), "%s", path) >= PATH_MAX || stat("/", &w->last) != 0)
        return false;
    while (w->rest[0])
        if (!step(w))
            return false;
    if (!*w->at)
        memcpy(w->at, "/", 2);
    return true;
}

/* --- what is there ------------------------------------------------------------------------------------------------ */

static void close_fts(FTS **fts)
{
    if (*fts)
        (void)fts_close(*fts);
}

/* May the reader read every file of the folder that a worker would read? */
static bool tree_readable(const struct acl_user *r, const char *path)
{
    char *roots[2] = {(char *)(uintptr_t)path, NULL};
    _cleanup_(close_fts) FTS *fts = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    size_t n = 0;
    if (!fts)
        return false;
    for (FTSENT *e; (e = fts_read(fts));) {
        if (++n > TREE_MAX)
            return false;
        if (e->fts_info == FTS_D && !may(r, e->fts_accpath, e->fts_statp, MAY_R | MAY_X))
            return false;
        if (e->fts_info == FTS_F && !may(r, e->fts_accpath, e->fts_statp, MAY_R))
            return false;
    }
    return true;
}

static bool usable(const struct walk *w, enum use use)
{
    titan_assert(w->at[0] == '/' && w->reader);
    const struct acl_user *r = w->reader;
    bool folder = S_ISDIR(w->last.st_mode);
    if (!w->searchable)
        return false;
    if (use == USE_WRITE)
        return w->missing ? w->writable : folder && may(r, w->at, &w->last, MAY_W | MAY_X);
    if (w->missing)
        return false;
    return folder ? tree_readable(r, w->at) : may(r, w->at, &w->last, MAY_R);
}

bool paths_user_reads(const struct auth_user *u, const char *path)
{
    struct acl_user reader;
    struct walk w;
    reader_of(u, &reader);
    return path[0] == '/' && walk(&w, &reader, path) && usable(&w, USE_READ);
}

/* --- the recipe's ------------------------------------------------------------------------------------------------- */

struct asking {
    const struct paths_options *options;
    const struct auth_user *user;
    const char *const *granted;
    struct acl_user reader;
    struct titan_error *err;
};

static titan_status refuse(const struct asking *a, const char *key, const char *path, enum use use)
{
    const bool writes = use == USE_WRITE;
    titan_fail(a->err, TITAN_EPERM, "not permitted: %s = \"%s\" cannot be %s by you, %s", key, path,
               writes ? "written" : "read", a->user->actor);
    titan_error_hint(a->err, "name what you can %s yourself, or what lies below storage.%s (docs/security.md)",
                     writes ? "write" : "read", writes ? "checkpoint_roots" : "data_roots");
    return TITAN_EPERM;
}

static bool left_to_worker(const struct asking *a)
{
    return a->options->as_users && a->user->uid >= 0;
}

static titan_status check(const struct asking *a, const char *key, char *path, size_t size, enum use use)
{
    static const char *const ways[] = {"/.", "{.", ",.", "{,", ",,", ",}", "{}", "/,", "/}", "\\"};
    titan_assert(size > 0 && strlen(path) < size);
    struct walk w;
    if (!*path)
        return TITAN_OK;
    for (const char *const *g = a->granted; *g; g++)
        if (strcmp(path, *g) == 0)
            return TITAN_OK;
    if (path[0] != '/')
        return refuse(a, key, path, use);

    /* All matches of a pattern lie in its folder. The caller must be able to read this whole folder. */
    if (use == USE_READ && path_is_pattern(path)) {
        char folder[PATH_MAX], whole[2 * PATH_MAX];
        const size_t n = path_pattern_folder(path);
        const char *rest = path + n + strspn(path + n, "/");
        titan_assert(n > 0);
        /* Could a part of a match of the pattern be ".."? A wildcard does not match a leading dot. */
        bool may_climb = *rest == '.';
        for (size_t i = 0; i < ARRAY_SIZE(ways); i++)
            may_climb |= strstr(rest, ways[i]) != NULL;
        if (n >= sizeof(folder) || may_climb)
            return refuse(a, key, path, use);
        (void)snprintf(folder, sizeof(folder), "%.*s", (int)n, path);
        TRY(check(a, key, folder, sizeof(folder), use));
        if ((size_t)snprintf(whole, sizeof(whole), "%s/%s", strcmp(folder, "/") == 0 ? "" : folder, rest) >= size)
            return titan_fail(a->err, TITAN_EINVAL, "%s: the path is too long with its links resolved", key);
        memcpy(path, whole, strlen(whole) + 1);
        return TITAN_OK;
    }

    if (!walk(&w, &a->reader, path))
        return left_to_worker(a) && w.closed && w.searchable ? TITAN_OK : refuse(a, key, path, use);
    bool rooted = (use != USE_READ && below(&a->options->checkpoints, w.at)) ||
                  (use != USE_WRITE && below(&a->options->data, w.at));
    /* Titan's own folders hold other users' jobs, and the names of future jobs are known. So no path in these folders
     * counts as below a root. */
    const struct paths_roots *own = &a->options->own;
    for (size_t i = 0; i < own->n && rooted; i++)
        rooted = !lies_in(w.at, own->path[i]) && !lies_in(own->path[i], w.at);
    /* The second condition is for a link to a pattern. */
    if ((!rooted && !usable(&w, use)) || (use == USE_READ && path_is_pattern(w.at)))
        return refuse(a, key, path, use);
    if (strlen(w.at) >= size)
        return titan_fail(a->err, TITAN_EINVAL, "%s: the path is too long with its links resolved", key);
    memcpy(path, w.at, strlen(w.at) + 1);
    return TITAN_OK;
}

/* Refuses a root as a job's folder, because it holds many users' folders, and its whole content would become one
 * user's. */
static titan_status check_no_root(const struct asking *a, const char *folder)
{
    for (size_t i = 0; i < a->options->checkpoints.n; i++)
        if (lies_in(a->options->checkpoints.path[i], folder))
            return titan_fail(a->err, TITAN_EPERM,
                              "not permitted: checkpoint.folder = \"%s\" holds the folders of others: name one in it",
                              folder);
    return TITAN_OK;
}

titan_status paths_check(const struct paths_options *options, const struct auth_user *u, const char *const *granted,
                         struct recipe *r, struct titan_error *err)
{
    struct titan_error unused = {0};
    struct asking a = {.options = options, .user = u, .granted = granted, .err = err ? err : &unused};
    if (auth_trusted(u))
        return TITAN_OK;
    r->job.follow_links = left_to_worker(&a); /* someone could put links there from now on */
    reader_of(u, &a.reader);
    struct recipe_path paths[RECIPE_PATHS_MAX];
    for (int i = 0, n = recipe_paths(r, paths); i < n; i++)
        TRY(check(&a, paths[i].key, paths[i].path, paths[i].size, paths[i].dataset ? USE_READ : USE_BEGIN));

    TRY(check(&a, "job.dump_folder", r->job.dump_folder, sizeof(r->job.dump_folder), USE_WRITE));

    /* A relative folder lies below the job's own folder, or job.dump_folder. */
    static const char key[] = "checkpoint.folder";
    char full[PATH_MAX], *folder = r->checkpoint.folder;
    if (folder[0] == '/') {
        TRY(check(&a, key, folder, sizeof(r->checkpoint.folder), USE_WRITE));
        return check_no_root(&a, folder);
    }
    for (const char *at = folder; *at; at += strcspn(at, "/"), at += strspn(at, "/"))
        if (strcspn(at, "/") == 2 && at[0] == '.' && at[1] == '.')
            return refuse(&a, key, folder, USE_WRITE);
    if (!*r->job.dump_folder || !*folder)
        return TITAN_OK;
    (void)snprintf(full, sizeof(full), "%s/%s", r->job.dump_folder, folder);
    TRY(check(&a, key, full, sizeof(full), USE_WRITE));
    if (strlen(full) >= sizeof(r->checkpoint.folder))
        return titan_fail(a.err, TITAN_EINVAL, "checkpoint.folder: the path is too long with its links resolved");
    memcpy(folder, full, strlen(full) + 1);
    return check_no_root(&a, folder);
}
