/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/restart_budget.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "base/vec.h"
#include "daemon/coordinator/cluster/quarantine.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/run/job_end.h"

struct budget {
    enum loss_cause cause;
    const char *one, *many, *key;
    uint32_t most;
};

static struct budget budget_of(const struct job_spec *spec, enum loss_cause cause)
{
    switch (cause) {
    case LOSS_NODE:
        return (struct budget){LOSS_NODE, "worker lost with its node", "workers lost with their nodes",
                               "max_node_losses", spec->max_node_losses};
    case LOSS_HANG:
        return (struct budget){LOSS_HANG, "worker hung", "workers hung", "max_hangs", spec->max_hangs};
    case LOSS_OOM:
        return (struct budget){LOSS_OOM, "worker out of memory", "workers out of memory", "max_ooms", spec->max_ooms};
    case LOSS_FAULTY:
        return (struct budget){LOSS_FAULTY, "worker broke the protocol", "workers broke the protocol", "max_restarts",
                               spec->max_restarts};
    case LOSS_NONE:
    case LOSS_CRASH:
    case LOSS_EPOCH:
        break;
    }
    return (struct budget){LOSS_CRASH, "worker crashed", "workers crashed", "max_restarts", spec->max_restarts};
}

static uint32_t count(const struct jobrec *j, enum loss_cause cause)
{
    uint32_t n = 0;
    for (size_t i = 0; i < j->budget.n_past; i++)
        n += budget_of(&j->spec, j->budget.past[i].cause).cause == cause;
    return n;
}

static void remember(struct jobrec *j, enum loss_cause cause, int64_t at_mono)
{
    titan_assert(cause > LOSS_NONE && cause < LOSS_CAUSES);
    VEC_MUST_PUSH(j->budget.past, j->budget.n_past, j->budget.cap_past, (struct past_loss){cause, at_mono});
}

/* A loss dated in the future (the clock was ahead) counts as of now. */
void budget_restore(const struct core *c, struct jobrec *j, const struct loss *loss)
{
    if (j->spec.restart_window_s)
        remember(j, loss->cause, c->now.mono_ms - MAX(c->now.wall_ms - loss->at_ms, INT64_C(0)));
}

static int64_t backoff_ms(const struct jobrec *j)
{
    int64_t wait = j->spec.backoff_ms;
    for (uint32_t i = 1; i < j->budget.losses && wait < j->spec.backoff_max_ms; i++)
        wait *= 2;
    titan_assert(wait >= 0);
    return MIN(wait, (int64_t)j->spec.backoff_max_ms);
}

#define SHORT_MS 1000 /* a resource that a node lacks takes some time to return */

/* Losses before a replacement may start count as one incident for the wait, because a lost node takes all its workers
 * along. */
static void wait_longer(struct core *c, struct jobrec *j, int64_t least)
{
    if (j->budget.losses == 0 || c->now.mono_ms >= j->budget.replace_at)
        j->budget.losses++;
    j->budget.replace_at = c->now.mono_ms + MAX(backoff_ms(j), least);
}

void budget_wait(struct core *c, struct jobrec *j)
{
    wait_longer(c, j, SHORT_MS);
}

void budget_charge(struct core *c, struct jobrec *j, enum loss_cause cause, struct noderec *node, const char *words)
{
    j->status.restarts += MUTANT(LOSS_UNCOUNTED) ? 0 : MUTANT(LOSS_TWICE) ? 2 : 1;
    titan_assert(cause != LOSS_NONE && !phase_ends(j));
    wait_longer(c, j, 0);
    epoch_charged(j);
    if (j->spec.restart_window_s) {
        remember(j, cause, c->now.mono_ms);
        const int64_t window_ms = (int64_t)j->spec.restart_window_s * 1000;
        size_t old = 0;
        while (old < j->budget.n_past && c->now.mono_ms - j->budget.past[old].at_mono > window_ms)
            old++;
        titan_assert(old < j->budget.n_past); /* the newest loss is dated now */
        j->budget.n_past -= old;
        memmove(j->budget.past, j->budget.past + old, j->budget.n_past * sizeof(*j->budget.past));
    }
    emit_loss(c, j, cause, node);
    if (node && cause == LOSS_CRASH)
        quarantine_crashed(c, node, j);

    const char *why = NULL;
    const uint32_t restarts = j->status.restarts, window_s = j->spec.restart_window_s;
    const struct budget b = budget_of(&j->spec, cause);
    const uint32_t n = count(j, b.cause);
    const bool hours = window_s % 3600 == 0;
    if (window_s == 0 && restarts > j->spec.max_restarts)
        why = batch_printf(c->out, "lost a worker %u time%s; restart budget of %u used; last: %s", restarts,
                           restarts == 1 ? "" : "s", j->spec.max_restarts, words);
    else if (window_s > 0 && n > b.most)
        why = batch_printf(c->out, "%u %s within %u %s; budget of %u (fault_tolerance.%s) used; last: %s", n,
                           n == 1 ? b.one : b.many, hours ? window_s / 3600 : window_s, hours ? "h" : "s", b.most,
                           b.key, words);
    if (why)
        job_fail(c, j, why);
    else
        store_status(c, j); /* the count is stored with the loss */
}

static const char *past_digits(const char *text)
{
    return text + strspn(text, "0123456789");
}

static bool by_itself(enum loss_cause cause, const char *words)
{
    return (cause == LOSS_CRASH || cause == LOSS_FAULTY) && words && *words;
}

bool budget_paid(const struct jobrec *j, const struct workrec *w, enum loss_cause cause, const char *words)
{
    const char *a = j->budget.fault.words, *b = words;
    if (!by_itself(cause, words) || !a || j->budget.fault.epoch != j->status.epoch || w->id >= j->budget.fault.before)
        return false;
    /* Are the two texts the same, apart from numbers that differ between workers, such as a rank? */
    for (; *a && *b; a++, b++) {
        a = past_digits(a);
        b = past_digits(b);
        if (*a != *b || !*a)
            break;
    }
    return *past_digits(a) == '\0' && *past_digits(b) == '\0';
}

void budget_fault(struct core *c, struct jobrec *j, enum loss_cause cause, const char *words)
{
    free(TAKE(j->budget.fault.words));
    if (!by_itself(cause, words))
        return;
    j->budget.fault.words = core_strdup(words);
    j->budget.fault.epoch = j->status.epoch;
    j->budget.fault.before = c->next_worker_id;
}

size_t core_job_losses(const struct core *c, uint64_t job_id, struct core_losses ret[CORE_LOSSES_MAX])
{
    static const enum loss_cause causes[] = {LOSS_CRASH, LOSS_NODE, LOSS_HANG, LOSS_OOM, LOSS_FAULTY};
    const struct jobrec *j = core_find_job(c, job_id);
    size_t n = 0;
    for (size_t i = 0; j && i < ARRAY_SIZE(causes); i++) {
        struct budget b = budget_of(&j->spec, causes[i]);
        uint32_t found = count(j, b.cause);
        if (found)
            ret[n++] = (struct core_losses){loss_name(b.cause), found, b.most, j->spec.restart_window_s};
    }
    return n;
}

void budget_forgiven(struct jobrec *j)
{
    j->budget.losses = 0;
}

void budget_requeued(struct jobrec *j)
{
    j->budget.losses = 0;
    j->budget.replace_at = 0;
}
