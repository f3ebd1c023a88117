/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoints.c - titanctl checkpoints: what a job can be continued from. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    titan_assert(args->n == 1);
    struct ctl *ctl = with;
    uint64_t id;
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
    table_begin(&table, (const char *const[]){"STEP>", "EPOCH>", "WORKERS>", "SIZE>", "COMMITTED", "PATH", NULL});
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
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    table_end(&table, &text, -1, false);
    (void)output_line(&text);
    return TITAN_OK;
}

const struct command command_checkpoints = {
    .name = "checkpoints",
    .summary = "list a job's checkpoints",
    .arguments = "JOB",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_JOB,
    .examples = (const struct example[]){{"titanctl checkpoints 12", "steps, sizes and folders"}, {NULL}},
    .run = run,
};
