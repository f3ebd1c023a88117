/* SPDX-License-Identifier: Apache-2.0 */
/* run_file.c - see run_file.h. */
#include "ctl/run_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"

static titan_status read_stdin(struct buf *text, struct titan_error *err)
{
    char chunk[16384];
    ssize_t n;
    while ((n = read(STDIN_FILENO, chunk, sizeof(chunk))) > 0) {
        if (text->len + (size_t)n > RECIPE_TEXT_MAX)
            return titan_fail(err, TITAN_ELIMIT, "<stdin>: more than %d bytes", RECIPE_TEXT_MAX);
        TRY(buf_append(text, chunk, (size_t)n));
    }
    return n < 0 ? titan_fail_errno(err, "<stdin>") : TITAN_OK;
}

static titan_status read_text(struct run_file *f, const char *path, struct titan_error *err)
{
    titan_status status;
    if (strcmp(path, "-") == 0) {
        (void)snprintf(f->path, sizeof(f->path), "<stdin>");
        status = read_stdin(&f->text, err);
    } else {
        if (!realpath(path, f->path))
            return titan_fail_errno(err, "run file %s", path);
        status = file_read(path, RECIPE_TEXT_MAX, &f->text, err);
    }
    if (status == TITAN_ELIMIT)
        return titan_fail(err, TITAN_EINVAL, "%s: larger than the %d KiB a run file may have", path,
                          RECIPE_TEXT_MAX / 1024);
    TRY(status);
    if (f->text.len && memchr(f->text.data, '\0', f->text.len))
        return titan_fail(err, TITAN_EINVAL, "%s: NUL byte: not a run file", path);
    return TITAN_OK;
}

/* A path given by --set, or with a recipe from standard input, is meant from the current folder. */
static titan_status place_path(char *path, size_t size, const char *key, bool *changed, struct titan_error *err)
{
    char base[PATH_MAX], full[2 * PATH_MAX];
    if (*path == '\0' || *path == '/')
        return TITAN_OK;
    if (!getcwd(base, sizeof(base)))
        return titan_fail_errno(err, "current folder");
    if ((size_t)snprintf(full, sizeof(full), "%s/%s", base, path) >= size)
        return titan_fail(err, TITAN_EINVAL, "%s: '%.64s...' is too long", key, full);
    memcpy(path, full, strlen(full) + 1);
    *changed = true;
    return TITAN_OK;
}

static bool sets(const struct args *args, const char *key)
{
    const char *assignment;
    for (int i = 0; (assignment = args_each(args, "set", i)); i++)
        if (strncmp(assignment, key, strlen(key)) == 0 && assignment[strlen(key)] == '=')
            return true;
    return false;
}

static titan_status place_paths(struct recipe *r, const struct args *args, bool from_stdin, bool *changed,
                                struct titan_error *err)
{
    static const char data[] = "training.dataset_path", mixture[] = "training.mixture",
                      csv[] = "parallelism.pipeline_parallel_schedule_csv";
    if (from_stdin || sets(args, data))
        TRY(place_path(r->training.dataset_path, sizeof(r->training.dataset_path), data, changed, err));
    for (int64_t i = 0; (from_stdin || sets(args, mixture)) && i < r->training.mixture.n; i++) {
        struct recipe_source *source = &r->training.mixture.source[i];
        TRY(place_path(source->path, sizeof(source->path), mixture, changed, err));
    }
    if (from_stdin || sets(args, csv))
        TRY(place_path(r->parallelism.pipeline_parallel_schedule_csv,
                       sizeof(r->parallelism.pipeline_parallel_schedule_csv), csv, changed, err));
    return TITAN_OK;
}

static titan_status check(struct run_file *f, bool local, struct titan_error *err)
{
    TRY(recipe_resolve(&f->recipe, err));
    TRY(recipe_check_run(&f->recipe, err));
    if (!local)
        return TITAN_OK;
    char base[PATH_MAX];
    (void)snprintf(base, sizeof(base), "%s", f->path);
    char *slash = strrchr(base, '/');
    if (slash)
        *slash = '\0';
    titan_status status = recipe_check_data(&f->recipe, slash ? base : NULL, err);
    if (status == TITAN_ENOTFOUND && err)
        err->status = status = TITAN_EINVAL; /* the run file is wrong, not the command's argument missing */
    return status;
}

titan_status run_file_load(struct run_file *f, const char *path, const struct args *args, int64_t workers, bool local,
                           struct titan_error *err)
{
    memset(f, 0, sizeof(*f));
    recipe_init(&f->recipe);
    TRY(read_text(f, path, err));
    bool from_stdin = strcmp(path, "-") == 0, changed = false;
    TRY(recipe_parse_with(&f->recipe, f->text.len ? f->text.data : "", from_stdin ? f->path : path, args, err));
    changed = args_has(args, "set");
    const char *priority = args_text(args, "priority", NULL);
    if (priority) {
        char key[64];
        (void)snprintf(key, sizeof(key), "job.priority=%s", priority);
        TRY(recipe_set(&f->recipe, key, err));
        changed = true;
    }
    if (workers > 0) {
        f->recipe.elastic.max_workers = workers;
        f->recipe.elastic.min_workers = MIN(f->recipe.elastic.min_workers, workers);
        changed = true;
    }
    TRY(place_paths(&f->recipe, args, from_stdin, &changed, err));
    if (changed) {
        buf_clear(&f->text);
        recipe_print(&f->recipe, &f->text);
        if (buf_failed(&f->text))
            return titan_fail(err, TITAN_ENOMEM, "no memory for the run file");
    }
    return check(f, local, err);
}

void run_file_clear(struct run_file *f)
{
    buf_free(&f->text);
}
