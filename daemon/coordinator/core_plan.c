/* Planned changes of membership (docs/membership.md): how many members a job is to have, who of them has to go, and who
 * hands over what it holds. A resize on request, a drain, a preemption and a joiner all come down to this. */
#include "daemon/coordinator/core_internal.h"

#include "base/cleanup.h"

uint32_t plan_least(const struct jobrec *j)
{
    return MAX(j->wish.min, j->spec.min_workers);
}

uint32_t plan_most(const struct jobrec *j)
{
    uint32_t most = j->wish.max ? MIN(j->wish.max, j->spec.max_workers) : j->spec.max_workers;
    return j->squeeze ? MIN(most, j->squeeze) : most;
}

bool plan_leaves(const struct workrec *w)
{
    return node_empties(w->node);
}

uint32_t plan_kept(const struct jobrec *j)
{
    uint32_t n = 0;
    for (size_t i = 0; i < j->n_workers; i++)
        n += j->workers[i]->state != WORKER_STOPPING && !plan_leaves(j->workers[i]);
    return n;
}

static uint32_t count_kept(const struct jobrec *j, enum worker_state state)
{
    uint32_t n = 0;
    for (size_t i = 0; i < j->n_workers; i++)
        n += j->workers[i]->state == state && !plan_leaves(j->workers[i]);
    return n;
}

static uint32_t seats_leaving(const struct jobrec *j)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->n_seats; i++)
        n += j->seats[i].worker && plan_leaves(j->seats[i].worker);
    return n;
}

/* Who joins hears of it for the size of what it joins. */
static void pause_members(struct core *c, struct jobrec *j, uint32_t world, const char *why)
{
    j->resize_mono = c->now.mono_ms;
    j->next_world = world;
    move_job(c, j, JOB_RESIZING, why);
    j->epoch_deadline = c->now.mono_ms + c->options.pause_ms + (int64_t)(20 * j->step_ms);
    tell_all(c, j, tell_pause);
}

/* "draining node a: 2 workers wait for slots elsewhere", while it does not work without them. */
static void say_blocked(struct core *c, struct jobrec *j, uint32_t leaving, uint32_t world)
{
    const struct noderec *from = NULL;
    for (uint32_t i = 0; i < j->n_seats && !from; i++)
        if (j->seats[i].worker && plan_leaves(j->seats[i].worker))
            from = j->seats[i].worker->node;
    say_job_blocked(c, j,
                    world == 0 && from ? batch_printf(c->out, "draining node %s: %u worker%s for slots elsewhere",
                                                      from->name, leaving, leaving == 1 ? " waits" : "s wait")
                                       : NULL);
}

void plan_release(struct core *c, struct jobrec *j)
{
    uint32_t kept = plan_kept(j), most = plan_most(j);
    for (size_t i = j->n_workers; i-- > 0;) {
        struct workrec *w = j->workers[i];
        if (w->state == WORKER_STOPPING || job_seat(j, w))
            continue;
        if (plan_leaves(w)) {
            worker_stop(c, w, 0, batch_printf(c->out, "node %s is to be empty", w->node->name));
        } else if (kept > most) {
            worker_stop(c, w, 0, "the run goes on with fewer workers");
            kept--;
        }
    }
}

/* Who is no member and not wanted either goes at once: it would only hold a slot. */
static bool has_surplus(struct jobrec *j)
{
    bool leaves = false;
    for (size_t i = 0; i < j->n_workers && !leaves; i++)
        leaves = j->workers[i]->state != WORKER_STOPPING && plan_leaves(j->workers[i]) && !job_member(j, j->workers[i]);
    return leaves || (plan_kept(j) > plan_most(j) && j->n_seats <= plan_most(j));
}

static bool any_away(const struct jobrec *j)
{
    for (uint32_t i = 0; i < j->n_seats; i++)
        if (j->seats[i].worker && j->seats[i].worker->away)
            return true;
    return false;
}

void plan_resize(struct core *c, struct jobrec *j)
{
    if (epoch_near_end(j) || any_away(j))
        return;
    uint32_t leaving = seats_leaving(j);
    bool too_many = j->n_seats > plan_most(j);
    if (j->n_workers == j->n_seats && !leaving && !too_many) { /* after most reports */
        say_job_blocked(c, j, NULL);
        return;
    }
    if (j->n_leavers == 0 && has_surplus(j))
        plan_release(c, j);
    if (!too_many && (count_kept(j, WORKER_STARTING) > 0 || (leaving && c->now.mono_ms < j->replace_at)))
        return; /* all who come, come at once */
    uint32_t world = place_world(j, count_kept(j, WORKER_READY));
    say_blocked(c, j, leaving, world);
    if (world == 0 || (world == j->n_seats && leaving == 0) || (world < j->n_seats && leaving == 0 && !too_many))
        return;
    if (world == j->n_seats)
        pause_members(c, j, world, batch_printf(c->out, "%u of %u workers move to other nodes", leaving, world));
    else
        pause_members(c, j, world, batch_printf(c->out, "from %u to %u workers", j->n_seats, world));
}
