/* SPDX-License-Identifier: Apache-2.0 */
/* files.c - see files.h. */
#include "worker/data/files.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/path_pattern.h"
#include "base/vec.h"

/* --- what is left out --------------------------------------------------------------------------------------------- */

void data_leave_out(struct data_left_out *left_out, enum data_omission why, const char *path, int error)
{
    titan_assert(why < DATA_OMISSIONS);
    if (left_out->by[why].n++ > 0)
        return;
    (void)snprintf(left_out->by[why].first, sizeof(left_out->by[why].first), "%s", path);
    left_out->by[why].error = error;
}

void data_left_out_add(struct data_left_out *to, const struct data_left_out *from)
{
    for (int i = 0; i < DATA_OMISSIONS; i++) {
        if (from->by[i].n == 0)
            continue;
        data_leave_out(to, (enum data_omission)i, from->by[i].first, from->by[i].error);
        to->by[i].n += from->by[i].n - 1;
    }
}

uint64_t data_left_out_count(const struct data_left_out *left_out)
{
    uint64_t n = 0;
    for (int i = 0; i < DATA_OMISSIONS; i++)
        n += left_out->by[i].n;
    return n;
}

void data_left_out_print(const struct data_left_out *left_out, struct buf *out)
{
    static const char *const names[DATA_OMISSIONS] = {
        [OMITTED_UNREADABLE] = "unreadable",
        [OMITTED_BROKEN] = "broken links",
        [OMITTED_LINK] = "links (not followed)",
        [OMITTED_TWICE] = "links to files that are read anyway",
        [OMITTED_HELD_OUT] = "held out by name",
        [OMITTED_TRAINING] = "of training",
        [OMITTED_KIND] = "of another kind",
        [OMITTED_BINARY] = "not text",
        [OMITTED_ENCODED] = "packed or UTF-16 (data build reads them)",
    };
    const char *comma = "";
    for (int i = 0; i < DATA_OMISSIONS; i++) {
        if (left_out->by[i].n == 0)
            continue;
        buf_printf(out, "%s%" PRIu64 " %s (%s%s%s%s)", comma, left_out->by[i].n, names[i],
                   left_out->by[i].n > 1 ? "first " : "", left_out->by[i].first, left_out->by[i].error ? ": " : "",
                   left_out->by[i].error ? strerror(left_out->by[i].error) : "");
        comma = ", ";
    }
}

/* --- finding ------------------------------------------------------------------------------------------------------ */

static void close_fts(FTS **fts)
{
    if (*fts)
        (void)fts_close(*fts);
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const struct data_file *)a)->path, ((const struct data_file *)b)->path);
}

static titan_status unreadable(const char *path, int why, struct titan_error *err)
{
    return titan_fail(err, TITAN_EINVAL, "training data '%s': %s", path, strerror(why));
}

static bool is_link(const FTSENT *e)
{
    struct stat st;
    return e->fts_level > 0 && (e->fts_parent->fts_number || (lstat(e->fts_path, &st) == 0 && S_ISLNK(st.st_mode)));
}

/* Adds the files of one file or folder. name: offset in a path where the file's name begins; SIZE_MAX: after the
 * root. */
static titan_status add_tree(struct data_files *files, const char *root, size_t name, struct titan_error *err)
{
    char *roots[2] = {(char *)(uintptr_t)root, NULL};
    const bool refuses = file_refuses_links();
    _cleanup_fd_ int fd = file_open_named(root, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return titan_fail(err, TITAN_ENOTFOUND, "training data '%s': %s", root, strerror(ENOENT));
    if (fd < 0)
        return unreadable(root, errno, err);
    _cleanup_(close_fts) FTS *fts = fts_open(roots, FTS_NOCHDIR | (refuses ? FTS_PHYSICAL : FTS_LOGICAL), NULL);
    if (!fts)
        return titan_fail_errno(err, "cannot list '%s'", root);
    FTSENT *e;
    while ((errno = 0, e = fts_read(fts))) {
        const bool unread = e->fts_info == FTS_DNR || e->fts_info == FTS_ERR || e->fts_info == FTS_NS;
        if (unread && e->fts_level == 0)
            return unreadable(root, e->fts_errno, err);
        if (unread)
            data_leave_out(&files->left_out, OMITTED_UNREADABLE, e->fts_path, e->fts_errno);
        else if (e->fts_info == FTS_SLNONE || e->fts_info == FTS_DC)
            data_leave_out(&files->left_out, OMITTED_BROKEN, e->fts_path, e->fts_info == FTS_DC ? ELOOP : 0);
        else if (e->fts_info == FTS_SL)
            data_leave_out(&files->left_out, OMITTED_LINK, e->fts_path, 0);
        if (e->fts_info == FTS_D && !refuses)
            e->fts_number = is_link(e);
        const struct stat *st = e->fts_statp;
        if (e->fts_info != FTS_F || st->st_size <= 0)
            continue;
        const struct data_file file = {.path = strdup(e->fts_path),
                                       .name = name == SIZE_MAX ? strlen(root) : name,
                                       .bytes = (uint64_t)st->st_size,
                                       .changed_ns = st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec,
                                       .device = st->st_dev,
                                       .inode = st->st_ino,
                                       .linked = !refuses && is_link(e)};
        if (!file.path || !VEC_PUSH(files->file, files->n, files->cap, file)) {
            free(file.path);
            return titan_fail(err, TITAN_ENOMEM, "no memory for a list of %zu files", files->n + 1);
        }
        files->bytes += file.bytes;
    }
    return errno == 0 ? TITAN_OK : unreadable(root, errno, err);
}

/* --- patterns ----------------------------------------------------------------------------------------------------- */

#define ALTERNATIVES_MAX 1024 /* most patterns that {a,b}{c,d}... may stand for */

/* Opens a folder for glob(). file_open_named() refuses links that must not be followed, so such a folder matches
 * nothing. */
static void *open_folder(const char *path)
{
    const int fd = file_open_named(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d && fd >= 0)
        (void)close(fd);
    return d;
}

static struct dirent *read_folder(void *folder)
{
    return readdir(folder);
}

static void close_folder(void *folder)
{
    (void)closedir(folder);
}

static int stat_named(const char *path, struct stat *ret)
{
    _cleanup_fd_ int fd = file_open_named(path, O_PATH);
    return fd < 0 ? -1 : fstat(fd, ret);
}

/* Returns an upper bound of the patterns that glob() makes of the braces. */
static uint64_t count_alternatives(const char *pattern)
{
    uint64_t n = 1;
    for (const char *open = pattern; (open = strchr(open, '{')) && n <= ALTERNATIVES_MAX; open++) {
        uint64_t commas = 0;
        int depth = 0;
        for (const char *at = open; *at; at++) {
            depth += *at == '{' ? 1 : *at == '}' ? -1 : 0;
            commas += *at == ',';
            if (depth == 0)
                break;
        }
        n *= commas + 1;
    }
    return n;
}

/* Adds the pattern's matches. A file's name begins at offset `name` of its path. */
static titan_status add_matches(struct data_files *files, const char *pattern, size_t name, struct titan_error *err)
{
    glob_t g = {.gl_opendir = open_folder,
                .gl_readdir = read_folder,
                .gl_closedir = close_folder,
                .gl_stat = stat_named,
                .gl_lstat = stat_named};
    const int code = glob(pattern, GLOB_BRACE | GLOB_ALTDIRFUNC, NULL, &g);
    titan_status status =
        code == GLOB_NOSPACE ? titan_fail(err, TITAN_ENOMEM, "no memory to match '%s'", pattern)
        : code != 0 ? titan_fail(err, TITAN_ENOTFOUND, "training data '%s': no file matches the pattern", pattern)
                    : TITAN_OK;
    for (size_t i = 0; status == TITAN_OK && i < g.gl_pathc; i++)
        status = add_tree(files, g.gl_pathv[i], name, err);
    globfree(&g);
    return status;
}

/* Returns the comma or closing brace after the alternative that begins at `at`. NULL: neither follows. */
static const char *end_of_alternative(const char *at)
{
    for (int depth = 0; *at; at++) {
        if (depth == 0 && (*at == ',' || *at == '}'))
            return at;
        depth += *at == '{' ? 1 : *at == '}' ? -1 : 0;
    }
    return NULL;
}

/* Is the pattern a list of whole paths, as "folder/{a,b}"? Returns the text after its brace. NULL: the pattern is no
 * list. */
static const char *list_of(const char *pattern)
{
    const char *first = strpbrk(pattern, "*?[{"), *end = NULL;
    if (!first || *first != '{' || (first > pattern && first[-1] != '/') || strchr(pattern, '\\'))
        return NULL;
    for (const char *at = first + 1; (end = end_of_alternative(at)) && *end == ','; at = end + 1)
        ;
    return end && !end[1] ? first + 1 : NULL;
}

/* Adds the files of a pattern. Each path of a list must exist. */
static titan_status add_pattern(struct data_files *files, const char *pattern, struct titan_error *err)
{
    const size_t name = path_pattern_folder(pattern);
    const char *at = list_of(pattern), *end;
    if (count_alternatives(pattern) > ALTERNATIVES_MAX)
        return titan_fail(err, TITAN_EINVAL, "training data '%.200s' stands for more than %d patterns", pattern,
                          ALTERNATIVES_MAX);
    if (!at)
        return add_matches(files, pattern, name, err);
    for (const int folder = (int)(at - 1 - pattern); *at; at = end + 1) {
        char path[PATH_MAX];
        end = end_of_alternative(at);
        if (snprintf(path, sizeof(path), "%.*s%.*s", folder, pattern, (int)(end - at), at) >= (int)sizeof(path))
            return titan_fail(err, TITAN_EINVAL, "training data '%.200s...': the path is too long", path);
        TRY((path_is_pattern(path) ? add_matches : add_tree)(files, path, name, err));
    }
    return TITAN_OK;
}

titan_status data_files_add(struct data_files *files, const char *path, struct titan_error *err)
{
    const size_t before = files->n;
    struct stat st;
    const bool pattern = path_is_pattern(path) && stat_named(path, &st) < 0;
    TRY(pattern ? add_pattern(files, path, err) : add_tree(files, path, SIZE_MAX, err));
    if (files->n > before)
        qsort(files->file + before, files->n - before, sizeof(*files->file), compare_paths);
    size_t kept = before;
    for (size_t i = before; pattern && i < files->n; i++) { /* keeps one entry if two alternatives match a file */
        if (kept > before && strcmp(files->file[i].path, files->file[kept - 1].path) == 0) {
            files->bytes -= files->file[i].bytes;
            free(files->file[i].path);
        } else {
            files->file[kept++] = files->file[i];
        }
    }
    if (pattern)
        files->n = kept;
    return TITAN_OK;
}

void data_files_clear(struct data_files *files)
{
    for (size_t i = 0; i < files->n; i++)
        free(files->file[i].path);
    free(files->file);
    *files = (struct data_files){0};
}

/* --- choosing ----------------------------------------------------------------------------------------------------- */

void data_files_filter(struct data_files *files, size_t from, enum data_omission why,
                       bool (*keep)(const struct data_file *file, const void *with), const void *with)
{
    titan_assert(from <= files->n);
    size_t kept = from;
    for (size_t i = from; i < files->n; i++) {
        struct data_file *file = &files->file[i];
        if (keep(file, with)) {
            files->file[kept++] = *file;
            continue;
        }
        data_leave_out(&files->left_out, why, file->path, 0);
        files->bytes -= file->bytes;
        free(file->path);
    }
    files->n = kept;
}

bool data_name_has(const char *name, const char *word)
{
    const size_t n = strlen(word);
    titan_assert(n > 0);
    for (const char *at = name; (at = strcasestr(at, word)); at++)
        if ((at == name || !isalpha((unsigned char)at[-1])) && !isalpha((unsigned char)at[n]))
            return true;
    return false;
}

static bool has_any(const char *name, const char *const *words)
{
    while (*words && !data_name_has(name, *words))
        words++;
    return *words;
}

static const char *const held_out_words[] = {"val", "valid", "validation", NULL};
static const char *const other_words[] = {"dev", "test", "eval", NULL};
static const char *const training_words[] = {"train", "training", NULL};

struct splits {
    bool others;   /* the words dev, test and eval also mark held-out files */
    bool held_out; /* true: held-out files are wanted; false: all other files */
};

static bool is_wanted(const struct data_file *file, const void *with)
{
    const struct splits *s = with;
    const char *name = file->path + file->name;
    return (has_any(name, held_out_words) || (s->others && has_any(name, other_words))) == s->held_out;
}

struct inode {
    dev_t device;
    ino_t inode;
};

static int compare_inodes(const void *a, const void *b)
{
    const struct inode *x = a, *y = b;
    return x->device != y->device ? (x->device < y->device ? -1 : 1) : (x->inode > y->inode) - (x->inode < y->inode);
}

struct inodes {
    struct inode *at;
    size_t n, cap;
};

static bool is_new(const struct data_file *file, const void *with)
{
    const struct inodes *own = with;
    const struct inode it = {file->device, file->inode};
    return !file->linked || !bsearch(&it, own->at, own->n, sizeof(it), compare_inodes);
}

/* Does the path ask for held-out files? It does if it is a pattern with one of the words, or a folder whose name is one
 * of the words. */
static bool names_held_out(const char *path)
{
    const char *last = path + strlen(path);
    if (path_is_pattern(path))
        return has_any(path + path_pattern_folder(path), held_out_words) ||
               has_any(path + path_pattern_folder(path), other_words);
    while (last > path && last[-1] == '/')
        last--;
    size_t n = 0;
    for (; last > path && last[-1] != '/'; n++)
        last--;
    for (int i = 0; i < 3; i++)
        if ((strlen(held_out_words[i]) == n && strncasecmp(last, held_out_words[i], n) == 0) ||
            (strlen(other_words[i]) == n && strncasecmp(last, other_words[i], n) == 0))
            return true;
    return false;
}

void data_files_select(struct data_files *files, size_t from, const char *path, enum data_split split)
{
    struct splits s = {.held_out = split == SPLIT_HELD_OUT};
    struct inodes own = {0};
    bool any = false, linked = false;
    titan_assert(from <= files->n);
    for (size_t i = from; i < files->n; i++)
        s.others = s.others || has_any(files->file[i].path + files->file[i].name, training_words);
    for (size_t i = from; i < files->n; i++)
        any = any || is_wanted(&files->file[i], &(struct splits){s.others, true});
    if (any && split != SPLIT_ALL && !names_held_out(path))
        data_files_filter(files, from, s.held_out ? OMITTED_TRAINING : OMITTED_HELD_OUT, is_wanted, &s);

    /* Leaves out links to files that are read by their own names. */
    for (size_t i = from; i < files->n; i++) {
        const struct inode it = {files->file[i].device, files->file[i].inode};
        linked = linked || files->file[i].linked;
        if (!files->file[i].linked && !VEC_PUSH(own.at, own.n, own.cap, it))
            break; /* without memory for the list, some files are read twice */
    }
    if (linked && own.n > 0) {
        qsort(own.at, own.n, sizeof(*own.at), compare_inodes);
        data_files_filter(files, from, OMITTED_TWICE, is_new, &own);
    }
    free(own.at);
}

titan_status data_files_none(const struct data_files *files, const char *path, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf left = BUF_INIT;
    data_left_out_print(&files->left_out, &left);
    (void)titan_fail(err, TITAN_EINVAL, "training data '%s' has no files to read%s%s", path,
                     left.len ? "; left out: " : " that are not empty", left.len ? left.data : "");
    if (err && files->left_out.by[OMITTED_HELD_OUT].n > 0)
        titan_error_hint(err, "what is held out by its name is trained on where the path or its pattern names it");
    return TITAN_EINVAL;
}

/* --- names -------------------------------------------------------------------------------------------------------- */

static bool ends_in(const char *path, size_t len, const char *suffix)
{
    const size_t n = strlen(suffix);
    return len >= n && strncasecmp(path + len - n, suffix, n) == 0;
}

const char *data_file_packing(const char *path)
{
    const size_t len = strlen(path);
    return ends_in(path, len, ".gz") ? ".gz" : ends_in(path, len, ".zst") ? ".zst" : "";
}

bool data_file_is(const char *path, const char *suffix)
{
    return ends_in(path, strlen(path) - strlen(data_file_packing(path)), suffix);
}
