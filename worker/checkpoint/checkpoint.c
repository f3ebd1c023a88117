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
#include "base/file.h"
#include "base/progress.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors.h"

#define STEP_FORMAT "step-%08" PRIu64
#define CHECK_BYTES ((size_t)1 << 20)

/* --- names -------------------------------------------------------------------------------------------------------- */

static titan_status join(char out[PATH_MAX], struct titan_error *err, const char *dir, const char *name)
{
    if ((size_t)snprintf(out, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "path of '%s' in '%.64s...' is too long", name, dir);
    return TITAN_OK;
}

titan_status checkpoint_unfinished_path(char *ret_path, const char *dir, const struct checkpoint_info *info,
                                        struct titan_error *err)
{
    char name[80];
    (void)snprintf(name, sizeof(name), "." STEP_FORMAT ".%" PRIu64, info->step, info->epoch);
    return join(ret_path, err, dir, name);
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

/* ".step-00000120.EPOCH" */
static bool parse_unfinished_name(const char *name, uint64_t *ret_epoch)
{
    const char *rest;
    uint64_t step;
    return strncmp(name, ".step-", 6) == 0 && parse_number(name + 6, '.', &step, &rest) &&
           parse_number(rest + 1, '\0', ret_epoch, &rest);
}

static void close_dir(DIR **dir)
{
    if (*dir)
        (void)closedir(*dir);
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static titan_status write_pieces(const char *path, const struct manifest *m, const struct piece *pieces,
                                 struct manifest_file *file, struct titan_error *err)
{
    const size_t n = (size_t)file->npieces;
    _cleanup_free_ struct safetensors_entry *entries = calloc(n + 1, sizeof(*entries));
    _cleanup_free_ char(*names)[MANIFEST_PIECE_NAME_MAX] = calloc(n + 1, sizeof(*names));
    if (!entries || !names)
        return titan_fail(err, TITAN_ENOMEM, "no memory to write %zu pieces", n);
    for (size_t i = 0; i < n; i++) {
        int64_t place;
        manifest_piece_name(m, &file->pieces[i], names[i], &place);
        entries[i] = (struct safetensors_entry){
            .name = names[i], .dtype = "F32", .shape = {pieces[i].rows, pieces[i].cols}, .ndim = 2};
    }
    struct safetensors_writer *w = NULL;
    TRY(safetensors_create(path, entries, n, NULL, &w, err));
    for (size_t i = 0; i < n; i++) {
        titan_status status =
            safetensors_append(w, pieces[i].data, (size_t)(pieces[i].rows * pieces[i].cols) * sizeof(float), err);
        if (status != TITAN_OK) {
            safetensors_abandon(w);
            return status;
        }
    }
    return safetensors_finish(w, &file->bytes, &file->crc, err);
}

/* Of a piece of ours: it lies in its tensor. */
static void assert_inside(const struct tensor_spec *specs, int nspecs, const struct piece *p)
{
    int64_t rows, cols;
    titan_assert(p->tensor >= 0 && p->tensor < nspecs);
    tensor_matrix(&specs[p->tensor], &rows, &cols);
    titan_assert(p->row >= 0 && p->rows >= 0 && p->row + p->rows <= rows);
    titan_assert(p->col >= 0 && p->cols >= 0 && p->col + p->cols <= cols);
}

titan_status checkpoint_write_shard(const char *dir, const struct checkpoint_info *info, int rank,
                                    const struct tensor_spec *specs, int nspecs, const struct piece *pieces,
                                    int npieces, struct buf *entry, struct titan_error *err)
{
    char folder[PATH_MAX], path[PATH_MAX];
    const struct manifest m = {.tensors = (struct tensor_spec *)specs, .ntensors = nspecs};
    _cleanup_(manifest_file_clear) struct manifest_file file = {0};
    _cleanup_free_ struct piece *kept = calloc((size_t)npieces + 1, sizeof(*kept));
    file.pieces = calloc((size_t)npieces + 1, sizeof(*file.pieces));
    if (!kept || !file.pieces)
        return titan_fail(err, TITAN_ENOMEM, "no memory to write %d pieces", npieces);
    for (int i = 0; i < npieces; i++) {
        assert_inside(specs, nspecs, &pieces[i]);
        if (pieces[i].rows == 0 || pieces[i].cols == 0)
            continue;
        kept[file.npieces] = pieces[i];
        file.pieces[file.npieces++] = (struct manifest_piece){.box = pieces[i], .range = -1};
    }
    TRY(checkpoint_unfinished_path(folder, dir, info, err));
    (void)snprintf(file.name, sizeof(file.name), "rank-%05d.safetensors", rank);
    TRY(join(path, err, folder, file.name));
    TRY(dir_make(folder, err));
    TRY(write_pieces(path, &m, kept, &file, err));
    TRY(dir_sync(folder, err));
    manifest_print_file(&file, entry);
    return buf_failed(entry) ? titan_fail(err, TITAN_ENOMEM, "no memory for a manifest entry") : TITAN_OK;
}

/* manifest.json of the unfinished folder, durable. */
static titan_status write_manifest(const char *folder, struct checkpoint_info *info, const struct tensor_spec *specs,
                                   int nspecs, const struct buf *entries, int world, struct titan_error *err)
{
    struct manifest m = {.info = *info, .tensors = (struct tensor_spec *)specs, .ntensors = nspecs};
    char path[PATH_MAX];
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    titan_status status = TITAN_OK;
    m.files = calloc((size_t)world, sizeof(*m.files));
    if (!m.files)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %d entries", world);
    info->bytes = 0;
    for (int r = 0; r < world && status == TITAN_OK; r++) {
        status = manifest_parse_file(entries[r].data ? entries[r].data : "", entries[r].len, &m, &m.files[r], err);
        if (status != TITAN_OK) {
            status = titan_error_wrap(err, "manifest entry of rank %d", r);
            break;
        }
        m.nfiles++;
        info->bytes += m.files[r].bytes;
    }
    if (status == TITAN_OK)
        status = manifest_check_cover(&m, err);
    if (status == TITAN_OK)
        status = manifest_print(&m, &text, err);
    if (status == TITAN_OK)
        status = join(path, err, folder, MANIFEST_NAME);
    if (status == TITAN_OK)
        status = file_replace(path, text.data, text.len, err);
    for (int r = 0; r < m.nfiles; r++)
        manifest_file_clear(&m.files[r]);
    free(m.files);
    return status;
}

/* Give the folder its final name. A complete checkpoint of the same step, left by a run that was set back, is exchanged
 * for the new one in one move and then removed. */
static titan_status publish(const char *folder, const char *path, struct titan_error *err)
{
    if (rename(folder, path) == 0)
        return TITAN_OK;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return titan_fail_errno(err, "cannot rename '%s' to '%s'", folder, path);
    if (renameat2(AT_FDCWD, folder, AT_FDCWD, path, RENAME_EXCHANGE) < 0)
        return titan_fail_errno(err, "cannot exchange '%s' and '%s'", folder, path);
    return dir_remove(folder, err);
}

titan_status checkpoint_commit(const char *dir, struct checkpoint_info *info, const struct tensor_spec *specs,
                               int nspecs, const struct buf *entries, int world, char *ret_path,
                               struct titan_error *err)
{
    char folder[PATH_MAX], path[PATH_MAX], name[64];
    TRY(checkpoint_unfinished_path(folder, dir, info, err));
    (void)snprintf(name, sizeof(name), STEP_FORMAT, info->step);
    TRY(join(path, err, dir, name));
    TRY(write_manifest(folder, info, specs, nspecs, entries, world, err));
    TRY(dir_sync(folder, err));
    TRY(publish(folder, path, err));
    TRY(dir_sync(dir, err));
    memcpy(ret_path, path, PATH_MAX);
    return TITAN_OK;
}

/* --- the folder of checkpoints ------------------------------------------------------------------------------------ */

void checkpoint_sweep(const char *dir, uint64_t epoch)
{
    _cleanup_(close_dir) DIR *d = opendir(dir);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        uint64_t of_epoch;
        char path[PATH_MAX];
        bool removed = strncmp(e->d_name, ".removed-", 9) == 0;
        if (!removed && !(parse_unfinished_name(e->d_name, &of_epoch) && of_epoch < epoch))
            continue;
        if (join(path, NULL, dir, e->d_name) == TITAN_OK)
            (void)!dir_remove(path, NULL);
    }
}

static int compare_steps_down(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Steps of the folders with a final name, newest first; owned by the caller. */
static titan_status list_steps(const char *dir, uint64_t **ret_steps, size_t *ret_n, struct titan_error *err)
{
    _cleanup_(close_dir) DIR *d = opendir(dir);
    if (!d)
        return titan_fail_errno(err, "cannot list '%s'", dir);
    _cleanup_free_ uint64_t *steps = NULL;
    size_t n = 0, cap = 0;
    struct dirent *e;
    while ((e = readdir(d))) {
        uint64_t step;
        if (!parse_step_name(e->d_name, &step))
            continue;
        if (n == cap) {
            cap = cap ? cap * 2 : 16;
            uint64_t *grown = realloc(steps, cap * sizeof(*steps));
            if (!grown)
                return titan_fail(err, TITAN_ENOMEM, "no memory to list '%s'", dir);
            steps = grown;
        }
        steps[n++] = step;
    }
    if (n > 0)
        qsort(steps, n, sizeof(*steps), compare_steps_down);
    *ret_steps = TAKE(steps);
    *ret_n = n;
    return TITAN_OK;
}

static titan_status read_manifest(const char *path, struct manifest *ret, struct titan_error *err)
{
    char file[PATH_MAX];
    *ret = (struct manifest){0};
    TRY(join(file, err, path, MANIFEST_NAME));
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    TRY(file_read(file, MANIFEST_BYTES_MAX, &text, err));
    titan_status status = manifest_parse(text.data ? text.data : "", text.len, ret, err);
    if (status != TITAN_OK) {
        manifest_clear(ret);
        return titan_error_wrap(err, "'%s'", file);
    }
    return TITAN_OK;
}

titan_status checkpoint_latest(const char *dir, char *ret_path, uint64_t *ret_step, struct titan_error *err)
{
    _cleanup_free_ uint64_t *steps = NULL;
    size_t n = 0;
    TRY(list_steps(dir, &steps, &n, err));
    for (size_t i = 0; i < n; i++) {
        char name[64], path[PATH_MAX];
        (void)snprintf(name, sizeof(name), STEP_FORMAT, steps[i]);
        TRY(join(path, err, dir, name));
        _cleanup_(manifest_clear) struct manifest m = {0};
        if (read_manifest(path, &m, NULL) != TITAN_OK || m.info.step != steps[i])
            continue;
        memcpy(ret_path, path, PATH_MAX);
        *ret_step = steps[i];
        return TITAN_OK;
    }
    return titan_fail(err, TITAN_ENOTFOUND, "no complete checkpoint in '%s'", dir);
}

titan_status checkpoint_read_info(const char *path, struct checkpoint_info *ret, struct titan_error *err)
{
    _cleanup_(manifest_clear) struct manifest m = {0};
    TRY(read_manifest(path, &m, err));
    *ret = m.info;
    m.info.recipe = NULL;
    return TITAN_OK;
}

void checkpoint_info_clear(struct checkpoint_info *info)
{
    free(info->recipe);
    info->recipe = NULL;
}

titan_status checkpoint_remove(const char *path, struct titan_error *err)
{
    char dir[PATH_MAX], gone[PATH_MAX], name[80];
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    uint64_t step;
    if (!parse_step_name(base, &step))
        return titan_fail(err, TITAN_EINVAL, "'%s' is no checkpoint", path);
    (void)snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    (void)snprintf(name, sizeof(name), ".removed-" STEP_FORMAT ".%d", step, (int)getpid());
    TRY(join(gone, err, slash == path ? "" : dir, name));
    if (rename(path, gone) < 0)
        return titan_fail_errno(err, "cannot remove '%s'", path);
    TRY(dir_remove(gone, err));
    return dir_sync(slash == path ? "/" : dir, err);
}

titan_status checkpoint_prune(const char *dir, int keep, struct titan_error *err)
{
    _cleanup_free_ uint64_t *steps = NULL;
    size_t n = 0;
    if (keep <= 0)
        return TITAN_OK;
    TRY(list_steps(dir, &steps, &n, err));
    for (size_t i = (size_t)keep; i < n; i++) {
        char name[64], path[PATH_MAX];
        (void)snprintf(name, sizeof(name), STEP_FORMAT, steps[i]);
        TRY(join(path, err, dir, name));
        TRY(checkpoint_remove(path, err));
    }
    return TITAN_OK;
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* Every spec is in the manifest with its shape; map[i] = its index there. */
static titan_status match_specs(const struct manifest *m, const struct tensor_spec *specs, int nspecs, int *map,
                                struct titan_error *err)
{
    for (int i = 0; i < nspecs; i++) {
        /* The same program wrote it most times: same list, same place. */
        bool same = i < m->ntensors && strcmp(m->tensors[i].name, specs[i].name) == 0;
        map[i] = same ? i : manifest_find_tensor(m, specs[i].name);
        if (map[i] < 0)
            return titan_fail(err, TITAN_ECONFLICT, "tensor '%s' is not in the checkpoint", specs[i].name);
        const struct tensor_spec *t = &m->tensors[map[i]];
        if (t->ndim != specs[i].ndim || memcmp(t->shape, specs[i].shape, (size_t)t->ndim * sizeof(t->shape[0])) != 0)
            return titan_fail(err, TITAN_ECONFLICT, "tensor '%s' has another shape in the checkpoint", t->name);
    }
    return TITAN_OK;
}

/* Size and checksum as the manifest says. */
static titan_status go_on(const atomic_int *stop, struct titan_error *err)
{
    progress_action();
    if (stop && atomic_load(stop))
        return titan_fail(err, TITAN_EREVOKED, "the epoch was revoked while its checkpoint was read");
    return TITAN_OK;
}

static titan_status verify_file(const char *path, const struct manifest_file *file, const atomic_int *stop,
                                struct titan_error *err)
{
    _cleanup_fd_ int fd = -1;
    struct stat st;
    const titan_status opened = open_regular(AT_FDCWD, path, O_NOFOLLOW, &fd, err);
    if (opened == TITAN_ENOTFOUND)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is missing", path);
    if (opened == TITAN_EINVAL && err)
        err->status = TITAN_ECORRUPT;
    if (opened != TITAN_OK)
        return opened == TITAN_EINVAL ? TITAN_ECORRUPT : opened;
    if (fstat(fd, &st) < 0)
        return titan_fail_errno(err, "cannot look at '%s'", path);
    if ((uint64_t)st.st_size != file->bytes)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' has %" PRIu64 " bytes, its manifest says %" PRIu64, path,
                          (uint64_t)st.st_size, file->bytes);
    _cleanup_free_ char *block = malloc(CHECK_BYTES);
    if (!block)
        return titan_fail(err, TITAN_ENOMEM, "no memory to read '%s'", path);
    uint32_t crc = 0;
    for (;;) {
        ssize_t n = read(fd, block, CHECK_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return titan_fail_errno(err, "cannot read '%s'", path);
        if (n == 0)
            break;
        crc = crc32c(crc, block, (size_t)n);
        TRY(go_on(stop, err));
    }
    if (crc != file->crc)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is damaged: crc32c %08x, its manifest says %08x", path, crc,
                          file->crc);
    return TITAN_OK;
}

/* Pieces that are wanted, by the manifest's tensor: those of tensor t are list[first[t]..first[t+1]). */
struct wishes {
    struct piece *list;
    int *first;
    const atomic_int *stop; /* not zero: nobody wants them any more */
};

static void clear_wishes(struct wishes *w)
{
    free(w->list);
    free(w->first);
}

static titan_status sort_wishes(const struct manifest *m, const int *map, const struct piece *pieces, int n,
                                struct wishes *ret, struct titan_error *err)
{
    ret->list = calloc((size_t)n + 1, sizeof(*ret->list));
    ret->first = calloc((size_t)m->ntensors + 2, sizeof(*ret->first));
    if (!ret->list || !ret->first)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %d pieces", n);
    int *const next = ret->first + 1; /* of the tensor before it, while they are filled in */
    for (int i = 0; i < n; i++)
        next[map[pieces[i].tensor] + 1]++;
    for (int t = 0; t < m->ntensors; t++)
        next[t + 1] += next[t];
    for (int i = 0; i < n; i++) {
        struct piece *p = &ret->list[next[map[pieces[i].tensor]]++];
        *p = pieces[i];
        p->tensor = map[pieces[i].tensor];
    }
    return TITAN_OK;
}

struct stored {
    const struct safetensors *file;
    const struct safetensors_tensor *tensor;
    struct piece box;
    int64_t place; /* of its data in the tensor */
};

/* Elements [from, from+n) of the box. */
static titan_status read_stored(const struct stored *s, int64_t from, int64_t n, float *out, struct titan_error *err)
{
    return safetensors_read(s->file, s->tensor, (uint64_t)(s->place + from) * sizeof(float), out,
                            (size_t)n * sizeof(float), err);
}

/* Whole rows of the box into rows of the matrix wanted, which is wider: through a buffer. */
static titan_status read_rows(const struct stored *s, const struct piece *want, const struct piece *common,
                              struct titan_error *err)
{
    const int64_t cols = common->cols, at_once = MAX((int64_t)(CHECK_BYTES / sizeof(float)) / cols, 1);
    const int64_t from = piece_place(&s->box, common);
    float *out = want->data + piece_place(want, common);
    titan_assert(want->data);
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

/* What stored and wanted have in common: in one go where it is in one place on both sides, otherwise by rows. */
static titan_status read_overlap(const struct stored *s, const struct piece *want, const struct piece *common,
                                 struct titan_error *err)
{
    const int64_t from = piece_place(&s->box, common), cols = common->cols;
    float *out = want->data + piece_place(want, common);
    if (common->rows == 1 || (cols == s->box.cols && cols == want->cols))
        return read_stored(s, from, common->rows * cols, out, err);
    if (cols == s->box.cols)
        return read_rows(s, want, common, err);
    for (int64_t r = 0; r < common->rows; r++)
        TRY(read_stored(s, from + r * s->box.cols, cols, out + r * want->cols, err));
    return TITAN_OK;
}

static titan_status read_stored_piece(const struct safetensors *st, const struct manifest *m,
                                      const struct manifest_piece *piece, const struct wishes *wishes,
                                      struct titan_error *err)
{
    char name[MANIFEST_PIECE_NAME_MAX];
    struct stored s = {.file = st, .box = piece->box};
    manifest_piece_name(m, piece, name, &s.place);
    s.tensor = safetensors_find(st, name);
    if (!s.tensor || strcmp(s.tensor->dtype, "F32") != 0 ||
        s.tensor->bytes < (uint64_t)(s.place + s.box.rows * s.box.cols) * sizeof(float))
        return titan_fail(err, TITAN_ECORRUPT, "piece '%s' is not as the manifest says", name);
    for (int i = wishes->first[s.box.tensor]; i < wishes->first[s.box.tensor + 1]; i++) {
        const struct piece common = piece_overlap(&s.box, &wishes->list[i]);
        if (common.rows > 0)
            TRY(read_overlap(&s, &wishes->list[i], &common, err));
    }
    return TITAN_OK;
}

static bool piece_needed(const struct piece *box, const struct wishes *wishes)
{
    for (int i = wishes->first[box->tensor]; i < wishes->first[box->tensor + 1]; i++)
        if (piece_overlap(box, &wishes->list[i]).rows > 0)
            return true;
    return false;
}

static bool file_needed(const struct manifest_file *file, const struct wishes *wishes)
{
    for (int p = 0; p < file->npieces; p++)
        if (piece_needed(&file->pieces[p].box, wishes))
            return true;
    return false;
}

static void close_safetensors(struct safetensors **st)
{
    safetensors_close(*st);
}

static titan_status load_file(const char *dir, const struct manifest *m, const struct manifest_file *file,
                              const struct wishes *wishes, struct titan_error *err)
{
    char path[PATH_MAX];
    TRY(join(path, err, dir, file->name));
    TRY(verify_file(path, file, wishes->stop, err));
    _cleanup_(close_safetensors) struct safetensors *st = NULL;
    TRY(safetensors_open(path, &st, err));
    for (int p = 0; p < file->npieces; p++) {
        TRY(go_on(wishes->stop, err));
        if (piece_needed(&file->pieces[p].box, wishes) &&
            read_stored_piece(st, m, &file->pieces[p], wishes, err) != TITAN_OK)
            return titan_error_wrap(err, "'%s'", path);
    }
    return TITAN_OK;
}

titan_status checkpoint_load(const char *path, const struct tensor_spec *specs, int nspecs, const struct piece *pieces,
                             int npieces, const atomic_int *stop, struct titan_error *err)
{
    _cleanup_(manifest_clear) struct manifest m = {0};
    _cleanup_(clear_wishes) struct wishes wishes = {.stop = stop};
    TRY(read_manifest(path, &m, err));
    _cleanup_free_ int *map = calloc((size_t)nspecs + 1, sizeof(*map));
    if (!map)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %d tensors", nspecs);
    if (match_specs(&m, specs, nspecs, map, err) != TITAN_OK)
        return titan_error_wrap(err, "'%s'", path);
    for (int i = 0; i < npieces; i++)
        assert_inside(specs, nspecs, &pieces[i]);
    TRY(sort_wishes(&m, map, pieces, npieces, &wishes, err));
    for (int f = 0; f < m.nfiles; f++)
        if (file_needed(&m.files[f], &wishes))
            TRY(load_file(path, &m, &m.files[f], &wishes, err));
    return TITAN_OK;
}
