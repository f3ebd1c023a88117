/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/convert.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/vec.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/hf_export.h"
#include "worker/checkpoint/hf_weights.h"
#include "worker/tensor/layout.h"

#define SHARD_NUMBERS_MAX (INT64_C(1) << 29) /* limit for one file: 2 GiB */

/* --- weights of transformers as a checkpoint ---------------------------------------------------------------------- */

struct import {
    const char *dir;  /* folder of checkpoints */
    const char *path; /* folder of the weights */
    const struct hf_weights *weights;
    struct model *model;
    struct recipe recipe;
    struct buf text;           /* text of the recipe */
    struct tensor_spec *specs; /* parameters, then biases */
    int n_specs;
    struct buf *entries; /* manifest entries of the files written so far */
    int n_files, cap_files;
};

/* Writes specs [first, end) as one file. */
static titan_status write_shard(struct import *im, const struct checkpoint_info *info, int first, int end,
                                int64_t numbers, struct titan_error *err)
{
    titan_assert(first < end && end <= im->n_specs);
    const int n = im->model->n_tensors;
    _cleanup_free_ struct shard_slice *slices = calloc((size_t)(end - first), sizeof *slices);
    _cleanup_free_ float *data = malloc((size_t)numbers * sizeof *data + 1);
    if (!slices || !data)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %lld parameters", (long long)numbers);
    float *at = data;
    for (int i = first; i < end; i++) {
        struct shard_slice *p = &slices[i - first];
        *p = (struct shard_slice){.tensor = i, .data = at};
        shard_slice_matrix(&im->specs[i], &p->rows, &p->cols);
        at += im->specs[i].numel;
        TRY(i < n ? hf_weights_read(im->weights, im->model, p, NULL, err)
                  : hf_weights_read_biases(im->weights, im->model, (int)im->model->dims.n_dense_layers + i - n, p->data,
                                           err));
    }
    titan_assert(at == data + numbers);
    if (!VEC_PUSH(im->entries, im->n_files, im->cap_files, (struct buf)BUF_INIT))
        return titan_fail(err, TITAN_ENOMEM, "no memory for %d files", im->n_files);
    const struct checkpoint_part part = {im->specs, im->n_specs, slices, end - first, im->n_files - 1};
    return checkpoint_write_shard(-1, im->dir, info, &part, &im->entries[im->n_files - 1], err);
}

static titan_status import_all(struct import *im, struct titan_error *err)
{
    const struct hf_config *c = hf_weights_config(im->weights);
    _cleanup_(buf_free) struct buf bytes = BUF_INIT, theirs = BUF_INIT;
    char key[64], folder[PATH_MAX], file[PATH_MAX + 16];
    char *const name = im->recipe.model.tokenizer;
    char path[PATH_MAX];
    if (!c->there)
        return titan_fail(err, TITAN_ENOTFOUND, "'" HF_CONFIG_NAME "' is missing: it says which model the weights are");
    recipe_init(&im->recipe);
    (void)snprintf(key, sizeof key, "model.name=%s", c->family->ours);
    TRY(recipe_set(&im->recipe, key, err));
    TRY(recipe_set(&im->recipe, "model.flavor=" RECIPE_FLAVOR_HF, err));
    (void)snprintf(key, sizeof key, "training.seq_len=%lld", (long long)MAX(c->positions, 1));
    TRY(recipe_set(&im->recipe, key, err));
    recipe_give_dims(&im->recipe, &c->dims);

    /* The recipe's tokenizer is the weights folder: its tokenizer made the ids that the weights are for. If the folder
     * has none, a command that needs it asks for it. An export of a model of bytes keeps "bytes" of recipe_init(). */
    if (!realpath(im->path, folder))
        return titan_fail_errno(err, "cannot open folder '%s'", im->path);
    (void)snprintf(file, sizeof file, "%s/tokenizer.json", folder);
    hf_export_byte_tokenizer(&bytes);
    const bool of_bytes = bytes.len > 0 && file_read(file, bytes.len, &theirs, NULL) == TITAN_OK &&
                          theirs.len == bytes.len && memcmp(bytes.data, theirs.data, bytes.len) == 0;
    if (!of_bytes &&
        (size_t)snprintf(name, sizeof im->recipe.model.tokenizer, "%s", folder) >= sizeof im->recipe.model.tokenizer)
        return titan_fail(err, TITAN_EINVAL, "path too long: '%s'", folder);
    recipe_print(&im->recipe, &im->text);
    if (buf_failed(&im->text))
        return titan_fail(err, TITAN_ENOMEM, "no memory for a recipe");
    recipe_init(&im->recipe); /* parse the text again: this checks the range of every dimension */
    TRY(recipe_parse(&im->recipe, im->text.data, HF_CONFIG_NAME, err));
    TRY(recipe_resolve(&im->recipe, err));
    TRY(model_open(&im->recipe.model.dims, &im->model, err));
    TRY(hf_weights_check(im->weights, im->model, err));

    TRY(layout_weight_specs(im->model, &im->specs, &im->n_specs, err));
    struct checkpoint_info info = {
        .epoch = 1, .world = 1, .recipe_hash = recipe_hash(&im->recipe), .recipe = im->text.data, .model_only = true};
    titan_status status = TITAN_OK;
    for (int first = 0, end; first < im->n_specs && status == TITAN_OK; first = end) {
        int64_t numbers = im->specs[first].numel;
        for (end = first + 1; end < im->n_specs && numbers + im->specs[end].numel <= SHARD_NUMBERS_MAX; end++)
            numbers += im->specs[end].numel;
        status = write_shard(im, &info, first, end, numbers, err);
    }
    const struct checkpoint_parts parts = {im->specs, im->n_specs, im->entries, im->n_files};
    if (status == TITAN_OK)
        status = checkpoint_commit(-1, im->dir, &info, &parts, path, err);
    if (status != TITAN_OK)
        (void)!checkpoint_drop(-1, im->dir, &info, NULL);
    return status;
}

titan_status convert_weights(const char *weights, const char *out_dir, struct titan_error *err)
{
    struct hf_weights *w = NULL;
    TRY(hf_weights_open(weights, &w, err));
    struct import im = {.dir = out_dir, .path = weights, .weights = w, .text = BUF_INIT};
    _cleanup_(buf_free) struct buf note = BUF_INIT;
    const titan_status status = import_all(&im, err);
    if (status == TITAN_OK)
        hf_weights_left_out(w, im.model, &note);
    if (note.len > 0)
        (void)fprintf(stderr, "note: %s\n", note.data);
    for (int i = 0; i < im.n_files; i++)
        buf_free(&im.entries[i]);
    free(im.entries);
    free(im.specs);
    model_close(im.model);
    buf_free(&im.text);
    hf_weights_close(w);
    return status;
}

/* --- the command -------------------------------------------------------------------------------------------------- */

/* Refuses a folder with content: a person's work may be in it. */
static titan_status check_empty(const char *dir, struct titan_error *err)
{
    DIR *d = opendir(dir);
    if (!d && errno == ENOENT)
        return TITAN_OK;
    if (!d) {
        (void)titan_fail_errno(err, "folder '%s'", dir);
        if (err && errno == ENOTDIR)
            err->status = TITAN_EINVAL; /* TITAN_ENOTFOUND is reserved for the checkpoint */
        return err ? err->status : TITAN_EINVAL;
    }
    const struct dirent *e;
    while ((e = readdir(d)) && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0))
        ;
    (void)closedir(d);
    if (!e)
        return TITAN_OK;
    (void)titan_fail(err, TITAN_EEXIST, "folder '%s' is not empty", dir);
    titan_error_hint(err, "name another one; --force replaces weights and files of the same names in it");
    return TITAN_EEXIST;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    static const struct {
        const char *word, *dtype;
    } types[] = {{"bf16", "BF16"}, {"f32", "F32"}, {"f16", "F16"}};
    const char *from = args->words[0], *out_dir = args->words[1], *word = args_text(args, "dtype", "bf16");
    _cleanup_(buf_free) struct buf note = BUF_INIT;
    const bool to_checkpoint = hf_weights_are_at(from);
    const char *output = args_text(args, "output", "table");
    size_t type = 0;
    (void)with;
    if (strcmp(output, "table") != 0 && strcmp(output, "json") != 0)
        return titan_fail(err, TITAN_EINVAL, "--output is table or json, not '%.64s'", output);
    while (type < ARRAY_SIZE(types) && strcmp(word, types[type].word) != 0)
        type++;
    if (type == ARRAY_SIZE(types))
        return titan_fail(err, TITAN_EINVAL, "--dtype is bf16, f16 or f32, not '%s'", word);
    if (to_checkpoint && args_text(args, "dtype", NULL))
        return titan_fail(err, TITAN_EINVAL, "--dtype is for a Hugging Face directory: a checkpoint has fp32");
    if (!args_has(args, "force"))
        TRY(check_empty(out_dir, err));
    TRY(to_checkpoint ? convert_weights(from, out_dir, err)
                      : hf_export(from, -1, out_dir, types[type].dtype, &note, err));
    if (note.len > 0)
        (void)fprintf(stderr, "note: %s\n", note.data);
    if (strcmp(output, "table") == 0) {
        (void)puts(out_dir);
        return TITAN_OK;
    }
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text, .pretty = true};
    json_begin_object(&w, NULL);
    json_put_string(&w, "folder", out_dir);
    json_put_string(&w, "format", to_checkpoint ? "checkpoint" : "huggingface");
    json_end_object(&w);
    if (buf_failed(&text))
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    (void)puts(text.data);
    return TITAN_OK;
}

const struct command convert_command = {
    .name = "convert",
    .summary = "write a checkpoint as a directory that Hugging Face transformers opens, and the other way round",
    .arguments = "FROM OUT_DIR",
    .text = "FROM is a checkpoint, or a folder of them: the newest; OUT_DIR gets its weights, configuration and, for a "
            "tokenizer of bytes, its\ntokenizer. Or FROM is a Hugging Face directory with safetensors; OUT_DIR then "
            "gets a checkpoint of step 0. OUT_DIR must be\nempty, or missing.",
    .min_args = 2,
    .max_args = 2,
    .word = WORD_FILE,
    .options =
        (const struct option_spec[]){
            {"dtype", 0, "TYPE", "bf16 (default), f16 or f32", WORD_NONE},
            {"force", 0, NULL, "also into a folder that is not empty; weights and files of the same names are replaced",
             WORD_NONE},
            {"output", 'o', "FORMAT", "table (default) or json", WORD_FORMAT},
            {NULL}},
    .examples = (const struct example[]){{"titan-worker convert run/checkpoint ./hf", "the newest checkpoint"},
                                         {"titan-worker convert ./Qwen3-0.6B ./start", "weights to begin from"},
                                         {NULL}},
    .run = run,
};
