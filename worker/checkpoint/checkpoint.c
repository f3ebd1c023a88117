/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/crc32c.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/moment_codes.h"
#include "base/folder_owner.h"
#include "base/progress.h"
#include "base/recipe.h"
#include "base/vec.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors.h"

#define CHECK_BYTES ((size_t)1 << 20)

/* --- names -------------------------------------------------------------------------------------------------------- */

static titan_status join(char out[PATH_MAX], struct titan_error *err, const char *dir, const char *name)
{
    if ((size_t)snprintf(out, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "path of '%s' in '%.64s...' is too long", name, dir);
    return TITAN_OK;
}

#define NAME_BYTES 80

static void unfinished_name(const struct checkpoint_info *info, char name[NAME_BYTES])
{
    (void)snprintf(name, NAME_BYTES, "." CHECKPOINT_NAME ".%" PRIu64, info->step, info->epoch);
}

titan_status checkpoint_unfinished_path(char *ret_path, const char *dir, const struct checkpoint_info *info,
                                        struct titan_error *err)
{
    char name[NAME_BYTES];
    unfinished_name(info, name);
    return join(ret_path, err, dir, name);
}

titan_status checkpoint_path(char *ret_path, const char *dir, uint64_t step, struct titan_error *err)
{
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof(name), CHECKPOINT_NAME, step);
    return join(ret_path, err, dir, name);
}

/* Opens the folder of checkpoints. A link may lead to the folder, unless file_refuse_links() forbids links. */
static titan_status open_dir(const char *dir, int *ret_fd, struct titan_error *err)
{
    *ret_fd = file_open_named(dir, O_RDONLY | O_DIRECTORY);
    return *ret_fd < 0 ? titan_fail_errno(err, "cannot open folder '%s'", dir) : TITAN_OK;
}

/* Opens the folder if *at is -1. The caller then closes the descriptor, which *own gets too. */
static titan_status enter(int *at, int *own, const char *dir, struct titan_error *err)
{
    if (*at >= 0)
        return TITAN_OK;
    TRY(open_dir(dir, own, err));
    *at = *own;
    return TITAN_OK;
}

titan_status checkpoint_unfinished_open(int at, const char *dir, const struct checkpoint_info *info, int *ret_fd,
                                        struct titan_error *err)
{
    char name[NAME_BYTES];
    _cleanup_fd_ int own = -1;
    unfinished_name(info, name);
    if (at < 0)
        TRY(dir_make_named(dir, err));
    TRY(enter(&at, &own, dir, err));
    const titan_status status = dir_open_at(at, name, true, ret_fd, err);
    if (status != TITAN_OK)
        (void)titan_error_wrap(err, "'%s'", dir);
    return status;
}

static bool parse_number(const char *text, char end, uint64_t *ret, const char **ret_rest)
{
    if (*text < '0' || *text > '9')
        return false;
    char *rest = NULL;
    errno = 0;
    *ret = strtoull(text, &rest, 10);
    *ret_rest = rest;
    return errno == 0 && *rest == end;
}

/* "step-00000120" -> 120 */
static bool parse_step_name(const char *name, uint64_t *ret_step)
{
    const char *rest;
    return strncmp(name, "step-", 5) == 0 && parse_number(name + 5, '\0', ret_step, &rest);
}

static void close_dir(DIR **dir)
{
    if (*dir)
        (void)closedir(*dir);
}

/* Opens a listing of the open folder. Returns NULL with errno on failure. */
static DIR *list_at(int at)
{
    const int fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d && fd >= 0)
        (void)close(fd);
    return d;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static const char *dtype_of(const struct manifest *m, const struct shard_slice *slice)
{
    return manifest_dtype(&m->tensors[slice->tensor]);
}

/* Asserts that a slice of this rank lies inside its tensor. */
static void assert_inside(const struct checkpoint_part *part, const struct shard_slice *p)
{
    int64_t rows, cols;
    titan_assert(p->tensor >= 0 && p->tensor < part->n_specs);
    shard_slice_matrix(&part->specs[p->tensor], &rows, &cols);
    titan_assert(p->row >= 0 && p->rows >= 0 && p->row + p->rows <= rows);
    titan_assert(p->col >= 0 && p->cols >= 0 && p->col + p->cols <= cols);
}

/* Appends a slice of codes, block by block. */
static titan_status append_codes(struct safetensors_writer *w, const char *tensor, const char *dtype,
                                 const struct shard_slice *p, struct titan_error *err)
{
    enum { AT_ONCE = 64 }; /* blocks */
    const struct moment_block *const blocks = (const void *)p->data;
    const int64_t first = p->at % MOMENT_BLOCK, end = first + p->rows * p->cols;
    _cleanup_free_ float *values = malloc((size_t)AT_ONCE * MOMENT_BLOCK * sizeof *values);

    if (!values)
        return titan_fail(err, TITAN_ENOMEM, "no memory to write '%s'", tensor);
    for (int64_t at = 0; at < end; at += (int64_t)AT_ONCE * MOMENT_BLOCK) {
        const int64_t from = MAX(at, first), to = MIN(at + (int64_t)AT_ONCE * MOMENT_BLOCK, end);
        moment_blocks_decode(blocks + at / MOMENT_BLOCK, (to - at + MOMENT_BLOCK - 1) / MOMENT_BLOCK,
                             p->form == SLICE_SQUARES, values);
        TRY(safetensors_append_floats(w, tensor, dtype, values + (from - at), (size_t)(to - from), err));
    }
    return TITAN_OK;
}

titan_status checkpoint_write_shard(int folder, const char *dir, const struct checkpoint_info *info,
                                    const struct checkpoint_part *part, struct buf *entry, struct titan_error *err)
{
    titan_assert(part->rank >= 0 && part->n_slices >= 0 && part->n_specs >= 0);
    const size_t room = (size_t)part->n_slices + 1;
    const struct manifest m = {.info = *info, .tensors = (struct tensor_spec *)part->specs, .ntensors = part->n_specs};
    _cleanup_(manifest_file_clear) struct manifest_file file = {.slices = calloc(room, sizeof(*file.slices))};
    _cleanup_free_ struct shard_slice *slices = calloc(room, sizeof(*slices));
    _cleanup_free_ struct safetensors_entry *entries = calloc(room, sizeof(*entries));
    _cleanup_free_ char(*names)[MANIFEST_SLICE_NAME_MAX] = calloc(room, sizeof(*names));
    if (!file.slices || !slices || !entries || !names)
        return titan_fail(err, TITAN_ENOMEM, "no memory to write %d pieces", part->n_slices);
    size_t n = 0;
    for (const struct shard_slice *p = part->slices; p < part->slices + part->n_slices; p++) {
        int64_t place;
        assert_inside(part, p);
        if (p->rows == 0 || p->cols == 0)
            continue;
        slices[n] = *p;
        file.slices[n] = (struct manifest_slice){.slice = *p, .range = -1};
        manifest_slice_name(&m, &file.slices[n], names[n], &place);
        entries[n] = (struct safetensors_entry){
            .name = names[n], .dtype = dtype_of(&m, p), .shape = {p->rows, p->cols}, .ndim = 2};
        n++;
    }
    titan_assert(n < room);
    file.nslices = (int)n;

    _cleanup_fd_ int at = -1;
    TRY(checkpoint_unfinished_open(folder, dir, info, &at, err));
    (void)snprintf(file.name, sizeof(file.name), "rank-%05d.safetensors", part->rank);
    const struct safetensors_header header = {.entries = entries, .n = n};
    struct safetensors_writer *w = NULL;
    titan_status status = safetensors_create(at, file.name, &header, &w, err);
    for (size_t i = 0; i < n && status == TITAN_OK; i++) {
        const size_t elements = (size_t)(slices[i].rows * slices[i].cols);
        const char *const dtype = dtype_of(&m, &slices[i]);
        status = slices[i].form >= SLICE_CODES ? append_codes(w, names[i], dtype, &slices[i], err)
                 : slices[i].form == SLICE_BF16
                     ? safetensors_append_halves(w, names[i], dtype, (const void *)slices[i].data, elements, err)
                     : safetensors_append_floats(w, names[i], dtype, slices[i].data, elements, err);
    }
    if (status == TITAN_OK)
        status = safetensors_finish(w, &file.bytes, &file.crc, err);
    else
        safetensors_abandon(w);
    if (status == TITAN_OK && fsync(at) < 0 && errno != EINVAL)
        status = titan_fail_errno(err, "cannot sync the folder of '%s'", file.name);
    if (status != TITAN_OK) {
        (void)titan_error_wrap(err, "'%s/." CHECKPOINT_NAME ".%" PRIu64 "'", dir, info->step, info->epoch);
        return status;
    }
    manifest_print_file(&file, entry);
    return buf_failed(entry) ? titan_fail(err, TITAN_ENOMEM, "no memory for a manifest entry") : TITAN_OK;
}

/* Moves the folder out of the way, to the name ret, which the next sweep removes. */
static titan_status move_aside(int at, const char *name, char ret[2 * NAME_BYTES], struct titan_error *err)
{
    titan_assert(at >= 0);
    (void)snprintf(ret, (size_t)2 * NAME_BYTES, ".removed-%s.%d", name, (int)getpid());
    return renameat(at, name, at, ret) < 0 ? titan_fail_errno(err, "cannot remove '%s'", name) : TITAN_OK;
}

/* Can a run with the recipe of `info` have gone on from a checkpoint with the recipe of `there`? */
static bool continues(const struct checkpoint_info *info, const struct checkpoint_info *there)
{
    _cleanup_free_ struct recipe *r = NULL;
    if (there->recipe_hash == info->recipe_hash)
        return true;
    if (!(r = malloc(sizeof(*r))))
        return false;
    recipe_init(r);
    return recipe_parse(r, info->recipe, "recipe", NULL) == TITAN_OK && recipe_resolve(r, NULL) == TITAN_OK &&
           recipe_continues(r, there->recipe_hash, there->recipe, NULL);
}

/* Gives the folder its final name. A run that was set back may have left a complete checkpoint of the same step. The
 * new folder takes that checkpoint's place, in one move, or in two if the file system cannot exchange names. Then the
 * old checkpoint is removed. A checkpoint of another user or recipe is not replaced. */
static titan_status publish(int at, const char *folder, const char *name, const struct checkpoint_info *info,
                            struct titan_error *err)
{
    _cleanup_(checkpoint_info_clear) struct checkpoint_info there = {0};
    if (renameat(at, folder, at, name) == 0)
        return TITAN_OK;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return titan_fail_errno(err, "cannot rename '%s' to '%s'", folder, name);
    const bool read = checkpoint_read_info_at(at, info->step, &there, NULL) == TITAN_OK;
    if (read && there.owner[0] && strcmp(there.owner, info->owner) != 0)
        return titan_fail(err, TITAN_ECONFLICT, "'%s' is there already and was written by another user", name);
    if (read && !continues(info, &there))
        return titan_fail(err, TITAN_ECONFLICT, "'%s' is there already and was written with another recipe", name);
    if (renameat2(at, folder, at, name, RENAME_EXCHANGE) == 0)
        return dir_remove_at(at, folder, err);
    if (errno != EINVAL && errno != ENOSYS)
        return titan_fail_errno(err, "cannot exchange '%s' and '%s'", folder, name);
    char gone[2 * NAME_BYTES]; /* NFS and others cannot exchange names */
    TRY(move_aside(at, name, gone, err));
    if (renameat(at, folder, at, name) < 0) {
        const titan_status status = titan_fail_errno(err, "cannot rename '%s' to '%s'", folder, name);
        (void)!renameat(at, gone, at, name);
        return status;
    }
    return dir_remove_at(at, gone, err);
}

titan_status checkpoint_commit(int at, const char *dir, struct checkpoint_info *info,
                               const struct checkpoint_parts *parts, char *ret_path, struct titan_error *err)
{
    titan_assert(parts->n >= 1 && parts->n_specs >= 0);
    char folder[NAME_BYTES], name[NAME_BYTES], path[PATH_MAX];
    _cleanup_fd_ int own = -1, inside = -1;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct manifest m = {.info = *info, .tensors = (struct tensor_spec *)parts->specs, .ntensors = parts->n_specs};
    unfinished_name(info, folder);
    (void)snprintf(name, sizeof(name), CHECKPOINT_NAME, info->step);
    TRY(checkpoint_path(path, dir, info->step, err));
    TRY(enter(&at, &own, dir, err));
    titan_status status = dir_open_at(at, folder, false, &inside, err);
    if (status == TITAN_OK && !(m.files = calloc((size_t)parts->n, sizeof(*m.files))))
        status = titan_fail(err, TITAN_ENOMEM, "no memory for %d entries", parts->n);

    /* Writes manifest.json into the unfinished folder, durably. */
    info->bytes = 0;
    for (int r = 0; r < parts->n && status == TITAN_OK; r++) {
        const struct buf *entry = &parts->entries[r];
        status = manifest_parse_file(entry->data ? entry->data : "", entry->len, &m, &m.files[r], err);
        if (status != TITAN_OK) {
            status = titan_error_wrap(err, "manifest entry of rank %d", r);
            break;
        }
        m.nfiles++;
        info->bytes += m.files[r].bytes;
    }
    titan_assert(m.nfiles <= parts->n);
    if (status == TITAN_OK)
        status = manifest_check_cover(&m, err);
    if (status == TITAN_OK)
        status = manifest_print(&m, &text, err);
    if (status == TITAN_OK)
        status = file_replace_at(inside, MANIFEST_NAME, text.data, text.len, err);
    for (int r = 0; r < m.nfiles; r++)
        manifest_file_clear(&m.files[r]);
    free(m.files);

    if (status == TITAN_OK)
        status = publish(at, folder, name, info, err);
    if (status == TITAN_OK && fsync(at) < 0 && errno != EINVAL)
        status = titan_fail_errno(err, "cannot sync the folder");
    if (status != TITAN_OK) {
        (void)titan_error_wrap(err, "'%s'", dir);
        return status;
    }
    memcpy(ret_path, path, PATH_MAX);
    return TITAN_OK;
}

titan_status checkpoint_drop(int at, const char *dir, const struct checkpoint_info *info, struct titan_error *err)
{
    char name[NAME_BYTES];
    _cleanup_fd_ int own = -1;
    unfinished_name(info, name);
    TRY(enter(&at, &own, dir, err));
    return dir_remove_at(at, name, err);
}

/* --- the folder of checkpoints ------------------------------------------------------------------------------------ */

void checkpoint_sweep(int at, uint64_t epoch)
{
    titan_assert(at >= 0);
    _cleanup_(close_dir) DIR *d = list_at(at);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        uint64_t step, of_epoch;
        const char *rest;
        const bool removed = strncmp(e->d_name, ".removed-", 9) == 0;
        const bool unfinished = strncmp(e->d_name, ".step-", 6) == 0 && /* ".step-00000120.EPOCH" */
                                parse_number(e->d_name + 6, '.', &step, &rest) &&
                                parse_number(rest + 1, '\0', &of_epoch, &rest);
        if (removed || (unfinished && of_epoch < epoch))
            (void)!dir_remove_at(dirfd(d), e->d_name, NULL);
    }
}

static int compare_steps_down(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

titan_status checkpoint_steps(int at, const char *dir, uint64_t **ret_steps, size_t *ret_n, struct titan_error *err)
{
    titan_assert(at >= 0 || dir);
    _cleanup_fd_ int own = at < 0 ? file_open_named(dir, O_RDONLY | O_DIRECTORY) : -1;
    _cleanup_(close_dir) DIR *d = at < 0 && own < 0 ? NULL : list_at(at < 0 ? own : at);
    if (!d)
        return titan_fail_errno(err, "cannot list '%s'", dir);
    _cleanup_free_ uint64_t *steps = NULL;
    size_t n = 0, cap = 0;
    struct dirent *e;
    while ((errno = 0, e = readdir(d))) {
        uint64_t step;
        if (!parse_step_name(e->d_name, &step))
            continue;
        if (!VEC_PUSH(steps, n, cap, step))
            return titan_fail(err, TITAN_ENOMEM, "no memory to list '%s'", dir);
    }
    if (errno != 0) /* the list is incomplete */
        return titan_fail_errno(err, "cannot list '%s'", dir);
    if (n > 0)
        qsort(steps, n, sizeof(*steps), compare_steps_down);
    *ret_steps = TAKE(steps);
    *ret_n = n;
    return TITAN_OK;
}

/* Turns TITAN_EINVAL into TITAN_ECORRUPT: an entry that is not a regular file or folder was not written as part of a
 * checkpoint. */
static titan_status as_damage(titan_status status, struct titan_error *err)
{
    if (status != TITAN_EINVAL)
        return status;
    if (err)
        err->status = TITAN_ECORRUPT;
    return TITAN_ECORRUPT;
}

/* at: the checkpoint's folder; path names it in messages. */
static titan_status read_manifest_at(int at, const char *path, struct manifest *ret, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    titan_status status = as_damage(file_read_at(at, MANIFEST_NAME, O_NOFOLLOW, MANIFEST_BYTES_MAX, &text, err), err);
    if (status != TITAN_OK) {
        (void)titan_error_wrap(err, "'%s'", path);
        return status;
    }
    status = manifest_parse(text.data ? text.data : "", text.len, ret, err);
    if (status != TITAN_OK) {
        manifest_clear(ret);
        (void)titan_error_wrap(err, "'%s/" MANIFEST_NAME "'", path);
        return status;
    }
    return TITAN_OK;
}

/* ret_at: gets the checkpoint's folder, left open for reading shards; NULL: not wanted. */
static titan_status read_manifest(const char *path, struct manifest *ret, int *ret_at, struct titan_error *err)
{
    char dir[PATH_MAX];
    _cleanup_fd_ int above = -1, at = -1;
    const char *slash = strrchr(path, '/');
    *ret = (struct manifest){0};
    if (slash) {
        if ((size_t)snprintf(dir, sizeof(dir), "%.*s", slash == path ? 1 : (int)(slash - path), path) >= sizeof(dir))
            return titan_fail(err, TITAN_EINVAL, "path too long: '%s'", path);
        TRY(open_dir(dir, &above, err));
    }
    /* The checkpoint's own folder must not be a link. The path to the folder above it may contain links. */
    const titan_status opened =
        as_damage(dir_open_at(slash ? above : AT_FDCWD, slash ? slash + 1 : path, false, &at, err), err);
    if (opened != TITAN_OK && slash)
        (void)titan_error_wrap(err, "'%s'", dir);
    TRY(opened);
    TRY(read_manifest_at(at, path, ret, err));
    if (ret_at)
        *ret_at = TAKE_FD(at);
    return TITAN_OK;
}

/* Does the folder's name agree with the step? Only a folder that is named by a step can disagree. */
static bool name_agrees(const char *path, uint64_t step)
{
    const char *slash = strrchr(path, '/');
    uint64_t named;
    return !parse_step_name(slash ? slash + 1 : path, &named) || named == step;
}

titan_status checkpoint_check(const char *path, uint64_t step, struct titan_error *err)
{
    _cleanup_(manifest_clear) struct manifest m = {0};
    const titan_status status = as_damage(read_manifest(path, &m, NULL, err), err);
    if (status == TITAN_EVERSION && err)
        err->status = TITAN_ECORRUPT;
    TRY(status == TITAN_EVERSION ? TITAN_ECORRUPT : status);
    if (m.info.step != step)
        return titan_fail(err, TITAN_ECORRUPT, "'%s': its manifest is of step %" PRIu64, path, m.info.step);
    return TITAN_OK;
}

titan_status checkpoint_list_folder(int at, const char *dir, struct checkpoint_line_list *ret, struct titan_error *err)
{
    titan_assert(at >= 0 || dir);
    _cleanup_fd_ int own = at < 0 ? file_open_named(dir, O_RDONLY | O_DIRECTORY) : -1;
    *ret = (struct checkpoint_line_list){0};
    if (at < 0 && own < 0)
        return titan_fail_errno(err, "cannot list '%s'", dir);
    const titan_status status = checkpoint_line_list(at < 0 ? own : at, ret, err);
    return status == TITAN_OK ? status : titan_error_wrap(err, "'%s'", dir);
}

void checkpoint_log_left(const struct log *log, const char *dir, const struct checkpoint_line_list *list)
{
    if (list->n_left > 0 && list->line.n > 0)
        tlog_warn(log, "checkpoints left out, the run has gone back since",
                  "count=%zu steps=%" PRIu64 "-%" PRIu64 " back_to_step=%" PRIu64 " path=\"%s\"", list->n_left,
                  list->left[list->n_left - 1], list->left[0], list->line.branch[list->line.n - 1].from, dir);
}

titan_status checkpoint_latest(const char *dir, const struct log *log, char *ret_path, uint64_t *ret_step,
                               struct titan_error *err)
{
    _cleanup_(checkpoint_line_list_clear) struct checkpoint_line_list list = {0};
    TRY(checkpoint_list_folder(-1, dir, &list, err));
    if (log)
        checkpoint_log_left(log, dir, &list);
    for (size_t i = 0; i < list.n; i++) {
        char path[PATH_MAX];
        struct titan_error fault = {0};
        TRY(checkpoint_path(path, dir, list.steps[i], err));
        if (checkpoint_check(path, list.steps[i], &fault) != TITAN_OK) {
            if (log)
                tlog_warn(log, "checkpoint refused", "path=\"%s\" reason=\"%s\"", path, fault.msg);
            continue;
        }
        memcpy(ret_path, path, PATH_MAX);
        *ret_step = list.steps[i];
        return TITAN_OK;
    }
    return titan_fail(err, TITAN_ENOTFOUND, "no complete checkpoint in '%s'", dir);
}

titan_status checkpoint_place(const char *path, char *ret_path, bool *ret_itself, struct titan_error *err)
{
    char manifest[PATH_MAX], real[PATH_MAX];
    if (!file_refuses_links() && realpath(path, real)) /* a link of the caller's own is fine */
        path = real;
    if ((size_t)snprintf(manifest, sizeof(manifest), "%s/" MANIFEST_NAME, path) >= sizeof(manifest))
        return titan_fail(err, TITAN_EINVAL, "path of the checkpoint is too long");
    *ret_itself = access(manifest, F_OK) == 0;
    (void)snprintf(ret_path, PATH_MAX, "%s", path);
    return TITAN_OK;
}

titan_status checkpoint_find(const char *path, char *ret_path, struct titan_error *err)
{
    char dir[PATH_MAX];
    struct log log;
    uint64_t step;
    bool itself;
    TRY(checkpoint_place(path, dir, &itself, err));
    log_init(&log, "checkpoint", "%s", "");
    if (itself || checkpoint_latest(dir, &log, ret_path, &step, NULL) != TITAN_OK)
        memcpy(ret_path, dir, PATH_MAX);
    return TITAN_OK;
}

titan_status checkpoint_read_info(const char *path, struct checkpoint_info *ret, struct titan_error *err)
{
    _cleanup_(manifest_clear) struct manifest m = {0};
    TRY(read_manifest(path, &m, NULL, err));
    if (!name_agrees(path, m.info.step))
        return titan_fail(err, TITAN_ECORRUPT, "'%s': its manifest is of step %" PRIu64, path, m.info.step);
    *ret = m.info;
    m.info.recipe = NULL;
    return TITAN_OK;
}

titan_status checkpoint_read_info_at(int at, uint64_t step, struct checkpoint_info *ret, struct titan_error *err)
{
    titan_assert(at >= 0);
    _cleanup_(manifest_clear) struct manifest m = {0};
    _cleanup_fd_ int inside = -1;
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof(name), CHECKPOINT_NAME, step);
    TRY(as_damage(dir_open_at(at, name, false, &inside, err), err));
    TRY(read_manifest_at(inside, name, &m, err));
    *ret = m.info;
    m.info.recipe = NULL;
    return TITAN_OK;
}

void checkpoint_info_clear(struct checkpoint_info *info)
{
    free(info->recipe);
    info->recipe = NULL;
}

/* steps: steps of one run, newest first. Returns the index of the first step below `before` whose checkpoint can be
 * resumed from; n: none. Only manifests and file sizes are checked. */
static size_t newest_to_resume(int at, const uint64_t *steps, size_t n, uint64_t before)
{
    for (size_t i = 0; i < n; i++) {
        _cleanup_(manifest_clear) struct manifest m = {0};
        _cleanup_fd_ int inside = -1;
        char name[NAME_BYTES];
        struct stat st;
        (void)snprintf(name, sizeof(name), CHECKPOINT_NAME, steps[i]);
        if (steps[i] >= before || dir_open_at(at, name, false, &inside, NULL) != TITAN_OK ||
            read_manifest_at(inside, name, &m, NULL) != TITAN_OK)
            continue;
        bool whole = !m.info.model_only && m.info.step == steps[i];
        for (int f = 0; f < m.nfiles && whole; f++)
            whole = fstatat(inside, m.files[f].name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
                    (uint64_t)st.st_size == m.files[f].bytes;
        if (whole)
            return i;
    }
    return n;
}

titan_status checkpoint_prune(int at, const char *dir, int keep, const struct checkpoint_info *of,
                              struct spared_checkpoints *ret_spared, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf wanted = BUF_INIT;
    _cleanup_free_ uint64_t *steps = NULL;
    _cleanup_fd_ int own = -1;
    char name[NAME_BYTES], gone[2 * NAME_BYTES];
    size_t n = 0, ours = 0;
    *ret_spared = (struct spared_checkpoints){0};
    if (keep <= 0)
        return TITAN_OK;
    manifest_print_writer(of->recipe_hash, of->owner, &wanted);
    if (buf_failed(&wanted))
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    TRY(enter(&at, &own, dir, err));
    TRY(checkpoint_steps(at, dir, &steps, &n, err));

    /* Collects the steps of this owner's and recipe's checkpoints. A manifest may be long, but has both near its
     * beginning. */
    for (size_t i = 0; i < n && n > (size_t)keep; i++) {
        char begin[2048];
        _cleanup_fd_ int inside = -1, fd = -1;
        (void)snprintf(name, sizeof(name), CHECKPOINT_NAME, steps[i]);
        if (steps[i] > of->step || dir_open_at(at, name, false, &inside, NULL) != TITAN_OK ||
            file_open_regular(inside, MANIFEST_NAME, O_NOFOLLOW, &fd, NULL) != TITAN_OK)
            continue;
        const ssize_t got = pread(fd, begin, sizeof(begin) - 1, 0);
        begin[MAX(got, 0)] = '\0';
        if (strstr(begin, wanted.data))
            steps[ours++] = steps[i];
    }
    if (ours <= (size_t)keep)
        return TITAN_OK;

    const uint64_t since = skipped_since(&of->skipped, of->step);
    const size_t resumable = newest_to_resume(at, steps, ours, UINT64_MAX);
    const size_t sound = since != 0 ? newest_to_resume(at, steps, ours, since) : ours;
    for (size_t i = (size_t)keep; i < ours; i++) {
        if (i == resumable)
            ret_spared->resumable = steps[i];
        if (i == sound)
            ret_spared->sound = steps[i];
        if (i == resumable || i == sound)
            continue;
        (void)snprintf(name, sizeof(name), CHECKPOINT_NAME, steps[i]);
        TRY(move_aside(at, name, gone, err));
        TRY(dir_remove_at(at, gone, err));
        if (fsync(at) < 0 && errno != EINVAL)
            return titan_fail_errno(err, "cannot sync the folder of '%s'", name);
    }
    return TITAN_OK;
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

static titan_status go_on(struct apart_watch *watch, struct titan_error *err)
{
    progress_action();
    if (watch)
        atomic_fetch_add_explicit(&watch->moved, 1, memory_order_relaxed);
    if (watch && atomic_load(&watch->stop))
        return titan_fail(err, TITAN_EREVOKED, "the epoch was revoked while its checkpoint was read");
    return TITAN_OK;
}

/* Opens and checks a file. It is opened only once, so that the checked file is also the file that is read. */
static titan_status open_verified(int at, const struct manifest_file *file, struct apart_watch *watch, int *ret_fd,
                                  struct titan_error *err)
{
    _cleanup_fd_ int fd = -1;
    struct stat st;
    const titan_status opened = as_damage(file_open_regular(at, file->name, O_NOFOLLOW, &fd, err), err);
    if (opened == TITAN_ENOTFOUND)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is missing", file->name);
    TRY(opened);
    if (fstat(fd, &st) < 0)
        return titan_fail_errno(err, "cannot look at '%s'", file->name);
    if ((uint64_t)st.st_size != file->bytes)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' has %" PRIu64 " bytes, its manifest says %" PRIu64, file->name,
                          (uint64_t)st.st_size, file->bytes);
    _cleanup_free_ char *block = malloc(CHECK_BYTES);
    if (!block)
        return titan_fail(err, TITAN_ENOMEM, "no memory to read '%s'", file->name);
    uint32_t crc = 0;
    for (;;) {
        ssize_t n = read(fd, block, CHECK_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return titan_fail_errno(err, "cannot read '%s'", file->name);
        if (n == 0)
            break;
        crc = crc32c(crc, block, (size_t)n);
        TRY(go_on(watch, err));
    }
    if (crc != file->crc)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is damaged: crc32c %08x, its manifest says %08x", file->name, crc,
                          file->crc);
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}

/* The wanted slices, sorted by the manifest's tensors. The slices of tensor t are list[first[t]..first[t+1]). */
struct wanted {
    struct shard_slice *list;
    int *first;
    struct apart_watch *watch;
};

static void clear_wanted(struct wanted *w)
{
    free(w->list);
    free(w->first);
}

/* Finds the part's tensors in the manifest, each with its shape, and sorts the part's slices by them. */
static titan_status sort_wanted(const struct manifest *m, const struct checkpoint_part *part, struct wanted *ret,
                                struct titan_error *err)
{
    const int n = part->n_slices;
    _cleanup_free_ int *map = calloc((size_t)part->n_specs + 1, sizeof(*map)); /* indices in the manifest */
    ret->list = calloc((size_t)n + 1, sizeof(*ret->list));
    ret->first = calloc((size_t)m->ntensors + 2, sizeof(*ret->first));
    if (!map || !ret->list || !ret->first)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %d tensors and %d pieces", part->n_specs, n);
    for (int i = 0; i < part->n_specs; i++) {
        const struct tensor_spec *spec = &part->specs[i];
        /* Most times the same program wrote the checkpoint. Then the tensor has the same place in both lists. */
        const bool same = i < m->ntensors && strcmp(m->tensors[i].name, spec->name) == 0;
        map[i] = same ? i : manifest_find_tensor(m, spec->name);
        if (map[i] < 0)
            return titan_fail(err, TITAN_ECONFLICT, "tensor '%s' is not in the checkpoint", spec->name);
        titan_assert(map[i] < m->ntensors);
        const struct tensor_spec *t = &m->tensors[map[i]];
        if (t->ndim != spec->ndim || memcmp(t->shape, spec->shape, (size_t)t->ndim * sizeof(t->shape[0])) != 0)
            return titan_fail(err, TITAN_ECONFLICT, "tensor '%s' has another shape in the checkpoint", t->name);
    }

    int *const next = ret->first + 1; /* next[t]: where tensor t's next slice goes; in the end, where its slices end */
    for (int i = 0; i < n; i++) {
        assert_inside(part, &part->slices[i]);
        next[map[part->slices[i].tensor] + 1]++;
    }
    for (int t = 0; t < m->ntensors; t++)
        next[t + 1] += next[t];
    for (int i = 0; i < n; i++) {
        const int tensor = map[part->slices[i].tensor];
        struct shard_slice *p = &ret->list[next[tensor]++];
        *p = part->slices[i];
        p->tensor = tensor;
    }
    titan_assert(ret->first[0] == 0 && ret->first[m->ntensors] == n);
    return TITAN_OK;
}

struct stored {
    const struct safetensors *file;
    const struct safetensors_tensor *tensor;
    struct shard_slice slice;
    int64_t place; /* where the slice's data begins in the file's tensor */
};

/* Reads elements [from, from+n) of the stored box. */
static titan_status read_stored(const struct stored *s, int64_t from, int64_t n, float *out, struct titan_error *err)
{
    titan_assert(from >= 0 && n > 0 && from + n <= s->slice.rows * s->slice.cols);
    return safetensors_read_floats(s->file, s->tensor, (uint64_t)(s->place + from), out, (size_t)n, err);
}

/* Reads the box that the stored and the wanted slice have in common. It is read in one go if it is contiguous on both
 * sides, otherwise by rows. */
static titan_status read_overlap(const struct stored *s, const struct shard_slice *want,
                                 const struct shard_slice *common, struct titan_error *err)
{
    titan_assert(want->data && common->rows > 0 && common->cols <= s->slice.cols && common->cols <= want->cols);
    const int64_t from = shard_slice_place(&s->slice, common), cols = common->cols;
    float *out = want->data + shard_slice_place(want, common);
    if (common->rows == 1 || (cols == s->slice.cols && cols == want->cols))
        return read_stored(s, from, common->rows * cols, out, err);
    if (cols < s->slice.cols) {
        for (int64_t r = 0; r < common->rows; r++)
            TRY(read_stored(s, from + r * s->slice.cols, cols, out + r * want->cols, err));
        return TITAN_OK;
    }
    /* Whole rows of the box go into rows of a wider matrix, through a buffer. */
    const int64_t at_once = MAX((int64_t)(CHECK_BYTES / sizeof(float)) / cols, 1);
    _cleanup_free_ float *block = malloc((size_t)(at_once * cols) * sizeof(*block));
    if (!block)
        return titan_fail(err, TITAN_ENOMEM, "no memory to read a checkpoint");
    for (int64_t r = 0; r < common->rows; r += at_once) {
        const int64_t n = MIN(at_once, common->rows - r);
        TRY(read_stored(s, from + r * cols, n * cols, block, err));
        for (int64_t i = 0; i < n; i++)
            memcpy(out + (r + i) * want->cols, block + i * cols, (size_t)cols * sizeof(*out));
    }
    return TITAN_OK;
}

static titan_status find_stored(const struct safetensors *st, const struct manifest *m,
                                const struct manifest_slice *slice, struct stored *ret, struct titan_error *err)
{
    char name[MANIFEST_SLICE_NAME_MAX];
    *ret = (struct stored){.file = st, .slice = slice->slice};
    manifest_slice_name(m, slice, name, &ret->place);
    const struct safetensors_tensor *t = ret->tensor = safetensors_find(st, name);
    if (!t || strcmp(t->dtype, dtype_of(m, &ret->slice)) != 0 ||
        t->bytes < (uint64_t)(ret->place + ret->slice.rows * ret->slice.cols) * safetensors_dtype_bytes(t->dtype))
        return titan_fail(err, TITAN_ECORRUPT, "piece '%s' is not as the manifest says", name);
    return TITAN_OK;
}

static bool slice_needed(const struct shard_slice *slice, const struct wanted *wanted)
{
    titan_assert(slice->tensor >= 0);
    for (int i = wanted->first[slice->tensor]; i < wanted->first[slice->tensor + 1]; i++)
        if (shard_slice_overlap(slice, &wanted->list[i]).rows > 0)
            return true;
    return false;
}

static void close_safetensors(struct safetensors **st)
{
    safetensors_close(*st);
}

static titan_status load_file(int at, const struct manifest *m, const struct manifest_file *file,
                              const struct wanted *wanted, struct titan_error *err)
{
    int fd = -1;
    TRY(open_verified(at, file, wanted->watch, &fd, err));
    _cleanup_(close_safetensors) struct safetensors *st = NULL;
    TRY(safetensors_open_fd(fd, file->name, &st, err));
    titan_status status = TITAN_OK;
    for (int p = 0; p < file->nslices && status == TITAN_OK; p++) {
        struct stored s;
        TRY(go_on(wanted->watch, err));
        if (!slice_needed(&file->slices[p].slice, wanted))
            continue;
        status = find_stored(st, m, &file->slices[p], &s, err);
        for (int i = wanted->first[s.slice.tensor]; i < wanted->first[s.slice.tensor + 1] && status == TITAN_OK; i++) {
            const struct shard_slice common = shard_slice_overlap(&s.slice, &wanted->list[i]);
            if (common.rows > 0)
                status = read_overlap(&s, &wanted->list[i], &common, err);
        }
    }
    if (status != TITAN_OK && err)
        (void)titan_error_wrap(err, "'%s'", file->name);
    return status;
}

titan_status checkpoint_load(const char *path, const struct checkpoint_part *part, struct apart_watch *watch,
                             struct titan_error *err)
{
    _cleanup_(manifest_clear) struct manifest m = {0};
    _cleanup_(clear_wanted) struct wanted wanted = {.watch = watch};
    _cleanup_fd_ int at = -1;
    TRY(read_manifest(path, &m, &at, err));
    TRY(failpoint("checkpoint.read", err));
    titan_status status = sort_wanted(&m, part, &wanted, err);
    for (int f = 0; f < m.nfiles && status == TITAN_OK; f++) {
        bool needed = false;
        for (int p = 0; p < m.files[f].nslices && !needed; p++)
            needed = slice_needed(&m.files[f].slices[p].slice, &wanted);
        if (needed)
            status = load_file(at, &m, &m.files[f], &wanted, err);
    }
    if (status != TITAN_OK)
        (void)titan_error_wrap(err, "'%s'", path);
    return status;
}

/* --- verifying ---------------------------------------------------------------------------------------------------- */

static titan_status verify_file(int at, const struct manifest *m, const struct manifest_file *file,
                                struct verified_checkpoint *v, struct titan_error *err)
{
    int fd = -1;
    TRY(open_verified(at, file, NULL, &fd, err));
    _cleanup_(close_safetensors) struct safetensors *st = NULL;
    TRY(safetensors_open_fd(fd, file->name, &st, err));
    _cleanup_free_ float *block = malloc(CHECK_BYTES);
    if (!block)
        return titan_fail(err, TITAN_ENOMEM, "no memory to read '%s'", file->name);
    titan_status status = TITAN_OK;
    for (int p = 0; p < file->nslices && status == TITAN_OK; p++) {
        struct stored s;
        status = find_stored(st, m, &file->slices[p], &s, err);
        const int64_t all = s.slice.rows * s.slice.cols, at_once = (int64_t)(CHECK_BYTES / sizeof(*block));
        for (int64_t from = 0, n; from < all && status == TITAN_OK; from += n) {
            uint64_t count = 0;
            n = MIN(at_once, all - from);
            status = read_stored(&s, from, n, block, err);
            for (int64_t i = 0; i < n && status == TITAN_OK; i++) {
                uint32_t bits;
                memcpy(&bits, &block[i], sizeof bits);
                count += (bits & 0x7f800000u) == 0x7f800000u; /* the exponent is all ones: infinite, or no number */
            }
            if (count > 0 && v->not_finite == 0)
                (void)snprintf(v->not_finite_name, sizeof v->not_finite_name, "%s", m->tensors[s.slice.tensor].name);
            v->not_finite += count;
        }
    }
    if (status != TITAN_OK)
        (void)titan_error_wrap(err, "'%s'", file->name);
    return status;
}

/* Is the status a fault of the checkpoint, not of the program that reads it? */
static bool is_fault(titan_status status)
{
    return status == TITAN_ECORRUPT || status == TITAN_EIO || status == TITAN_EPERM || status == TITAN_ENOTFOUND ||
           status == TITAN_EVERSION;
}

titan_status checkpoint_verify(const char *path, struct buf *faults, struct verified_checkpoint *ret,
                               struct titan_error *err)
{
    _cleanup_(manifest_clear) struct manifest m = {0};
    _cleanup_fd_ int at = -1;
    struct titan_error fault = {0};
    *ret = (struct verified_checkpoint){0};
    titan_status status = read_manifest(path, &m, &at, &fault);
    const int n = status == TITAN_OK ? m.nfiles : 0;
    for (int f = 0; status == TITAN_OK || is_fault(status); f++) {
        if (status != TITAN_OK)
            buf_printf(faults, "%s\n", fault.msg);
        if (f == n)
            break;
        status = verify_file(at, &m, &m.files[f], ret, &fault);
    }
    if (status != TITAN_OK && !is_fault(status)) {
        if (err)
            *err = fault;
        return status;
    }
    if (n > 0 && !name_agrees(path, m.info.step))
        buf_printf(faults, "its manifest is of step %" PRIu64 "\n", m.info.step);
    ret->info = m.info;
    m.info.recipe = NULL;
    ret->files = n;
    return buf_failed(faults) ? titan_fail(err, TITAN_ENOMEM, "no memory to tell what is damaged") : TITAN_OK;
}
