/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoints.c - titanctl checkpoints: checkpoints from which a job can continue. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "ctl/args.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"
#include "ctl/worker_tool.h"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    const bool verifies = strcmp(args->words[0], "verify") == 0;
    uint64_t id;
    if (args->n != (verifies ? 2 : 1))
        return titan_fail(err, TITAN_EINVAL, "checkpoints: JOB, or verify JOB|FOLDER");
    if (!verifies && args_has(args, "step"))
        return titan_fail(err, TITAN_EINVAL, "--step goes with checkpoints verify");
    if (verifies) {
        char path[PATH_MAX], *argv[8] = {"titan-worker", "verify", path};
        size_t n = 3;
        int64_t step;
        TRY(args_int(args, "step", (struct int_range){0, INT64_MAX}, -1, &step, err));
        char *word = args->words[1], of_step[64];
        const bool job = strspn(word, "0123456789") == strlen(word);
        if (job && step >= 0) {
            (void)snprintf(of_step, sizeof(of_step), "%.32s@%lld", word, (long long)step);
            word = of_step;
        }
        if (job)
            TRY(checkpoint_resolve(ctl, &(struct args){.n = 1, .words = &word}, path, err));
        else
            (void)snprintf(path, sizeof(path), "%s", word);
        char *slash = strrchr(path, '/');
        if (job && step < 0 && slash) /* the folder of all of the job's checkpoints */
            *slash = '\0';
        if (!job && step >= 0) {
            argv[n++] = "--step";
            argv[n++] = (char *)(uintptr_t)args_text(args, "step", "");
        }
        if (ctl->json) {
            argv[n++] = "--output";
            argv[n++] = "json";
        }
        return worker_become(argv, err);
    }

    TRY(args_job(args, 0, &id, err));
    Titan__V1__ListCheckpointsRequest request = TITAN__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    request.job_id = id;
    _cleanup_message_ Titan__V1__ListCheckpointsResponse *reply = NULL;
    TRY(ctl_call(ctl, TITAN_METHOD("ListCheckpoints"), &request.base, &titan__v1__list_checkpoints_response__descriptor,
                 &reply, err));
    if (ctl->json) {
        (void)output_json(&reply->base, true);
        return TITAN_OK;
    }
    struct table_out table;
    table_begin(&table, (const char *const[]){"STEP>", "?EPOCH>", "?WORKERS>", "SIZE>", "COMMITTED", "PATH~", NULL});
    int64_t now_ms = clock_wall_ms();
    for (size_t i = 0; i < reply->n_checkpoints; i++) {
        const Titan__V1__Checkpoint *c = reply->checkpoints[i];
        char size[UNITS_TEXT], ago[48];
        table_cell(&table, "%llu", (unsigned long long)c->step);
        table_cell(&table, "%llu", (unsigned long long)c->epoch);
        table_cell(&table, "%u", c->world_size);
        table_cell(&table, "%s", format_bytes(c->bytes, size));
        table_cell(&table, "%s", output_ago(c->committed_at_ms, now_ms, ago));
        table_cell(&table, "%s", c->path);
    }
    table_print(&table, args, -1, false);
    return TITAN_OK;
}

const struct command command_checkpoints = {
    .name = "checkpoints",
    .summary = "list a job's checkpoints, or read them for damage",
    .arguments = "JOB | verify JOB|FOLDER",
    .text = "verify reads every file of every checkpoint in the job's folder, or in FOLDER, on this machine: sizes, "
            "checksums,\nheaders, that each tensor is there once and that all values are finite; of a Hugging Face "
            "directory, "
            "which has no\nchecksums, headers, sizes and index. A line each, with whether a run can be resumed from "
            "it; exit "
            "code 1 where one is\ndamaged or not finite.",
    .min_args = 1,
    .max_args = 2,
    .word = WORD_JOB,
    .options = (const struct option_spec[]){{"step", 0, "STEP", "verify: the checkpoint of this step alone", WORD_NONE},
                                            TABLE_WIDE("JOB: "),
                                            {NULL}},
    .examples = (const struct example[]){{"titanctl checkpoints 12", "steps, sizes and folders"},
                                         {"titanctl checkpoints verify 12", "are all of them sound?"},
                                         {NULL}},
    .run = run,
};
