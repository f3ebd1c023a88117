/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/growth.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/coordinator/cluster/quarantine.h"
#include "daemon/coordinator/outbox/messages.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_queue.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/node_slots.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/run/job_clock.h"
#include "daemon/coordinator/run/slots.h"

/* A node with free slots for the job's new workers. */
struct offer {
    struct noderec *node;
    uint32_t at; /* index in the list of nodes */
    uint32_t mine, spare, n_workers;
    bool avoided;
    uint64_t *workers; /* n_workers ids of the workers to start there */
};

/* Order of nodes: most workers of the job, then most free slots; nodes where its workers crash come last. */
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

void growth_start(struct core *c, struct jobrec *j, uint32_t count)
{
    _cleanup_free_ uint64_t *ids = core_alloc((count + 1) * sizeof(*ids));
    size_t n_nodes = 0;
    for (const struct noderec *n = c->nodes; n; n = n->next)
        n_nodes++;
    _cleanup_free_ struct offer *offers = core_alloc((n_nodes + 1) * sizeof(*offers));
    uint32_t n_offers = 0, n_taken = 0;
    titan_assert(count > 0 && !phase_stops(j) && j->device[0]);
    for (struct noderec *n = c->nodes; n; n = n->next)
        n->mine = 0;
    for (size_t i = 0; i < j->n_workers; i++)
        j->workers[i]->node->mine++;
    for (struct noderec *n = c->nodes; n; n = n->next) {
        const uint32_t spare = slots_usable(n, j->device, j) ? node_spare(c, n) : 0;
        if (spare == 0)
            continue;
        offers[n_offers] = (struct offer){
            .node = n, .at = n_offers, .mine = n->mine, .spare = spare, .avoided = quarantine_avoids(c, n, j)};
        n_offers++;
    }

    job_clock_starves(j, INT64_MAX);
    if (!j->run_active)
        begin_run(c, j);
    qsort(offers, n_offers, sizeof(*offers), better_offer);
    for (uint32_t started = 0; started < count; n_taken++) {
        titan_assert(n_taken < n_offers);
        struct offer *o = &offers[n_taken];
        o->workers = &ids[started];
        for (; o->n_workers < o->spare && started < count; o->n_workers++) {
            titan_assert(node_spare(c, o->node) > 0 && node_accepts(o->node));
            const struct workrec is = {
                .id = c->next_worker_id++, .node = o->node, .deadline = c->now.mono_ms + c->options.start_ms};
            struct workrec *w = job_new_worker(j, is, NULL);
            begin_worker(c, w);
            ids[started++] = w->id;
        }
    }
    qsort(offers, n_taken, sizeof(*offers), earlier_offer);
    for (uint32_t i = 0; i < n_taken; i++)
        send_start(c, j, offers[i].node, offers[i].workers, offers[i].n_workers);
}

void grow_job(struct core *c, struct jobrec *j)
{
    if (c->stale || c->now.mono_ms < j->budget.replace_at || epoch_near_end(j))
        return;
    uint32_t have = size_kept(j);
    if (!j->device[0] && (j->n_workers > 0 || !slots_choose_device(c, j)))
        return;
    uint32_t want = queue_wants(c, j->device) ? j->size.claim : size_max(j);
    want = MIN(want, queue_allows(c, j, NULL));
    if (have >= want)
        return;
    uint32_t spare = slots_free(c, j->device, j, NULL), held = slots_held_back(c, j);
    uint32_t world = size_world(j, MIN(want, have + (spare > held ? spare - held : 0)));
    if (world <= have)
        return;
    if (world > j->size.claim)
        size_claim(j, world);
    titan_assert(world <= want && world - have <= spare);
    growth_start(c, j, world - have);
}
