/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - titanctl report: a job as a page for a browser. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "ctl/args.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"
#include "ctl/report.h"
#include "ctl/report_page.h"
#include "ctl/submit.h"

struct gathering {
    struct curves curves;
    struct history history;
    bool no_memory;
};

static bool each_point(const ProtobufCMessage *message, void *data)
{
    struct gathering *g = data;
    curves_add(&g->curves, (const Titan__V1__MetricPoint *)message);
    return true;
}

static bool each_event(const ProtobufCMessage *message, void *data)
{
    struct gathering *g = data;
    output_fit(message);
    g->no_memory = !history_add(&g->history, (const Titan__V1__Event *)message);
    return !g->no_memory;
}

static void gathering_free(struct gathering *g)
{
    curves_free(&g->curves);
    history_free(&g->history);
}

titan_status report_page_of(struct ctl *ctl, uint64_t id, struct buf *out, struct titan_error *err)
{
    _cleanup_(gathering_free) struct gathering g = {.no_memory = false};

    /* The page needs the job, its metrics and its events; other content is optional. */
    _cleanup_message_ Titan__V1__GetJobResponse *job = NULL;
    _cleanup_message_ Titan__V1__GetRecipeResponse *recipe = NULL;
    _cleanup_message_ Titan__V1__ListNodesResponse *nodes = NULL;
    _cleanup_message_ Titan__V1__VersionResponse *version = NULL;
    const Titan__V1__ListNodesRequest ask_nodes = TITAN__V1__LIST_NODES_REQUEST__INIT;
    const Titan__V1__VersionRequest ask_version = TITAN__V1__VERSION_REQUEST__INIT;
    struct titan_error no_recipe = {0}, unsaid = {0};
    struct recipe resolved;

    TRY(ctl_job(ctl, id, &job, err));

    Titan__V1__MetricsRequest metrics = TITAN__V1__METRICS_REQUEST__INIT;
    Titan__V1__WatchEventsRequest events = TITAN__V1__WATCH_EVENTS_REQUEST__INIT;
    metrics.job_id = events.job_id = id;
    if (!curves_init(&g.curves))
        return titan_fail(err, TITAN_ENOMEM, "report: out of memory");
    TRY(ctl_stream(ctl,
                   &(struct stream_call){TITAN_METHOD("Metrics"), &metrics.base, &titan__v1__metric_point__descriptor,
                                         each_point, &g},
                   err));
    TRY(ctl_stream(
        ctl,
        &(struct stream_call){TITAN_METHOD("WatchEvents"), &events.base, &titan__v1__event__descriptor, each_event, &g},
        err));
    history_end(&g.history);
    if (g.no_memory)
        return titan_fail(err, TITAN_ENOMEM, "report: out of memory");

    (void)!submit_recipe_of(ctl, id, &recipe, &no_recipe);
    (void)!ctl_call(ctl, TITAN_METHOD("ListNodes"), &ask_nodes.base, &titan__v1__list_nodes_response__descriptor,
                    &nodes, &unsaid);
    (void)!ctl_call(ctl, TITAN_METHOD("Version"), &ask_version.base, &titan__v1__version_response__descriptor, &version,
                    &unsaid);
    recipe_init(&resolved);
    const bool readable = recipe && recipe_parse(&resolved, recipe->recipe, "the job's", &unsaid) == TITAN_OK &&
                          recipe_resolve(&resolved, &unsaid) == TITAN_OK;
    const struct report_page page = {.job = job->job,
                                     .server_version = version ? version->version : NULL,
                                     .recipe = recipe ? recipe->recipe : NULL,
                                     .why_no_recipe = no_recipe.msg,
                                     .resolved = readable ? &resolved : NULL,
                                     .nodes = nodes,
                                     .curves = &g.curves,
                                     .history = &g.history,
                                     .now_ms = clock_wall_ms()};
    return report_page_put(&page, out) ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "report: out of memory");
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    _cleanup_(buf_free) struct buf page = BUF_INIT, reported = BUF_INIT;
    char usual[64];
    uint64_t id;
    TRY(args_job(args, 0, &id, err));
    (void)snprintf(usual, sizeof(usual), "job-%llu.html", (unsigned long long)id);
    const char *file = args_text(args, "out", usual);
    const bool to_output = strcmp(file, "-") == 0;
    if (ctl->json && to_output)
        return titan_fail(err, TITAN_EINVAL, "--out -: with -o json the page goes to a file");
    TRY(report_page_of(ctl, id, &page, err));
    if (to_output) {
        (void)output_line(&page);
        return TITAN_OK;
    }
    TRY(file_write(file, page.data, page.len, err));
    struct json_writer w = {.out = &reported};
    if (ctl->json) {
        json_begin_object(&w, NULL);
        json_put_uint(&w, "job_id", id);
        json_put_string(&w, "file", file);
        json_put_uint(&w, "bytes", page.len);
        json_end_object(&w);
    } else {
        buf_puts(&reported, file);
    }
    (void)output_line(&reported);
    return TITAN_OK;
}

const struct command command_report = {
    .name = "report",
    .summary = "write a job's curves, events, recoveries, recipe and environment as one HTML page",
    .arguments = "JOB",
    .text =
        "The page needs nothing but a browser: no network, no other file. Of a job with many steps each curve is its "
        "mean with\nthe range from least to largest, in at most 2048 pieces; values that are not finite are gaps.",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_JOB,
    .options = (const struct option_spec[]){{"out", 0, "FILE",
                                             "where to (default: job-JOB.html in the current folder); - is standard "
                                             "output",
                                             WORD_FILE},
                                            {NULL}},
    .examples = (const struct example[]){{"titanctl report 12", "write job-12.html and print its name"},
                                         {"titanctl report 12 --out - | ssh web 'cat > job.html'", "elsewhere"},
                                         {NULL}},
    .run = run,
};
