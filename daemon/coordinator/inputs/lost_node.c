/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/inputs/lost_node.h"

#include "base/cleanup.h"
#include "daemon/coordinator/cluster/failure_detector.h"
#include "daemon/coordinator/cluster/fencing.h"
#include "daemon/coordinator/inputs/input.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/messages.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/run/job_driver.h"
#include "daemon/coordinator/run/kept_epochs.h"
#include "daemon/coordinator/run/quorum.h"
#include "daemon/coordinator/run/recovery.h"
#include "daemon/coordinator/run/worker_end.h"

#define EPHEMERAL_GONE_MS 60000

void node_lose(struct core *c, struct noderec *n, const char *words)
{
    if (n->session)
        batch_drop(c->out, n->session);
    core_set_session(c, n, 0);
    /* seen_mono of an awaited node may be in the future */
    const int64_t silent = MAX(c->now.mono_ms - n->seen_mono, (int64_t)0);
    move_node(c, n, NODE_LOST, words);
    detector_lost(c, n);
    const char *why = batch_printf(c->out, "node %s is lost", n->name);
    for (struct jobrec *j = c->active, *next; j; j = next) {
        next = j->next;
        bool hit = false;
        for (size_t i = j->n_workers; i-- > 0;) {
            if (j->workers[i]->node != n)
                continue;
            if (quorum_keeps(c, j->workers[i])) {
                j->workers[i]->away = true;
                if (job_rank_slot(j, j->workers[i]))
                    recovery_begin(c, j);
            } else {
                worker_ended(c, j->workers[i], NULL, why);
            }
            recovery_detected(j, silent);
            hit = true;
        }
        if (hit)
            job_received(c, j);
    }
    c->slots_changed = true;
}

/* The node will not return. So nothing waits for its reports any more. */
static void give_up(struct core *c, struct noderec *n, const char *words, const struct emit *default_event)
{
    n->given_up = true;
    for (struct jobrec *j = c->active; j; j = j->next)
        quorum_give_up(c, j, n);
    if (n->state == NODE_READY)
        node_lose(c, n, words);
    else
        emit_event(c, NULL, *default_event);
    for (struct jobrec *j = c->active; j; j = j->next)
        quorum_end_away(c, j, n);
    kept_node_known(c, n, NULL);
    job_driver_look_again(c, n);
    for (struct jobrec *j = c->active, *next; j; j = next) {
        next = j->next;
        job_advance(c, j);
    }
    core_finish(c);
}

titan_status core_node_forget(struct core *c, const char *node, struct core_time now, struct batch *out,
                              struct titan_error *err)
{
    struct noderec *n = core_find_node(c, node);
    if (!n)
        return titan_fail(err, TITAN_ENOTFOUND, "there is no node '%.253s'", node);
    if (n->session) {
        titan_status status = titan_fail(err, TITAN_ECONFLICT, "node %s is connected: it is not gone", n->name);
        if (err)
            titan_error_hint(err, "titanctl drain takes it out of service");
        return status;
    }
    core_begin(c, now, out);
    give_up(c, n, "is lost: given up by an operator",
            &(struct emit){.type = "node.forgotten",
                           .message = batch_printf(c->out, "node %s is given up by an operator", n->name),
                           .node = n});
    return TITAN_OK;
}

/* --- removal ------------------------------------------------------------------------------------------------------ */

/* Finds a job that has workers on the node, or waits for reports about its former workers there. */
static const struct jobrec *needed_by(const struct core *c, const struct noderec *n)
{
    for (const struct jobrec *j = c->active; j; j = j->next)
        if (job_on_node(j, n))
            return j;
    return kept_any_awaits(c, n);
}

static void remove_node(struct core *c, struct noderec *n, const char *words)
{
    move_node_out(c, n, words);
    kept_drop_node(c, n);
    core_drop_node(c, n);
}

titan_status core_node_remove(struct core *c, const char *node, struct core_time now, struct batch *out,
                              struct titan_error *err)
{
    struct noderec *n = core_find_node(c, node);
    if (!n)
        return titan_fail(err, TITAN_ENOTFOUND, "there is no node '%.253s'", node);
    if (n->session || n->state != NODE_LOST) {
        (void)titan_fail(err, TITAN_ECONFLICT, "node %s is %s: it is not gone", n->name,
                         n->session ? "connected" : "not lost yet");
        if (err)
            titan_error_hint(err, "titanctl drain takes it out of service; when its agent has ended it can be removed");
        return TITAN_ECONFLICT;
    }
    if (c->stale)
        return titan_fail(err, TITAN_ECONFLICT,
                          "the job store was restored and is not settled: workers that it does not know of may run on "
                          "node %s",
                          n->name);
    const struct jobrec *j = needed_by(c, n);
    if (j) {
        (void)titan_fail(err, TITAN_ECONFLICT, "workers of job %llu may run on node %s still",
                         (unsigned long long)j->id, n->name);
        if (err)
            titan_error_hint(err, "titanctl node forget %s ends the wait, when the machine is off for certain",
                             n->name);
        return TITAN_ECONFLICT;
    }
    core_begin(c, now, out);
    remove_node(c, n, "is removed by an operator");
    core_finish(c);
    return TITAN_OK;
}

void lost_nodes_tick(struct core *c)
{
    for (struct noderec *n = c->nodes, *next; n; n = next) {
        next = n->next;
        /* A node that only seemed gone may return. Its record then decides when it gets work again. */
        const bool over = node_empties(n) || c->now.mono_ms - n->lost_mono >= EPHEMERAL_GONE_MS;
        if (n->ephemeral && n->state == NODE_LOST && !n->session && over && !c->stale && !needed_by(c, n))
            remove_node(c, n, "is removed: it is ephemeral, and gone");
    }
}

void core_node_revoke(struct core *c, const char *node, const char *identity, struct core_time now, struct batch *out)
{
    struct noderec *n = core_find_node(c, node);
    fence_revoke(c, identity);
    if (!n || core_fenced(c))
        return;
    core_begin(c, now, out);
    send_stop_all(c, n, "the node's certificate is revoked");
    give_up(c, n, "is lost: its certificate is revoked",
            &(struct emit){.type = "node.forgotten",
                           .message = batch_printf(c->out, "node %s is given up: its certificate is revoked", n->name),
                           .node = n});
}
