/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/verification.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/units.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/hf_weights.h"
#include "worker/checkpoint/trained.h"

/* Totals only: results are printed checkpoint by checkpoint, because they may be large. */
struct verification {
    bool json;
    int seen, damaged, not_finite;
};

static void print_lines(const char *lines, const char *what)
{
    for (const char *at = lines, *end; *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, "\n");
        (void)printf("%s  damaged  %.*s\n", what, (int)(end - at), at);
    }
}

/* own: one of our checkpoints, not a Hugging Face directory. Such a directory has no checksums, and no run resumes from
 * it. */
static void print_json(const char *path, const struct verified_checkpoint *c, bool own, const char *faults)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text};
    json_begin_object(&w, NULL);
    json_put_string(&w, "path", path);
    json_put_uint(&w, "step", c->info.step);
    json_put_bool(&w, "ok", !*faults && c->not_finite == 0);
    json_put_int(&w, "files", c->files);
    json_put_uint(&w, "bytes", c->info.bytes);
    json_put_bool(&w, "checksums", own);
    if (own) {
        json_put_bool(&w, "resumable", !*faults && c->not_finite == 0 && !c->info.model_only);
        json_put_bool(&w, "finite", c->not_finite == 0);
        json_put_uint(&w, "skipped_in_a_row", c->info.skipped.in_a_row);
    }
    json_begin_array(&w, "faults");
    for (const char *at = faults, *end; *at; at = *end ? end + 1 : end) {
        char line[sizeof(((struct titan_error *)0)->msg)];
        end = at + strcspn(at, "\n");
        (void)snprintf(line, sizeof(line), "%.*s", (int)(end - at), at);
        json_put_string(&w, NULL, line);
    }
    json_end_array(&w);
    json_end_object(&w);
    (void)puts(buf_failed(&text) ? "{}" : text.data);
}

static void print_sound(const char *what, int files, uint64_t bytes, const char *note)
{
    char size[UNITS_TEXT];
    (void)printf("%s  ok       %d file%s, %s%s\n", what, files, files == 1 ? "" : "s", format_bytes(bytes, size), note);
}

/* Verifies a Hugging Face directory. of: the checkpoint that it is part of; NULL: none. */
static titan_status verify_hf(struct verification *v, const char *path, const char *of, bool *ret_damaged,
                              struct titan_error *err)
{
    _cleanup_(trained_close) struct trained trained = {0};
    struct verified_checkpoint c = {0};
    struct titan_error fault = {0};
    char what[NAME_MAX + 8];
    const char *name = strrchr(of ? of : path, '/');

    name = name ? name + 1 : of ? of : path;
    (void)snprintf(what, sizeof what, "%s%s", name, of ? "/hf" : "");
    const bool known = of && trained_open(of, &trained, NULL) == TITAN_OK;
    const titan_status status = hf_weights_verify(path, known ? trained.model : NULL, &c.files, &c.info.bytes, &fault);
    if (status == TITAN_ENOMEM) {
        if (err)
            *err = fault;
        return status;
    }
    c.info.step = known ? trained.info.step : 0;
    *ret_damaged = status != TITAN_OK;
    if (v->json)
        print_json(path, &c, false, fault.msg);
    else if (*ret_damaged)
        print_lines(fault.msg, what);
    else
        print_sound(what, c.files, c.info.bytes, ", no checksums");
    return TITAN_OK;
}

/* Verifies a checkpoint, with the Hugging Face directory that last_save_in_hf may have put into it. */
static titan_status verify_one(struct verification *v, const char *path, struct titan_error *err)
{
    struct verified_checkpoint c = {0};
    _cleanup_(buf_free) struct buf faults = BUF_INIT;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char hf[PATH_MAX + 8];
    struct stat st;
    char note[96] = "";
    bool damaged = false;

    TRY(checkpoint_verify(path, &faults, &c, err));
    checkpoint_info_clear(&c.info);
    if (c.info.skipped.in_a_row > 0)
        (void)snprintf(note, sizeof note, ", behind %" PRIu64 " skipped steps", c.info.skipped.in_a_row);
    (void)snprintf(note + strlen(note), sizeof note - strlen(note), "%s",
                   c.info.model_only ? ", weights alone" : ", can be resumed");
    if (v->json)
        print_json(path, &c, true, faults.len ? faults.data : "");
    else if (faults.len)
        print_lines(faults.data, name);
    else if (c.not_finite > 0)
        (void)printf("%s  not finite  %" PRIu64 " values, the first in %s\n", name, c.not_finite, c.not_finite_name);
    else
        print_sound(name, c.files, c.info.bytes, note);
    (void)snprintf(hf, sizeof hf, "%s/hf", path);
    if (lstat(hf, &st) == 0)
        TRY(verify_hf(v, hf, path, &damaged, err));
    v->seen++;
    v->damaged += faults.len > 0 || damaged;
    v->not_finite += faults.len == 0 && c.not_finite > 0;
    (void)fflush(stdout);
    return TITAN_OK;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct verification v = {.json = strcmp(args_text(args, "output", "table"), "json") == 0};
    char path[PATH_MAX], manifest[PATH_MAX + 16], step_path[PATH_MAX];
    _cleanup_free_ uint64_t *steps = NULL;
    size_t n_steps = 0;
    int64_t step;
    (void)with;
    TRY(args_int(args, "step", (struct int_range){0, INT64_MAX}, -1, &step, err));
    (void)snprintf(path, sizeof(path), "%s", args->words[0]);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = '\0';
    if (step >= 0)
        TRY(checkpoint_path(path, args->words[0], (uint64_t)step, err));
    struct stat st;
    if (step >= 0 && lstat(path, &st) < 0 && errno == ENOENT)
        return titan_fail(err, TITAN_EINVAL, "no checkpoint of step %" PRId64 " in '%s'", step, args->words[0]);
    bool damaged = false;
    titan_status status;
    /* Without a manifest its name decides whether the path is a checkpoint. */
    const char *slash = strrchr(path, '/');
    (void)snprintf(manifest, sizeof(manifest), "%s/manifest.json", path);
    if (step >= 0 || lstat(manifest, &st) == 0 || strncmp(slash ? slash + 1 : path, "step-", 5) == 0)
        status = verify_one(&v, path, err);
    else if (hf_weights_are_at(path))
        status = verify_hf(&v, path, NULL, &damaged, err);
    else {
        const char *const dir = path;
        status = checkpoint_steps(-1, dir, &steps, &n_steps, err);
        if (status == TITAN_OK && n_steps == 0)
            status = titan_fail(err, TITAN_EINVAL, "no checkpoint in '%s'", dir);
        while (status == TITAN_OK && n_steps > 0) {
            status = checkpoint_path(step_path, dir, steps[--n_steps], err);
            if (status == TITAN_OK)
                status = verify_one(&v, step_path, err);
        }
    }
    if (status == TITAN_ENOTFOUND && err)
        err->status = TITAN_EINVAL; /* bad input; TITAN_ENOTFOUND is for jobs */
    TRY(status == TITAN_ENOTFOUND ? TITAN_EINVAL : status);
    if (damaged)
        return titan_fail(err, TITAN_ECORRUPT, "the Hugging Face directory is damaged");
    if (v.damaged > 0)
        return titan_fail(err, TITAN_ECORRUPT, "%d of %d checkpoint%s %s damaged", v.damaged, v.seen,
                          v.seen == 1 ? "" : "s", v.damaged == 1 ? "is" : "are");
    if (v.not_finite > 0)
        return titan_fail(err, TITAN_ECORRUPT, "%d of %d checkpoint%s %s values that are not finite", v.not_finite,
                          v.seen, v.seen == 1 ? "" : "s", v.not_finite == 1 ? "has" : "have");
    return TITAN_OK;
}

const struct command verify_command = {
    .name = "verify",
    .summary = "read checkpoints: which are damaged, which can be resumed",
    .arguments = "PATH",
    .text =
        "PATH is a checkpoint, or a folder of them: each is read, whole. Size and checksum of every file, its header "
        "and the place\nof each piece must be as the manifest says, its own checksum is checked, and all values must "
        "be "
        "finite. A line each says\nwhether a run can be resumed from it, or has weights alone. Of a Hugging Face "
        "directory, "
        "in a checkpoint\n(checkpoint.last_save_in_hf) or alone, headers, sizes and the index are looked at: it has "
        "no\n"
        "checksums. Exit code 1 where one is damaged or not finite.",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_FILE,
    .options = (const struct option_spec[]){{"step", 0, "STEP", "that of this step alone", WORD_NONE},
                                            {"output", 'o', "FORMAT", "table (default) or json: an object a line",
                                             WORD_FORMAT},
                                            {NULL}},
    .examples = (const struct example[]){{"titan-worker verify run/checkpoint", "all in the folder"}, {NULL}},
    .run = run,
};
