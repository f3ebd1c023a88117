/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/run_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hf_config.h"
#include "base/path_pattern.h"

/* A missing run file, or a missing file named in it, is bad input: "not found" is for jobs, nodes and checkpoints. */
static titan_status not_there(titan_status status, struct titan_error *err)
{
    if (status == TITAN_ENOTFOUND && err)
        err->status = status = TITAN_EINVAL;
    return status;
}

static titan_status read_text(struct run_file *f, const char *path, struct titan_error *err)
{
    titan_status status = TITAN_OK;
    if (strcmp(path, "-") == 0) {
        char chunk[16384];
        ssize_t n;
        (void)snprintf(f->path, sizeof(f->path), "<stdin>");
        while (f->text.len <= RECIPE_TEXT_MAX && (n = read(STDIN_FILENO, chunk, sizeof(chunk))) != 0) {
            if (n < 0)
                return titan_fail_errno(err, "<stdin>");
            TRY(buf_append(&f->text, chunk, (size_t)n));
        }
    } else {
        if (!realpath(path, f->path))
            return titan_fail_errno(err, "run file %s", path);
        status = file_read(path, RECIPE_TEXT_MAX, &f->text, err);
    }
    if (status == TITAN_ELIMIT || f->text.len > RECIPE_TEXT_MAX)
        return titan_fail(err, TITAN_EINVAL, "%s: larger than the %d KiB a run file may have", path,
                          RECIPE_TEXT_MAX / 1024);
    TRY(status);
    if (f->text.len && memchr(f->text.data, '\0', f->text.len))
        return titan_fail(err, TITAN_EINVAL, "%s: NUL byte: not a run file", path);
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

/* Does the path exist? A pattern also counts if its folder exists. */
static bool is_there(const char *path)
{
    char folder[2 * PATH_MAX];
    (void)snprintf(folder, sizeof(folder), "%.*s", (int)path_pattern_folder(path), path);
    return access(path, F_OK) == 0 || (path_is_pattern(path) && access(*folder ? folder : ".", F_OK) == 0);
}

/* Paths from --set, or in a recipe from standard input, start at the current folder. Paths in a file start at the
 * file's folder or, as in TorchTitan, at the current folder if they exist only there. */
static titan_status place_paths(struct run_file *f, const struct args *args, bool from_stdin, bool *changed,
                                struct titan_error *err)
{
    titan_assert(f->path[0]);
    char here[PATH_MAX], folder[PATH_MAX], beside[2 * PATH_MAX];
    struct recipe_path paths[RECIPE_PATHS_MAX];
    (void)snprintf(folder, sizeof(folder), "%s", f->path);
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
    if (!getcwd(here, sizeof(here)))
        return titan_fail_errno(err, "current folder");
    for (int i = 0, n = recipe_paths(&f->recipe, paths); i < n; i++) {
        const struct recipe_path *p = &paths[i];
        const bool overridden =
            sets(args, strncmp(p->key, "training.mixture", 16) == 0 ? "training.mixture" : p->key) ||
            (strcmp(p->key, "model.hf_assets_path") == 0 &&
             (sets(args, "model.tokenizer") || sets(args, "model.tokenizer_path")));
        (void)snprintf(beside, sizeof(beside), "%s/%s", folder, p->path);
        if (p->path[0] == '/' || !(from_stdin || overridden || (!is_there(beside) && is_there(p->path))))
            continue;
        TRY(recipe_place_path(p, here, err));
        *changed = true;
    }
    return TITAN_OK;
}

/* The folder of the run file; NULL: there is no file. */
static const char *folder_of(const struct run_file *f, char out[PATH_MAX])
{
    (void)snprintf(out, PATH_MAX, "%s", f->path);
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = '\0';
    return slash ? out : NULL;
}

titan_status run_file_load(struct run_file *f, const struct run_source *source, const struct args *args,
                           int64_t workers, bool local, struct titan_error *err)
{
    const char *path = source->path;
    titan_assert(workers >= 0);
    memset(f, 0, sizeof(*f));
    recipe_init(&f->recipe);
    const bool from_stdin = source->text || strcmp(path, "-") == 0;
    if (source->text) {
        (void)snprintf(f->path, sizeof(f->path), "%s", path);
        TRY(buf_append(&f->text, source->text, strlen(source->text)));
    } else {
        const titan_status status = read_text(f, path, err);
        if (status != TITAN_OK)
            return not_there(status, err);
    }
    TRY(recipe_parse_with(&f->recipe, f->text.len ? f->text.data : "", from_stdin ? f->path : path, args, err));
    bool changed = args_has(args, "set"), filled = false; /* changed: the text to submit differs from the source */
    char key[128], folder[PATH_MAX];
    for (const char *const *a = source->assignments; a && *a; a++) {
        (void)snprintf(key, sizeof(key), "%.*s", (int)strcspn(*a, "="), *a);
        if (sets(args, key))
            continue;
        TRY(recipe_set(&f->recipe, *a, err));
        changed = true;
    }
    const char *priority = args_text(args, "priority", NULL);
    if (priority) {
        (void)snprintf(key, sizeof(key), "job.priority=%s", priority);
        TRY(recipe_set(&f->recipe, key, err));
        changed = true;
    }
    if (workers > 0) {
        f->recipe.elastic.max_workers = workers;
        f->recipe.elastic.min_workers = MIN(f->recipe.elastic.min_workers, workers);
        changed = true;
    }
    TRY(place_paths(f, args, from_stdin, &changed, err));
    /* model.flavor = "hf": the recipe carries the dimensions; only this function reads them from config.json. */
    TRY(not_there(hf_config_fill(&f->recipe, folder_of(f, folder), &filled, err), err));
    if (changed || filled) {
        buf_clear(&f->text);
        recipe_print(&f->recipe, &f->text);
        if (buf_failed(&f->text))
            return titan_fail(err, TITAN_ENOMEM, "no memory for the run file");
    }
    TRY(recipe_resolve(&f->recipe, err));
    return local ? not_there(recipe_check_data(&f->recipe, folder_of(f, folder), err), err) : TITAN_OK;
}

void run_file_clear(struct run_file *f)
{
    buf_free(&f->text);
}
