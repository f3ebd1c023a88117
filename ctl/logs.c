/* SPDX-License-Identifier: Apache-2.0 */
/* logs.c - titanctl logs: output of the workers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "base/vec.h"
#include "ctl/args.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/live_stream.h"
#include "ctl/output.h"

struct printing {
    struct ctl *ctl;
    bool prefix; /* prefix each line with its rank, because there are several */
    Titan__V1__LogsRequest request;
    size_t cap_after;
};

static bool each(const ProtobufCMessage *message, void *data)
{
    struct printing *p = data;
    const Titan__V1__LogChunk *chunk = (const Titan__V1__LogChunk *)message;
    const char *at = (const char *)chunk->data.data, *end = at ? at + chunk->data.len : at;
    if (p->ctl->json)
        (void)output_json(message, false);
    while (!p->ctl->json && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t len = newline ? (size_t)(newline - at) : (size_t)(end - at);
        if (p->prefix)
            (void)printf("[%d] ", chunk->rank);
        if (!p->ctl->online)
            (void)fwrite(at, 1, len, stdout);
        else {
            /* Prints a worker's text safely: no control sequences reach the terminal. Tabs stay. */
            for (size_t k = 0, fit; k < len;) {
                fit = text_unfit(at + k, len - k);
                titan_assert(k + fit <= len);
                (void)fwrite(at + k, 1, fit, stdout);
                k += fit;
                if (k == len)
                    break;
                (void)fputc(at[k] == '\t' ? '\t' : '?', stdout);
                const bool several = (at[k++] & 0x80) != 0;
                while (several && k < len && (at[k] & 0xc0) == 0x80)
                    k++;
            }
        }
        (void)fputc('\n', stdout);
        at += len + 1;
    }

    /* Records each worker's position, where the stream continues after an absence of the server. */
    Titan__V1__LogsRequest *r = &p->request;
    size_t i = 0;
    r->tail_lines = 0;
    while (i < r->n_after && r->after[i]->worker_id != chunk->worker_id)
        i++;
    if (i == r->n_after && chunk->position) {
        Titan__V1__LogPosition *after = malloc(sizeof(*after));
        if (after && VEC_PUSH(r->after, r->n_after, p->cap_after, after)) {
            titan__v1__log_position__init(after);
            after->worker_id = chunk->worker_id;
        } else {
            free(after);
        }
    }
    if (i < r->n_after)
        r->after[i]->position = chunk->position;
    return fflush(stdout) == 0;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    uint64_t id;
    int64_t rank, tail;
    TRY(args_job(args, 0, &id, err));
    TRY(args_int(args, "rank", (struct int_range){0, 1000000}, -1, &rank, err));
    TRY(args_int(args, "tail", (struct int_range){1, 1000000}, 0, &tail, err));
    struct printing p = {.ctl = ctl, .prefix = rank < 0, .request = TITAN__V1__LOGS_REQUEST__INIT};
    struct live_stream live = {
        .ctl = ctl,
        .call = {TITAN_METHOD("Logs"), &p.request.base, &titan__v1__log_chunk__descriptor, each, &p},
        .job_id = id};
    TRY(live_stream_patience(args, &live.patience_ms, err));
    p.request.job_id = id;
    p.request.rank = (int32_t)rank;
    p.request.tail_lines = (uint32_t)tail;
    p.request.follow = args_has(args, "follow");
    live.once = !p.request.follow;
    const titan_status status = live_stream_read(&live, err);
    for (size_t i = 0; i < p.request.n_after; i++)
        free(p.request.after[i]);
    free(p.request.after);
    return status;
}

const struct command command_logs = {
    .name = "logs",
    .summary = "print what the workers of a job wrote",
    .arguments = "JOB",
    .text =
        "Lines of several ranks have the rank in front, as in [2]. Each worker's log is kept up to a size; the oldest\n"
        "lines go first. On a terminal, characters that it would obey are shown as ?.",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_JOB,
    .options = (const struct option_spec[]){{"follow", 'f', NULL, "go on until the job has ended", WORD_NONE},
                                            {"rank", 'r', "RANK", "only this rank (default: all)", WORD_NONE},
                                            {"tail", 'n', "N", "only the last N lines of each rank", WORD_NONE},
                                            SERVER_GONE,
                                            {NULL}},
    .examples = (const struct example[]){{"titanctl logs 12 --rank 0 -f", "follow rank 0"},
                                         {"titanctl logs 12 --tail 20", "the last 20 lines of each rank"},
                                         {NULL}},
    .run = run,
};
