/* SPDX-License-Identifier: Apache-2.0 */
/* report_queue.c - messages to the coordinator, and the queue of reports that must arrive.
 *
 * A report stays in the queue until KEEP_MS after the answer to a later heartbeat, because a coordinator that takes
 * over soon after the answer may lack the report. A new session resends all reports; receivers ignore a repeated
 * report. */
#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/agent/core/agent_core_internal.h"

#define KEEP_MS 5000
#define KEEP_MAX 4096 /* reports; less than a stream's queue holds (proto/rpc/client.h) */

bool agent_core_registered(const struct agent_core *c)
{
    return c->registered && !c->ending;
}

void agent_send(struct agent_core *c, agent_message *m, struct agent_actions *out)
{
    const bool always = m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION ||
                        m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_REFUSED;
    m->term = c->registered ? c->session_term : c->seen.term; /* the message has a term even if no session takes it */
    titan_assert(m->term <= c->seen.term);
    if (c->up && !c->ending && (c->registered || always))
        agent_action_add(out, AGENT_SEND)->send = agent_action_copy(out, &m->base);
}

static void report_drop_first(struct agent_core *c)
{
    struct report *r = c->reports;
    titan_assert(r && c->n_reports > 0);
    c->reports = r->next;
    c->reports_last = c->reports ? c->reports_last : NULL;
    c->n_reports--;
    free(r);
}

void agent_reports_expire(struct agent_core *c, int64_t now)
{
    while (c->reports && c->reports->sent && c->reports->sent_at < c->contact_at && now - c->reports->sent_at > KEEP_MS)
        report_drop_first(c);
}

void agent_reports_resend(struct agent_core *c)
{
    titan_assert(!c->reports_last || !c->reports_last->next);
    for (struct report *r = c->reports; r; r = r->next)
        r->sent = false;
}

void agent_reports_flush(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    for (struct report *r = c->reports; r && c->registered; r = r->next) {
        if (r->sent)
            continue;
        agent_message *m = titan__internal__agent_message__unpack(NULL, r->len, r->bytes);
        titan_assert(m);
        agent_send(c, m, out);
        titan__internal__agent_message__free_unpacked(m, NULL);
        r->sent = true;
        r->sent_at = now;
    }
}

void agent_report_keep(struct agent_core *c, const agent_message *m, int64_t now, struct agent_actions *out)
{
    titan_assert(m->kind_case != TITAN__INTERNAL__AGENT_MESSAGE__KIND__NOT_SET);
    size_t len = titan__internal__agent_message__get_packed_size(m);
    struct report *r = malloc(sizeof(*r) + len);
    titan_assert(r);
    titan_assert(!c->registered || !c->reports_last || c->reports_last->sent); /* no earlier report waits */
    *r = (struct report){.len = len, .sent = c->registered, .sent_at = now};
    (void)titan__internal__agent_message__pack(m, r->bytes);
    if (c->n_reports == KEEP_MAX) {
        agent_log(out, AGENT_WARN, "too many reports wait for the coordinator, the oldest is dropped", "%s", "");
        report_drop_first(c);
    }
    *(c->reports_last ? &c->reports_last->next : &c->reports) = r;
    c->reports_last = r;
    c->n_reports++;
    titan_assert(c->n_reports <= KEEP_MAX);
}

void agent_report(struct agent_core *c, agent_message *m, int64_t now, struct agent_actions *out)
{
    agent_report_keep(c, m, now, out);
    agent_send(c, m, out);
}

void agent_progress(struct agent_core *c, struct agent_worker *w, agent_message *m, struct agent_actions *out)
{
    titan_assert(m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS);
    if (w->progress)
        titan__internal__agent_message__free_unpacked(w->progress, NULL);
    w->progress = agent_message_copy(&m->base);
    w->progress_kept = false;
    agent_send(c, m, out);
}

void agent_progress_keep(struct agent_core *c, struct agent_worker *w, int64_t now, struct agent_actions *out)
{
    if (!w->progress || w->progress_kept)
        return;
    agent_report_keep(c, w->progress, now, out);
    w->progress_kept = true;
}
