/* SPDX-License-Identifier: Apache-2.0 */
/* action_queue.c - carries out the core's actions in order, and keeps the core's time. Actions behind a record wait
 * until the record is on disk. */
#include "daemon/agent/shell/agent_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/slowest.h"
#include "daemon/agent/shell/flight_dumps.h"
#include "daemon/agent/shell/job_folders.h"

struct action_batch *agent_batch_new(void)
{
    struct action_batch *t = calloc(1, sizeof(*t));
    titan_assert(t);
    agent_actions_init(&t->actions);
    return t;
}

static void batch_free(struct action_batch *t)
{
    agent_actions_free(&t->actions);
    free(t);
}

/* Writes the state that the next agent of this node and workers without an agent need. */
void agent_publish(struct agent *a)
{
    workers_publish(a->workers, agent_core_term(a->core), agent_core_contact(a->core), agent_core_epoch_until(a->core));
}

static void on_tick_timer(uv_timer_t *timer)
{
    HANDLER("agent.tick");
    struct agent *a = timer->data;
    CORE(a, agent_core_tick);
}

static void on_sample_timer(uv_timer_t *timer)
{
    HANDLER("agent.sample");
    agent_sample_all(timer->data);
}

void agent_sample_all(struct agent *a)
{
    for (struct worker *w = workers_first(a->workers), *next; w; w = next) {
        struct agent_sample sample;
        next = w->next;
        if (w->dying || w->start)
            continue;
        worker_look(w, &sample);
        CORE(a, agent_core_sample, w->id, &sample);
    }
}

void agent_worker_not_started(struct agent *a, uint64_t job_id, uint64_t worker_id, const struct titan_error *why)
{
    tlog_error(&a->log, "worker not started", "job=%" PRIu64 " worker=%" PRIu64 " reason=\"%s\"", job_id, worker_id,
               why->msg);
    /* If the node lacks a resource, neither worker nor job is at fault. */
    const bool node_short = titan_error_short(why) || why->sys_errno == EAGAIN || why->status == TITAN_ENOMEM ||
                            why->status == TITAN_ETIMEDOUT || why->status == TITAN_EAGAIN;
    /* Does this node refuse the job's workers because of the job's user, folder or limits? */
    const bool refused = why->status == TITAN_EUNPLACEABLE ||
                         (a->as_users && (why->status == TITAN_EPERM || why->status == TITAN_EINVAL));
    const struct agent_exit how = {.code = titan_status_exit(why->status),
                                   .reason = why->msg,
                                   .not_started = true,
                                   .node_short = node_short,
                                   .refused = refused};
    CORE(a, agent_core_exited, worker_id, &how);
}

static void do_request(struct agent *a, const Titan__Internal__CoordinatorMessage *m)
{
    char job_dir[PATH_MAX];
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECK)
        node_checks_ask(a->checks, m->check);
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_RELEASE_GPUS)
        for (size_t i = 0; i < m->release_gpus->n_slots; i++)
            gpu_watch_release(a->gpus, m->release_gpus->slots[i]);
    /* Unlisted checkpoints are removed by the worker that writes the next checkpoint, because it knows which
     * checkpoints are its own. */
    if (m->kind_case != TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_LOG)
        return;
    if (m->log->cancel) {
        logs_cancel(a->logs, m->log->request_id);
        return;
    }
    /* A request that comes before the command to start follows the future logs. */
    const bool known = job_folder_find(a->settings.run_dir, m->log->job_id, job_dir) ||
                       job_folder_link(a->settings.run_dir, m->log->job_id, job_dir);
    if (m->log->flight) /* the dump is queued before the read, because a folder's tasks run in order */
        dump_job(a->workers, m->log->job_id, DUMP_REQUEST, a->files, &a->log);
    logs_request(a->logs, m->log, known ? job_dir : NULL);
}

/* Carries out any action but a message to the coordinator. */
static void carry_out(struct agent *a, const struct agent_action *x)
{
    static const enum log_level levels[] = {LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR};
    struct worker *w = workers_find(a->workers, x->worker_id); /* NULL = none, or an action without a worker */
    struct titan_error err = {0};
    titan_status status = TITAN_OK;
    switch (x->kind) {
    case AGENT_RECORD_TERM:
    case AGENT_RECORD_JOB:
    case AGENT_FORGET_JOB:
        titan_assert(!record_writer_busy(a->records)); /* no action passes a record that is not on disk */
        record_writer_start(a->records, x);            /* this batch waits until the record is written */
        break;
    case AGENT_SEND: /* the caller sends it */
        break;
    case AGENT_END_SESSION:
        session_end(a->session, x->text);
        break;
    case AGENT_COMMAND:
        if (!w || w->dying)
            break;
        if (x->command->kind_case == TITAN__INTERNAL__AGENT_TO_WORKER__KIND_REVOKE)
            /* the dump must show the waits that the revoke ends */
            dump_worker(w, DUMP_REVOKE, NULL, a->files, &a->log);
        const bool form = x->command->kind_case == TITAN__INTERNAL__AGENT_TO_WORKER__KIND_FORM;
        worker_send(w, x->command, form ? comm_segments_get(&a->segments, a->settings.node, x->command->form) : -1);
        break;
    case AGENT_START_WORKER:
        if (a->draining)
            status = titan_fail(&err, TITAN_ECANCELLED, "the node's daemon stops");
        else
            status = workers_start(a->workers, x->worker_id, x->start, &err);
        if (status != TITAN_OK)
            agent_worker_not_started(a, x->job_id, x->worker_id, &err);
        break;
    case AGENT_STOP_WORKER:
        if (w)
            workers_stop(w, x->grace_ms, x->grace_ms > 0, x->must_checkpoint, x->text);
        break;
    case AGENT_PEER:
        if (a->peers)
            peers_send(a->peers, x->text, x->peer);
        break;
    case AGENT_REQUEST:
        do_request(a, x->request);
        break;
    case AGENT_RANK:
        if (!w || (w->rank == x->rank && w->recorded))
            break;
        logs_record(a->logs, w->job_dir, w->id, (int32_t)x->rank);
        w->recorded = true;
        w->rank = x->rank;
        break;
    case AGENT_LOG:
        log_write(&a->log, levels[x->level], x->text, "%s", x->pairs);
        break;
    }
}

/* Carries out the actions of earlier inputs, then the actions of `batch`, the newest input's (NULL = none). If an
 * action causes an input, this appends a batch. */
void agent_carry_out(struct agent *a, struct action_batch *batch)
{
    const bool outermost = !a->carrying_out;
    agent_publish(a);
    if (batch && (a->closing || !batch->actions.first)) {
        batch_free(batch);
    } else if (batch) {
        batch->at = batch->actions.first;
        *a->batches_tail = batch;
        a->batches_tail = &batch->next;
    }
    a->carrying_out = true;
    while (outermost && a->batches && !record_writer_busy(a->records)) {
        struct action_batch *t = a->batches;
        const struct agent_action *x = a->closing ? NULL : t->at;
        if (!x) {
            a->batches = t->next;
            a->batches_tail = a->batches ? a->batches_tail : &a->batches;
            batch_free(t);
            continue;
        }
        t->at = x->next;
        if (x->kind != AGENT_SEND) {
            carry_out(a, x);
            continue;
        }

        if (x->send->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_STALLED) {
            /* Dumps the hanging worker and all its job's workers on this node. The dumps show what each of them waits
             * for. */
            const Titan__Internal__WorkerStalled *m = x->send->stalled;
            struct worker *w = workers_find(a->workers, m->worker_id);
            if (w)
                dump_worker(w, DUMP_HANG, m->stopped ? "stopped" : "no progress", a->files, &a->log);
            dump_job(a->workers, m->job_id, DUMP_HANG, a->files, &a->log);
        }
        const titan_status status = session_send(a->session, x->send);
        /* Two failures need no new session: the next session resends a message that an ended stream refused
         * (TITAN_ECANCELLED), and the next progress report supersedes a lost one. */
        if (status != TITAN_OK && status != TITAN_ECANCELLED &&
            x->send->kind_case != TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS)
            session_end(a->session,
                        status == TITAN_EAGAIN ? "the coordinator reads too slowly" : "no memory for a message");
    }
    if (outermost)
        a->carrying_out = false;
    titan_assert(a->batches ? !*a->batches_tail : a->batches_tail == &a->batches);
    titan_debug_assert(agent_core_check(a->core) && workers_check(a->workers));

    /* Arms timers for the core's next deadline, and for samples while there are workers. */
    int64_t due = agent_core_deadline(a->core);
    if (a->closing || due == INT64_MAX)
        (void)uv_timer_stop(&a->tick_timer);
    else {
        uv_update_time(a->loop);
        (void)uv_timer_start(&a->tick_timer, on_tick_timer, (uint64_t)MAX(due - clock_mono_ms(), INT64_C(1)), 0);
    }
    bool watch = agent_core_watches(a->core) && !a->closing;
    if (watch != (uv_is_active((uv_handle_t *)&a->sample_timer) != 0)) {
        if (watch)
            (void)uv_timer_start(&a->sample_timer, on_sample_timer, AGENT_SAMPLE_MS, AGENT_SAMPLE_MS);
        else
            (void)uv_timer_stop(&a->sample_timer);
    }
}
