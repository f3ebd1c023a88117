/* What a loss costs: restart budgets, and the wait before a replacement starts. */
#include "daemon/coordinator/core_internal.h"

#include "base/cleanup.h"

static int64_t backoff_ms(const struct jobrec *j)
{
    int64_t wait = j->spec.backoff_ms;
    for (uint32_t i = 1; i < j->losses && wait < j->spec.backoff_max_ms; i++)
        wait *= 2;
    return MIN(wait, (int64_t)j->spec.backoff_max_ms);
}

void budget_charge(struct core *c, struct jobrec *j, enum loss_cause cause, const struct noderec *node,
                   const char *words)
{
    (void)cause;
    (void)node;
    j->status.restarts++;
    j->losses++;
    j->charged = true;
    j->replace_at = c->now.mono_ms + backoff_ms(j);
    if (j->status.restarts > j->spec.max_restarts)
        job_fail(c, j,
                 batch_printf(c->out, "lost a worker %u time%s; restart budget of %u used; last: %s",
                              j->status.restarts, j->status.restarts == 1 ? "" : "s", j->spec.max_restarts, words));
    else
        say_job_update(c, j); /* the count is stored with the loss */
}
