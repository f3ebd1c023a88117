/* SPDX-License-Identifier: Apache-2.0 */
/* record_writer.c - see record_writer.h. */
#include "daemon/agent/shell/record_writer.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/failpoint.h"
#include "base/slowest.h"
#include "daemon/agent/shell/records.h"

#define AGAIN_MS 200

struct record_writer {
    uv_loop_t *loop;
    uv_work_t work;
    uv_timer_t again_timer;
    struct log log;
    char run_dir[PATH_MAX];
    const struct agent_action *record; /* NULL = none */
    titan_status status;
    struct titan_error err;
    bool failed;  /* an earlier write failed, and that was logged */
    bool on_disk; /* a thread is writing the record */
    void (*written)(void *);
    void (*done)(void *);
    void *data, *done_data;
};

struct record_writer *record_writer_open(uv_loop_t *loop, const char *run_dir, const struct log *log,
                                         void (*written)(void *data), void *data)
{
    struct record_writer *w = calloc(1, sizeof(*w));
    titan_assert(w);
    w->loop = loop;
    w->written = written;
    w->data = data;
    w->work.data = w;
    w->again_timer.data = w;
    w->log = *log;
    (void)snprintf(w->run_dir, sizeof(w->run_dir), "%s", run_dir);
    (void)uv_timer_init(loop, &w->again_timer);
    return w;
}

static void write_run(uv_work_t *work)
{
    struct record_writer *w = work->data;
    const struct agent_action *x = w->record;
    (void)!failpoint("agent.record", NULL);
    if (x->kind == AGENT_RECORD_TERM)
        w->status = record_write_term(w->run_dir, &x->seen, &w->err);
    else if (x->kind == AGENT_RECORD_JOB)
        w->status = record_write_job(w->run_dir, x->record, &w->err);
    else
        record_forget_job(w->run_dir, x->job_id), w->status = TITAN_OK;
    (void)!failpoint("agent.recorded", NULL);
}

static void write_done(uv_work_t *work, int status);

static void write_queue(struct record_writer *w)
{
    titan_assert(w->record && !w->on_disk);
    if (uv_queue_work(w->loop, &w->work, write_run, write_done) != 0)
        titan_bug("cannot queue work");
    w->on_disk = true;
}

static void on_again(uv_timer_t *timer)
{
    write_queue(timer->data);
}

static void write_done(uv_work_t *work, int status)
{
    HANDLER("agent.record");
    struct record_writer *w = work->data;
    (void)status;
    titan_assert(w->on_disk && w->record);
    w->on_disk = false;
    if (w->status != TITAN_OK) {
        if (!w->failed)
            tlog_error(&w->log, "record not written, trying again; messages wait until it is", "reason=\"%s\"",
                       w->err.msg);
        w->failed = true;
        (void)uv_timer_start(&w->again_timer, on_again, AGAIN_MS, 0);
        return;
    }
    if (w->failed)
        tlog_info(&w->log, "record written, messages go out again", "%s", "");
    w->failed = false;
    w->record = NULL;
    w->written(w->data);
}

void record_writer_start(struct record_writer *w, const struct agent_action *record)
{
    titan_assert(!w->record);
    titan_assert(record->kind == AGENT_RECORD_TERM || record->kind == AGENT_RECORD_JOB ||
                 record->kind == AGENT_FORGET_JOB);
    w->record = record;
    write_queue(w);
}

bool record_writer_busy(const struct record_writer *w)
{
    return w->record != NULL;
}

bool record_writer_fails(const struct record_writer *w)
{
    return w->record && w->failed;
}

bool record_writer_on_disk(const struct record_writer *w)
{
    return w->on_disk;
}

void record_writer_stop(struct record_writer *w)
{
    titan_assert(!w->on_disk);
    (void)uv_timer_stop(&w->again_timer);
    w->record = NULL;
}

static void on_closed(uv_handle_t *handle)
{
    struct record_writer *w = handle->data;
    void (*done)(void *) = w->done;
    void *data = w->done_data;
    free(w);
    done(data);
}

void record_writer_close(struct record_writer *w, void (*done)(void *), void *data)
{
    titan_assert(!w->record && !w->on_disk);
    w->done = done;
    w->done_data = data;
    uv_close((uv_handle_t *)&w->again_timer, on_closed);
}
