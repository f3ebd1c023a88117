/* Slots: who gets them. */
#include "daemon/coordinator/core_internal.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"

#define QUEUE_LOOK_AHEAD 256 /* queued jobs too large for the cluster that are stepped over */

uint32_t place_world(const struct jobrec *j, uint32_t n)
{
    n = MIN(n, plan_most(j));
    for (; n >= plan_least(j) && n > 0; n--)
        if (world_set_has(&j->spec.worlds, n) || MUTANT(EPOCH_SIZE))
            return n;
    return 0;
}

uint32_t place_least(const struct jobrec *j)
{
    for (uint32_t n = plan_least(j); n <= j->spec.max_workers; n++)
        if (n > 0 && world_set_has(&j->spec.worlds, n))
            return n;
    return 0;
}

static bool usable(const struct noderec *n, const char *device)
{
    return node_accepts(n) && strcmp(n->device, device) == 0;
}

static uint32_t free_slots(const struct core *c, const char *device, uint32_t *ret_all)
{
    uint32_t spare = 0, all = 0;
    for (const struct noderec *n = c->nodes; n; n = n->next) {
        if (!usable(n, device))
            continue;
        all += n->slots;
        spare += n->slots > n->used ? n->slots - n->used : 0;
    }
    if (ret_all)
        *ret_all = all;
    return spare;
}

static bool holds_slots(const struct jobrec *j)
{
    return !phase_ends(j) && !j->requeue;
}

/* Slots of this device that running jobs of this priority or a higher one wait for. */
static uint32_t claimed(const struct core *c, const char *device, int32_t priority)
{
    uint32_t sum = 0;
    for (const struct jobrec *j = c->active; j; j = j->next)
        if (holds_slots(j) && j->spec.priority >= priority && strcmp(j->device, device) == 0 &&
            plan_kept(j) < j->target)
            sum += j->target - plan_kept(j);
    return sum;
}

/* A node with slots for workers of a job that are to be started. */
struct offer {
    struct noderec *node;
    uint32_t at; /* in the list of nodes */
    uint32_t mine, spare, n_workers;
    bool avoided;
    uint64_t *workers; /* n_workers that start there */
};

/* Where the job has most already, then where most is free; last of all where its workers crash. */
static int better_offer(const void *a, const void *b)
{
    const struct offer *x = a, *y = b;
    if (x->avoided != y->avoided)
        return x->avoided ? 1 : -1;
    if (x->mine != y->mine)
        return x->mine > y->mine ? -1 : 1;
    if (x->spare != y->spare)
        return x->spare > y->spare ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

static int earlier_offer(const void *a, const void *b)
{
    const struct offer *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

static uint32_t find_offers(const struct core *c, const struct jobrec *j, struct offer *ret)
{
    uint32_t n_offers = 0;
    for (struct noderec *n = c->nodes; n; n = n->next)
        n->mine = 0;
    for (size_t i = 0; i < j->n_workers; i++)
        j->workers[i]->node->mine++;
    for (struct noderec *n = c->nodes; n; n = n->next)
        if (usable(n, j->device) && n->used < n->slots) {
            ret[n_offers] = (struct offer){.node = n,
                                           .at = n_offers,
                                           .mine = n->mine,
                                           .spare = n->slots - n->used,
                                           .avoided = policy_avoids(c, n, j)};
            n_offers++;
        }
    return n_offers;
}

static uint64_t add_worker(struct core *c, struct jobrec *j, struct noderec *n)
{
    struct workrec *w = core_alloc(sizeof(*w));
    w->id = c->next_worker_id++;
    w->job = j;
    w->node = n;
    w->deadline = c->now.mono_ms + c->options.start_ms;
    n->used++;
    job_add_worker(j, w);
    begin_worker(c, w);
    return w->id;
}

static uint32_t count_nodes(const struct core *c)
{
    uint32_t n_nodes = 0;
    for (const struct noderec *n = c->nodes; n; n = n->next)
        n_nodes++;
    return n_nodes;
}

static void start_workers(struct core *c, struct jobrec *j, uint32_t count)
{
    _cleanup_free_ uint64_t *ids = core_alloc((count + 1) * sizeof(*ids));
    _cleanup_free_ struct offer *offers = core_alloc((count_nodes(c) + 1) * sizeof(*offers));
    uint32_t n_offers = find_offers(c, j, offers), n_taken = 0;
    j->starve_at = INT64_MAX;
    if (!j->run_active)
        begin_run(c, j);
    qsort(offers, n_offers, sizeof(*offers), better_offer);
    for (uint32_t started = 0; started < count; n_taken++) {
        titan_assert(n_taken < n_offers);
        struct offer *o = &offers[n_taken];
        o->workers = &ids[started];
        for (; o->n_workers < o->spare && started < count; o->n_workers++)
            ids[started++] = add_worker(c, j, o->node);
    }
    qsort(offers, n_taken, sizeof(*offers), earlier_offer);
    for (uint32_t i = 0; i < n_taken; i++)
        tell_start(c, j, offers[i].node, offers[i].workers, offers[i].n_workers);
}

static const char *const devices[] = {"cuda", "cpu"}; /* in order of preference */

static bool wants_device(const struct jobrec *j, const char *device)
{
    return strcmp(j->spec.device, "auto") == 0 || strcmp(j->spec.device, device) == 0;
}

/* The device on which the job can have at least its minimum now. */
static bool choose_device(const struct core *c, struct jobrec *j, bool respect_claims)
{
    for (size_t i = 0; i < ARRAY_SIZE(devices); i++) {
        if (!wants_device(j, devices[i]))
            continue;
        uint32_t spare = free_slots(c, devices[i], NULL);
        uint32_t taken = respect_claims ? claimed(c, devices[i], j->spec.priority) : 0;
        if (place_world(j, spare > taken ? spare - taken : 0) > 0) {
            (void)snprintf(j->device, sizeof(j->device), "%s", devices[i]);
            return true;
        }
    }
    return false;
}

/* Slots that are kept for the head of the queue, since it has a higher priority than a job that runs. One that is to
 * give way between two epochs may have its newest steps in memory only: it becomes whole, writes them down and gives
 * back all it has, which is sooner than when it starves. */
static uint32_t held_back(const struct core *c, const struct jobrec *j)
{
    if (j->requeue)
        return 0;
    const struct jobrec *head = c->holding ? core_find_job(c, c->blocker) : NULL;
    bool before = head && head->state == JOB_PENDING && head->spec.priority > j->spec.priority;
    return before && wants_device(head, j->device) ? place_least(head) : 0;
}

void place_grow(struct core *c, struct jobrec *j)
{
    if (c->behind || c->now.mono_ms < j->replace_at || epoch_near_end(j))
        return;
    uint32_t want = c->pending ? j->target : plan_most(j);
    uint32_t have = plan_kept(j);
    if (have >= want || (!j->device[0] && !choose_device(c, j, false)))
        return;
    uint32_t spare = free_slots(c, j->device, NULL), held = held_back(c, j);
    uint32_t world = place_world(j, MIN(want, have + (spare > held ? spare - held : 0)));
    if (world <= have)
        return;
    if (world > j->target)
        j->target = world;
    start_workers(c, j, world - have);
}

/* Slots of all nodes together, of the device the job may run on that has most. */
static uint32_t most_slots(const struct core *c, const struct jobrec *j)
{
    uint32_t most = 0;
    for (size_t i = 0; i < ARRAY_SIZE(devices); i++) {
        uint32_t all = 0;
        (void)free_slots(c, devices[i], &all);
        if (wants_device(j, devices[i]))
            most = MAX(most, all);
    }
    return most;
}

/* Could the cluster as it is hold the job if nothing else ran? If not, the job says what it lacks. */
static bool fits_at_all(struct core *c, struct jobrec *j)
{
    uint32_t slots = most_slots(c, j);
    bool fits = place_world(j, slots) > 0;
    if (slots > 0 || fits)
        say_job_needs_nodes(c, j, fits ? 0 : place_least(j) - slots, slots);
    return fits;
}

static void place(struct core *c, struct jobrec *j)
{
    uint32_t spare = free_slots(c, j->device, NULL), taken = claimed(c, j->device, j->spec.priority);
    queue_remove(c, j);
    core_list_append(&c->active, &c->active_last, j);
    j->target = place_world(j, spare - taken);
    queue_took(j, j->target);
    move_job(c, j, JOB_FORMING, "");
    start_workers(c, j, j->target);
}

/* It is its turn, but there are too few slots: it waits, and those behind it, for what others can give up. */
static void block(struct core *c, struct jobrec *j)
{
    c->blocker = j->id;
    for (size_t i = 0; i < ARRAY_SIZE(devices); i++) {
        if (!wants_device(j, devices[i]))
            continue;
        uint32_t spare = free_slots(c, devices[i], NULL), taken = claimed(c, devices[i], j->spec.priority);
        c->claimed_ahead += taken;
        c->holding = preempt_for(c, j, devices[i], spare > taken ? spare - taken : 0);
        if (c->holding)
            return;
    }
}

static void place_queue(struct core *c)
{
    struct jobrec *j;
    c->blocker = 0;
    c->holding = false;
    c->claimed_ahead = 0;
    queue_begin(c);
    for (int looked = 0; looked < QUEUE_LOOK_AHEAD && (j = queue_next(c));) {
        if (!fits_at_all(c, j)) {
            looked++;
        } else if (choose_device(c, j, true)) {
            place(c, j);
        } else {
            block(c, j);
            return;
        }
    }
}

static void grow_all(struct core *c)
{
    for (struct jobrec *j = c->active; j; j = j->next)
        if (holds_slots(j))
            place_grow(c, j);
}

void place_settle(struct core *c)
{
    /* What gives way may have gone at once, when it had not started. */
    for (int round = 0; c->slots_changed && !c->behind && round < 4; round++) {
        c->slots_changed = false;
        preempt_over(c);
        grow_all(c);
        bool waited = c->pending > 0;
        if (waited)
            place_queue(c);
        if (waited && c->pending == 0)
            grow_all(c); /* nobody waits any more: what is left is for those who run */
    }
}
