/* SPDX-License-Identifier: Apache-2.0 */
/* status.c - titanctl status: all about one job. */
#include <math.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "ctl/args.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"
#include "ctl/submit.h"

static void put_time(struct buf *out, const char *what, int64_t at_ms, int64_t now_ms)
{
    char at[32], ago[48];
    if (at_ms > 0)
        buf_printf(out, "  %-12s %s (%s)\n", what, clock_format(at_ms, at), output_ago(at_ms, now_ms, ago));
}

static void put_job(struct buf *out, const Titan__V1__Job *job, bool color)
{
    char count[UNITS_TEXT];
    const char *state = ctl_state_name(job->state), *paint = color ? output_state_color(state) : "";
    int64_t now_ms = clock_wall_ms();
    buf_printf(out, "job %llu  %s  %s%s%s\n", (unsigned long long)job->id, job->name, paint, state,
               *paint ? COLOR_OFF : "");
    if (*job->reason)
        buf_printf(out, "  %-12s %s\n", "reason", job->reason);
    buf_printf(out, "  %-12s %llu of %llu\n", "step", (unsigned long long)job->step, (unsigned long long)job->steps);
    if (isfinite(job->loss) && job->step > 0)
        buf_printf(out, "  %-12s %.4f\n", "loss", job->loss);
    const Titan__V1__Evaluation *v = job->validation;
    if (v) {
        buf_printf(out, "  %-12s loss %.4f, perplexity %.2f", "validation", v->loss, v->perplexity);
        if (isfinite(v->bits_per_byte))
            buf_printf(out, ", %.4f bits per byte", v->bits_per_byte);
        buf_printf(out, ", after step %llu\n", (unsigned long long)v->step);
    }
    if (job->tokens_per_second > 0)
        buf_printf(out, "  %-12s %s tokens/s\n", "speed", format_count(job->tokens_per_second, count));
    if (job->mfu > 0)
        buf_printf(out, "  %-12s %.1f %%\n", "mfu", 100 * job->mfu);
    buf_printf(out, "  %-12s %u (from %u to %u)\n", "workers", job->world_size, job->min_workers, job->max_workers);
    for (size_t i = 0; i < job->n_nodes; i++)
        buf_printf(out, "%s%s (%u)%s", i ? ", " : "  nodes        ", job->nodes[i]->node, job->nodes[i]->workers,
                   i + 1 == job->n_nodes ? "\n" : "");
    buf_printf(out, "  %-12s %llu\n", "epoch", (unsigned long long)job->epoch);
    if (job->wanted_max)
        buf_printf(out, "  %-12s %u to %u\n", "asked for", job->wanted_min ? job->wanted_min : job->min_workers,
                   job->wanted_max);

    /* "2 (crash 1 of 10, oom 1 of 3 within 24 h)" */
    buf_printf(out, "  %-12s %u", "restarts", job->restarts);
    for (size_t i = 0; i < job->n_losses; i++)
        buf_printf(out, "%s%s %u of %u", i ? ", " : " (", job->losses[i]->cause, job->losses[i]->count,
                   job->losses[i]->budget);
    uint64_t window = job->n_losses ? job->losses[0]->window_s : 0;
    if (window && window % 3600 == 0)
        buf_printf(out, " within %llu h)", (unsigned long long)window / 3600);
    else if (window)
        buf_printf(out, " within %llu s)", (unsigned long long)window);
    buf_puts(out, "\n");

    if (job->priority)
        buf_printf(out, "  %-12s %d\n", "priority", job->priority);
    if (job->preemptions)
        buf_printf(out, "  %-12s %u time%s\n", "preempted", job->preemptions, job->preemptions == 1 ? "" : "s");
    if (*job->user)
        buf_printf(out, "  %-12s %s\n", "user", job->user);
    for (size_t i = 0; i < job->n_labels; i++)
        buf_printf(out, "  %-12s %s\n", i ? "" : "labels", job->labels[i]);
    put_time(out, "submitted", job->submitted_at_ms, now_ms);
    put_time(out, "started", job->started_at_ms, now_ms);
    put_time(out, "finished", job->finished_at_ms, now_ms);
    if (job->checkpoint_failures)
        buf_printf(out, "  %-12s %u checkpoints not written\n", "failures", job->checkpoint_failures);
    if (*job->checkpoint)
        buf_printf(out, "  %-12s %s\n", "checkpoint", job->checkpoint);
    if (*job->directory)
        buf_printf(out, "  %-12s %s\n", "directory", job->directory);
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    uint64_t id;
    TRY(args_job(args, 0, &id, err));
    if (args_has(args, "recipe")) {
        _cleanup_message_ Titan__V1__GetRecipeResponse *reply = NULL;
        TRY(submit_recipe_of(ctl, id, &reply, err));
        if (ctl->json)
            (void)output_json(&reply->base, false);
        else
            (void)fputs(reply->recipe, stdout);
        return TITAN_OK;
    }
    _cleanup_message_ Titan__V1__GetJobResponse *reply = NULL;
    TRY(ctl_job(ctl, id, &reply, err));
    if (ctl->json) {
        (void)output_json(&reply->job->base, true);
        return TITAN_OK;
    }
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    output_fit(&reply->job->base);
    put_job(&text, reply->job, ctl->color);
    (void)output_line(&text);
    return TITAN_OK;
}

static const struct option_spec options[] = {
    {"recipe", 0, NULL, "its run file as it was stored: every key with its value", WORD_NONE}, {NULL}};

const struct command command_status = {
    .name = "status",
    .summary = "show one job in full",
    .arguments = "JOB",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_JOB,
    .options = options,
    .examples = (const struct example[]){{"titanctl status 12", "how job 12 is doing"},
                                         {"titanctl -o json status 12 | jq -r .state", "one field, in a script"},
                                         {NULL}},
    .run = run,
};

const struct command command_show = {
    .name = "show",
    .summary = "show one job in full, or its run file; the same as status",
    .arguments = "JOB",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_JOB,
    .options = options,
    .examples = (const struct example[]){{"titanctl show 12 --recipe > again.toml", "the run file of job 12"}, {NULL}},
    .run = run,
};
