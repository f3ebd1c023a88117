/* SPDX-License-Identifier: Apache-2.0 */
/* flight.c - titanctl flight: the rank missing from a collective, from the workers' flight recorders. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/vec.h"
#include "ctl/args.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"
#include "ctl/stall.h"

#define DUMP_BEGINS "{\"flight\":"
#define TRIES 4 /* retries for a node that leaves before it answers */
#define PAUSE_NS 300000000
#define TEXT_MAX ((size_t)512 << 20) /* most bytes of all dumps together */

/* The concatenated dumps of one worker, as received. */
struct worker_text {
    uint64_t worker;
    struct buf text;
};

struct gathered {
    struct worker_text *workers;
    size_t n_workers, cap_workers, bytes;
    struct stall_dump *dumps;
    size_t n, cap;
    int unread;             /* number of damaged dumps */
    struct titan_error why; /* error of the first damaged dump */
};

static bool gather(const ProtobufCMessage *message, void *data)
{
    const Titan__V1__LogChunk *chunk = (const Titan__V1__LogChunk *)message;
    struct gathered *g = data;
    size_t i = 0;
    titan_assert(g->n_workers <= g->cap_workers);
    while (i < g->n_workers && g->workers[i].worker != chunk->worker_id)
        i++;
    const struct worker_text fresh = {.worker = chunk->worker_id};
    if (i == g->n_workers && !VEC_PUSH(g->workers, g->n_workers, g->cap_workers, fresh))
        return false;
    g->bytes += chunk->data.len;
    return g->bytes <= TEXT_MAX && buf_append(&g->workers[i].text, chunk->data.data, chunk->data.len) == TITAN_OK;
}

static titan_status read_dump(struct gathered *g, const char *text, size_t len, struct titan_error *err)
{
    struct stall_dump dump;
    struct titan_error why = {0};
    if (stall_read(text, len, &dump, &why) != TITAN_OK) {
        if (g->unread++ == 0)
            g->why = why;
        return TITAN_OK;
    }
    if (VEC_PUSH(g->dumps, g->n, g->cap, dump))
        return TITAN_OK;
    stall_dump_free(&dump);
    return titan_fail(err, TITAN_ENOMEM, "out of memory");
}

/* Newest epoch first, then by rank. */
static int by_epoch(const void *a, const void *b)
{
    const struct flight_copy *x = ((const struct stall_dump *)a)->copy, *y = ((const struct stall_dump *)b)->copy;
    return x->epoch != y->epoch ? (x->epoch < y->epoch) - (x->epoch > y->epoch) : x->rank - y->rank;
}

static titan_status print(struct ctl *ctl, uint64_t job, const struct gathered *g, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text};
    if (ctl->json) {
        json_begin_object(&w, NULL);
        json_put_uint(&w, "job", job);
        json_put_int(&w, "unread", g->unread);
        json_begin_array(&w, "epochs");
    }
    for (size_t i = 0, next; i < g->n; i = next) {
        const struct stall_dump *first = &g->dumps[i];
        struct stall_slowest slowest;
        struct stall_report report;
        next = i + 1; /* dumps of an epoch are side by side */
        while (next < g->n && g->dumps[next].copy->epoch == first->copy->epoch)
            next++;
        TRY(stall_slowest(first, (int)(next - i), &slowest, err));
        TRY(stall_find(first, (int)(next - i), &report, err));
        if (ctl->json)
            stall_put(&report, &slowest, first, (int)(next - i), &w);
        else {
            char at[16];
            titan_assert(report.n == 0 || report.stalls);
            buf_printf(&text, "epoch %llu, %s: ", (unsigned long long)report.epoch, output_clock(first->time_ms, at));
            if (report.circle)
                buf_puts(&text, "each of these waits for another one, the ranks' orders differ\n");
            else if (report.n == 0)
                stall_print_none(&report, &text);
            if (report.n == 0)
                stall_print_slowest(&slowest, &text);
            for (int k = 0; k < report.n; k++) {
                const bool below = report.circle || (k > 0 && !report.stalls[k].root);
                /* If the first wait causes the others, it is enough to print the first. */
                if (below && !report.circle && report.stalls[0].root)
                    break;
                buf_puts(&text, k == 0 ? report.circle ? "  " : "" : "\n  ");
                stall_print(&report, &report.stalls[k], &text);
            }
            if (report.damaged)
                buf_printf(&text, "\n  %d records were damaged and are left out", report.damaged);
            buf_puts(&text, "\n");
        }
        stall_report_free(&report);
    }
    if (ctl->json) {
        json_end_array(&w);
        json_end_object(&w);
    } else {
        if (g->unread)
            buf_printf(&text, "dumps that are damaged: %d (%s)\n", g->unread, g->why.msg);
        if (text.len)
            text.data[--text.len] = '\0';
    }
    if (buf_failed(&text))
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    (void)output_line(&text);
    return TITAN_OK;
}

static void drop_texts(struct gathered *g)
{
    for (size_t i = 0; i < g->n_workers; i++)
        buf_free(&g->workers[i].text);
    g->n_workers = g->bytes = 0;
}

static void gathered_free(struct gathered *g)
{
    drop_texts(g);
    for (size_t i = 0; i < g->n; i++)
        stall_dump_free(&g->dumps[i]);
    free(g->workers);
    free(g->dumps);
}

/* Asks again after an incomplete reply. An empty reply counts as incomplete if an earlier reply was incomplete. */
static titan_status ask(struct ctl *ctl, const Titan__V1__LogsRequest *request, struct gathered *g,
                        struct titan_error *err)
{
    const struct stream_call call = {TITAN_METHOD("Logs"), &request->base, &titan__v1__log_chunk__descriptor, gather,
                                     g};
    struct titan_error cut = {0};
    for (int i = 0; i < TRIES; i++) {
        const struct timespec pause = {.tv_nsec = PAUSE_NS};
        if (i > 0)
            (void)nanosleep(&pause, NULL);
        drop_texts(g);
        const titan_status status = ctl_stream(ctl, &call, err);
        if (status == TITAN_OK && (g->n_workers > 0 || cut.status == TITAN_OK))
            return TITAN_OK;
        if (status == TITAN_OK)
            continue;
        if (status != TITAN_EUNREACHABLE || err->sys_errno == ENOTCONN)
            return status;
        cut = *err;
    }
    *err = cut;
    return cut.status;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    _cleanup_(gathered_free) struct gathered g = {.n = 0};
    uint64_t job;
    TRY(args_job(args, 0, &job, err));
    Titan__V1__LogsRequest request = TITAN__V1__LOGS_REQUEST__INIT;
    request.job_id = job;
    request.rank = -1;
    request.flight = true;
    TRY(ask(ctl, &request, &g, err));
    if (g.bytes > TEXT_MAX)
        return titan_fail(err, TITAN_ELIMIT, "the dumps of job %llu have more than %zu MiB", (unsigned long long)job,
                          TEXT_MAX >> 20);

    /* Skips lines before a worker's first dump: a node of an older version sends logs. */
    for (size_t i = 0; i < g.n_workers; i++) {
        const char *line = g.workers[i].text.data, *dump = NULL;
        const char *const end = line + g.workers[i].text.len;
        while (line && line < end) {
            const bool begins = !strncmp(line, DUMP_BEGINS, strlen(DUMP_BEGINS));
            if (begins && dump)
                TRY(read_dump(&g, dump, (size_t)(line - dump), err));
            dump = begins ? line : dump;
            const char *newline = memchr(line, '\n', (size_t)(end - line));
            line = newline ? newline + 1 : end;
        }
        if (dump)
            TRY(read_dump(&g, dump, (size_t)(end - dump), err));
    }
    if (g.n == 0 && g.unread == 0) {
        const titan_status status =
            titan_fail(err, TITAN_ENOTFOUND, "job %llu has no dumps of flight recorders", (unsigned long long)job);
        titan_error_hint(err, "they are written when a worker hangs or fails, and for this command while it trains");
        return status;
    }
    if (g.n > 1)
        qsort(g.dumps, g.n, sizeof *g.dumps, by_epoch);
    return print(ctl, job, &g, err);
}

const struct command command_flight = {
    .name = "flight",
    .summary = "say which rank is missing in which collective",
    .arguments = "JOB",
    .text =
        "Each worker records its last 1024 operations and collectives. The agents write them to the job's folder\n"
        "(flight/) when a worker hangs, when it ends with an error, when an epoch is revoked, and for this command.\n"
        "For each epoch that has dumps, the newest first, a line says which rank the others waited for, and what\n"
        "that one was in. Of a job that runs, waits below a second are left out, and the rank is named that comes "
        "last\n"
        "into most collectives, if the others wait for it for a tenth of their time.",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_JOB,
    .examples = (const struct example[]){{"titanctl flight 12", "what job 12 waits for, or waited for"},
                                         {"titanctl flight 12 -o json", "the same as data"},
                                         {NULL}},
    .run = run,
};
