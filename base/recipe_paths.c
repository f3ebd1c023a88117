/* SPDX-License-Identifier: Apache-2.0 */
/* The paths in a recipe: their keys, their base folders, and whether they can be read. */
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/path_pattern.h"
#include "base/recipe.h"

titan_status recipe_initial_job(const struct recipe *r, uint64_t *ret, struct titan_error *err)
{
    const char *path = r->checkpoint.initial_load_path, *digits = path + strlen(RECIPE_JOB_PREFIX);
    char *end = NULL;
    *ret = 0;
    if (strncmp(path, RECIPE_JOB_PREFIX, strlen(RECIPE_JOB_PREFIX)) != 0)
        return TITAN_OK;
    errno = 0;
    const unsigned long long id = *digits >= '1' && *digits <= '9' ? strtoull(digits, &end, 10) : 0;
    if (id == 0 || *end != '\0' || errno != 0 || id > INT64_MAX)
        return titan_fail(err, TITAN_EINVAL,
                          "checkpoint.initial_load_path = \"%.64s\": \"job:\" and the number of a job, or a path",
                          path);
    *ret = id;
    return TITAN_OK;
}

int recipe_paths(struct recipe *r, struct recipe_path ret[RECIPE_PATHS_MAX])
{
    /* Default locations of TorchTitan's data sets when training.dataset_path is unset: folders with the names by which
     * TorchTitan loads the sets. */
    static const struct {
        const char *dataset, *path;
    } places[] = {{"c4", "allenai/c4"}, {"c4_validation", "allenai/c4"}, {"c4_test", "tests/assets/c4_test"}};
    const bool mixed = r->training.mixture.n > 0;
    int n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        if (!mixed && !r->training.dataset_path[0] && strcmp(r->training.dataset, places[i].dataset) == 0)
            (void)snprintf(r->training.dataset_path, sizeof(r->training.dataset_path), "%s", places[i].path);
        if (r->validation.enable && !r->validation.dataset_path[0] &&
            strcmp(r->validation.dataset, places[i].dataset) == 0)
            (void)snprintf(r->validation.dataset_path, sizeof(r->validation.dataset_path), "%s", places[i].path);
    }
    const struct recipe_path fixed[] = {
        {"training.dataset_path", r->training.dataset_path, sizeof(r->training.dataset_path),
         mixed ? NULL : r->training.dataset, r->training.seq_len},
        {"model.hf_assets_path", r->model.tokenizer, sizeof(r->model.tokenizer), NULL, 0},
        {"parallelism.pipeline_parallel_schedule_csv", r->parallelism.pipeline_parallel_schedule_csv,
         sizeof(r->parallelism.pipeline_parallel_schedule_csv), NULL, 0},
        {"checkpoint.initial_load_path", r->checkpoint.initial_load_path, sizeof(r->checkpoint.initial_load_path), NULL,
         0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(fixed); i++)
        if (fixed[i].path[0] && !(fixed[i].path == r->model.tokenizer && strcmp(fixed[i].path, "bytes") == 0) &&
            !(fixed[i].path == r->checkpoint.initial_load_path &&
              strncmp(fixed[i].path, RECIPE_JOB_PREFIX, strlen(RECIPE_JOB_PREFIX)) == 0))
            ret[n++] = fixed[i];
    if (r->validation.enable && r->validation.dataset_path[0])
        ret[n++] = (struct recipe_path){"validation.dataset_path", r->validation.dataset_path,
                                        sizeof(r->validation.dataset_path), r->validation.dataset,
                                        r->validation.seq_len > 0 ? r->validation.seq_len : r->training.seq_len};
    for (int64_t i = 0; i < r->training.mixture.n; i++) {
        struct recipe_source *source = &r->training.mixture.source[i];
        ret[n++] = (struct recipe_path){"training.mixture: path", source->path, sizeof(source->path),
                                        source->dataset[0] ? source->dataset : r->training.dataset, 0};
    }
    titan_assert(n <= RECIPE_PATHS_MAX);
    return n;
}

titan_status recipe_place_path(const struct recipe_path *p, const char *folder, struct titan_error *err)
{
    titan_assert(p->size > 0);
    char full[PATH_MAX];
    if (p->path[0] == '/')
        return TITAN_OK;
    if ((size_t)snprintf(full, sizeof(full), "%s/%s", strcmp(folder, "/") == 0 ? "" : folder, p->path) >=
        MIN(sizeof(full), p->size))
        return titan_fail(err, TITAN_EINVAL, "%s: '%.64s...' is too long", p->key, full);
    memcpy(p->path, full, strlen(full) + 1);
    return TITAN_OK;
}

static titan_status place(const char *key, const char *path, const char *base, char ret[PATH_MAX],
                          struct titan_error *err)
{
    bool relative = base && path[0] != '/';
    if (snprintf(ret, PATH_MAX, "%s%s%s", relative ? base : "", relative ? "/" : "", path) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "%s: path too long", key);
    return TITAN_OK;
}

#define PROBE_BYTES 4096 /* first bytes of a text, which have no 0 byte; workers use the same rule */
#define PROBES_MAX 1000

/* Tells by a file's name whether it holds tokens or compressed text. The bytes of such files are not checked. */
static bool is_encoded(const char *path)
{
    static const char *const ends[] = {".bin", ".idx", ".gz", ".zst"};
    const size_t len = strlen(path);
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
        if (len > strlen(ends[i]) && strcasecmp(path + len - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

static bool is_binary(const char *path)
{
    static const char *const encoded[] = {"\x1f\x8b\x08", "\x28\xb5\x2f\xfd", "\xff\xfe", "\xfe\xff"};
    char bytes[PROBE_BYTES]; /* encoded: gzip, zstd, UTF-16 */
    _cleanup_fd_ int fd = file_open_named(path, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    const ssize_t n = fd < 0 ? -1 : read(fd, bytes, sizeof(bytes));
    for (size_t i = 0; i < ARRAY_SIZE(encoded); i++)
        if (n >= 4 && memcmp(bytes, encoded[i], strlen(encoded[i])) == 0)
            return false;
    return n > 0 && memchr(bytes, 0, (size_t)n) != NULL;
}

static void close_fts(FTS **fts)
{
    if (*fts)
        (void)fts_close(*fts);
}

/* The last data path that passed the checks. It is kept because successive submits often name the same path. */
#define FINE_NS INT64_C(1000000000)
static struct {
    pthread_mutex_t lock;
    char path[PATH_MAX];
    bool text, links;
    struct stat st;
    int64_t at_ns;
} fine = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool was_fine(const char *path, bool text, bool links, const struct stat *st)
{
    (void)pthread_mutex_lock(&fine.lock);
    const struct stat *was = &fine.st;
    const bool same = fine.text == text && fine.links == links && strcmp(fine.path, path) == 0 &&
                      was->st_dev == st->st_dev && was->st_ino == st->st_ino && was->st_size == st->st_size &&
                      memcmp(&was->st_ctim, &st->st_ctim, sizeof(st->st_ctim)) == 0 &&
                      clock_mono_ns() - fine.at_ns < FINE_NS;
    (void)pthread_mutex_unlock(&fine.lock);
    return same;
}

static void is_fine(const char *path, bool text, bool links, const struct stat *st)
{
    (void)pthread_mutex_lock(&fine.lock);
    memcpy(fine.path, path, strlen(path) + 1);
    fine.text = text;
    fine.links = links;
    fine.st = *st;
    fine.at_ns = clock_mono_ns();
    (void)pthread_mutex_unlock(&fine.lock);
}

/* Checks data without a worker: a non-empty file exists, and text is not binary. Unreadable or slow cases pass. Files
 * are checked one by one until one passes, because a folder may have very many. */
static titan_status check_contents(const struct recipe_path *p, char *full, bool links, const struct stat *root,
                                   struct titan_error *err)
{
    char *const roots[2] = {full, NULL};
    const bool text = strcmp(p->dataset, "text") == 0;
    size_t binary = 0;
    if (was_fine(full, text, links, root))
        return TITAN_OK;
    _cleanup_(close_fts) FTS *fts =
        fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR | FTS_NOSTAT | (file_refuses_links() ? 0 : FTS_COMFOLLOW), NULL);
    bool folder = false;
    for (FTSENT *e; fts && (errno = 0, e = fts_read(fts));) {
        struct stat st;
        folder |= e->fts_info == FTS_D && e->fts_level == 0;
        if (e->fts_info == FTS_DNR || e->fts_info == FTS_ERR || e->fts_info == FTS_NS)
            return TITAN_OK;
        if (e->fts_info != FTS_F && e->fts_info != FTS_NSOK && e->fts_info != FTS_SL)
            continue;
        if ((e->fts_level == 0 ? stat : lstat)(e->fts_path, &st) < 0)
            return TITAN_OK;
        if (links && S_ISLNK(st.st_mode) && stat(e->fts_path, &st) < 0)
            continue;
        if (S_ISDIR(st.st_mode))
            return TITAN_OK; /* a folder behind a link, or on a file system without link counts */
        if (!S_ISREG(st.st_mode) || st.st_size == 0)
            continue;
        if (text && !is_encoded(e->fts_path) && ++binary <= PROBES_MAX && is_binary(e->fts_path))
            continue;
        is_fine(full, text, links, root);
        return TITAN_OK;
    }
    if (!fts || errno != 0)
        return TITAN_OK;
    if (binary == 0)
        return titan_fail(err, TITAN_EINVAL, "%s = \"%s\" has no files that are not empty", p->key, full);
    return titan_fail(err, TITAN_EINVAL, "%s = \"%s\" %s", p->key, full,
                      folder ? "has no text: all of its files are binary" : "is no text: it is a binary file");
}

titan_status recipe_check_data(struct recipe *r, const char *base, struct titan_error *err)
{
    struct recipe_path paths[RECIPE_PATHS_MAX];
    struct stat st[RECIPE_PATHS_MAX];
    char full[PATH_MAX];
    const int n = recipe_paths(r, paths);
    if (r->training.mixture.n == 0 && r->training.dataset_path[0] == '\0') {
        titan_fail(err, TITAN_EINVAL, "training.dataset_path is not given");
        titan_error_hint(err, "name a text file or a folder: --set training.dataset_path=PATH");
        return TITAN_EINVAL;
    }
    if (r->validation.enable && r->validation.dataset_path[0] == '\0') {
        titan_fail(err, TITAN_EINVAL, "validation.dataset_path is not given");
        titan_error_hint(err, "name a text file or a folder: --set validation.dataset_path=PATH");
        return TITAN_EINVAL;
    }
    for (int i = 0; i < n; i++) {
        /* Checks that a file or folder is readable; returns its path from here and its type. */
        const struct recipe_path *p = &paths[i];
        TRY(place(p->key, p->path, base, full, err));
        if (p->dataset && path_is_pattern(full) && stat(full, &st[i]) < 0) /* workers expand the pattern */
            full[path_pattern_folder(full)] = '\0';
        if (!*full)
            (void)snprintf(full, PATH_MAX, ".");
        if (stat(full, &st[i]) < 0) {
            titan_status status = titan_fail_errno(err, "%s = \"%s\"", p->key, full);
            titan_error_hint(err,
                             "a relative path counts from the run file's folder or else from here; --set %s=PATH names "
                             "another",
                             p->key);
            return status;
        }
        bool folder = S_ISDIR(st[i].st_mode);
        if (!folder && !S_ISREG(st[i].st_mode))
            return titan_fail(err, TITAN_EINVAL, "%s = \"%s\" is neither a file nor a folder", p->key, full);
        if (access(full, folder ? R_OK | X_OK : R_OK) < 0)
            return titan_fail_errno(err, "%s = \"%s\"", p->key, full);
        if (!folder && st[i].st_size == 0)
            return titan_fail(err, TITAN_EINVAL, "%s = \"%s\" is empty", p->key, full);
    }
    for (int i = 0; i < n; i++) {
        if (!paths[i].dataset)
            continue;
        TRY(place(paths[i].key, paths[i].path, base, full, err));
        if (path_is_pattern(full) && access(full, F_OK) < 0)
            continue;
        TRY(check_contents(&paths[i], full, r->job.follow_links, &st[i], err));
        /* Refuses a file that is too small for one sample. This is known without reading if each byte is a token; the
         * end of the text is one token more. */
        if (strcmp(r->model.tokenizer, "bytes") == 0 && strcmp(paths[i].dataset, "text") == 0 && !is_encoded(full) &&
            S_ISREG(st[i].st_mode) && st[i].st_size < paths[i].seq_len) {
            titan_fail(err, TITAN_EINVAL, "%s = \"%s\" has %lld bytes; one sample needs %lld", paths[i].key, full,
                       (long long)st[i].st_size, (long long)paths[i].seq_len);
            titan_error_hint(err, "more text, or a smaller seq_len");
            return TITAN_EINVAL;
        }
    }
    return TITAN_OK;
}

titan_status recipe_checkpoint_folder(const struct recipe *r, const char *job_dir, char *out, struct titan_error *err)
{
    const char *dump = r->job.dump_folder, *folder = r->checkpoint.folder;
    int n;
    if (folder[0] == '/')
        n = snprintf(out, PATH_MAX, "%s", folder);
    else if (dump[0] == '/')
        n = snprintf(out, PATH_MAX, "%s/%s", dump, folder);
    else
        n = snprintf(out, PATH_MAX, "%s/%s/%s", job_dir, dump, folder);
    if (n >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "checkpoint.folder: the path is too long");

    /* In place: "/a//b/./c/" -> "/a/b/c". */
    char *to = out;
    for (const char *p = out; *p;) {
        if (p[0] == '/' && (p[1] == '/' || !p[1]) && (p[1] || to > out))
            p++;
        else if (p[0] == '/' && p[1] == '.' && (p[2] == '/' || !p[2]))
            p += 2;
        else
            *to++ = *p++;
    }
    if (to == out)
        *to++ = '/';
    *to = '\0';
    return TITAN_OK;
}
