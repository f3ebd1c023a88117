/* SPDX-License-Identifier: Apache-2.0 */
/* What a recipe requests without effect, for the user. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/recipe.h"
#include "base/recipe_keys.h"

/* Checkpoint keys have no effect in a run that writes no checkpoints. */
static bool is_idle(const struct recipe *r, int i)
{
    titan_assert(i >= 0 && i < recipe_keys_count);
    return recipe_keys[i].support == KEY_NOTE && recipe_key_in(r->idle_mask, i) &&
           (r->checkpoint.enable || strcmp(recipe_keys[i].section, "checkpoint") != 0);
}

void recipe_warnings(const struct recipe *r, struct buf *out)
{
    static const char *const of_step[] = {"lr_scheduler", "dataloader"};
    const bool automatic = strcmp(r->training.mixed_precision_param, "auto") == 0;
    const char *type =
        automatic ? "bfloat16 or float32, whichever the device is fast at" : r->training.mixed_precision_param;
    /* Conversions that model.converters requests and that devices or experts do not support. */
    if (r->model.float8 && strcmp(r->device.name, "cpu") != 0)
        buf_printf(out, "model.converters: on GPUs before Hopper products are in %s, not in float8\n", type);
    if (recipe_key_in(r->idle_mask, recipe_key_find("model", "float8")))
        buf_printf(out, "model.converters: products of routed experts are in %s, not in float8\n", type);
    if (r->model.mxfp8 && strcmp(r->device.name, "cpu") != 0)
        buf_puts(
            out,
            "model.converters: GPUs before Blackwell (compute capability 10.0) have no MXFP8 and refuse the run\n");
    if (recipe_key_in(r->idle_mask, recipe_key_find("model", "mxfp8")))
        buf_printf(out, "model.converters: products of routed experts are in %s, not in MXFP8\n", type);

    bool sft = (r->training.mixture.n == 0 && strcmp(r->training.dataset, "sft") == 0) ||
               (r->validation.enable && strcmp(r->validation.dataset, "sft") == 0);
    for (int64_t i = 0; i < r->training.mixture.n; i++) {
        const char *its = r->training.mixture.source[i].dataset;
        sft = sft || strcmp(*its ? its : r->training.dataset, "sft") == 0;
    }
    if (!sft && strcmp(r->training.chat_template, "none") != 0)
        buf_puts(out, "training.chat_template has no effect: no data is of the kind \"sft\"\n");
    const char *dot = strrchr(r->training.dataset_path, '.');
    if (dot && strcmp(dot, ".jsonl") == 0 && strcmp(r->training.dataset, "text") == 0)
        buf_puts(out, "training.dataset_path: a .jsonl file is read as plain text; training.dataset = \"jsonl\" reads "
                      "the text of its records\n");
    if (r->validation.enable && r->validation.seq_len > r->training.seq_len)
        buf_printf(
            out,
            "validation.seq_len = %lld is more than training.seq_len = %lld: the model is evaluated at positions "
            "that it does not train\n",
            (long long)r->validation.seq_len, (long long)r->training.seq_len);
    if (r->job.dump_folder[0] && !r->checkpoint.enable)
        buf_puts(out, "job.dump_folder has no effect: only checkpoints go there, and checkpoint.enable is false\n");
    else if (r->job.dump_folder[0] && r->checkpoint.folder[0] == '/')
        buf_puts(out, "job.dump_folder has no effect: only checkpoints go there, and checkpoint.folder is absolute\n");
    if (strcmp(r->parallelism.fsdp_reshard_after_forward, "always") == 0 &&
        r->parallelism.pipeline_parallel_degree == 1)
        buf_puts(out, "parallelism.fsdp_reshard_after_forward = \"always\" has no effect: without a pipeline "
                      "\"default\" is the same\n");
    if (strcmp(r->parallelism.fsdp_gather_codec, "none") != 0 && r->elastic.max_workers == 1 && !r->numerics.canonical)
        buf_puts(out,
                 "parallelism.fsdp_gather_codec has no effect: one worker (elastic.max_workers) gathers nothing\n");

    for (int i = 0; i < recipe_keys_count; i++) {
        if (!is_idle(r, i))
            continue;
        int others = 0;
        for (int j = 0; j < i && others == 0; j++) /* one line names all keys with the same reason */
            others += is_idle(r, j) && strcmp(recipe_keys[j].doc, recipe_keys[i].doc) == 0;
        if (others > 0)
            continue;
        for (int j = i; j < recipe_keys_count; j++)
            if (is_idle(r, j) && strcmp(recipe_keys[j].doc, recipe_keys[i].doc) == 0)
                buf_printf(out, "%s%s.%s", others++ ? ", " : "", recipe_keys[j].section, recipe_keys[j].name);
        buf_printf(out, " %s no effect: %s\n", others > 1 ? "have" : "has", recipe_keys[i].doc);
    }
    /* Excluding the step also excludes everything derived from the step. */
    for (size_t i = 0; i < ARRAY_SIZE(of_step); i++)
        if (recipe_excludes(r, of_step[i]) && !recipe_excludes(r, "train_state"))
            buf_printf(out,
                       "checkpoint.exclude_from_loading: \"%s\" has no effect: It follows from the step, which "
                       "\"train_state\" leaves out\n",
                       of_step[i]);
}

void recipe_print_warnings(const struct recipe *r, FILE *to)
{
    _cleanup_(buf_free) struct buf lines = BUF_INIT;
    recipe_warnings(r, &lines);
    for (const char *at = lines.len ? lines.data : ""; *at; at += strcspn(at, "\n") + 1)
        (void)fprintf(to, "note: %.*s\n", (int)strcspn(at, "\n"), at);
}
