/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/records/job_record.h"

#include <stdlib.h>
#include <string.h>

#include "base/vec.h"
#include "daemon/coordinator/records/core_record.h"

bool job_final(const struct jobrec *j)
{
    return sm_final(&job_sm, (int)j->state);
}

bool job_yields(const struct jobrec *j, const struct jobrec *to)
{
    return j->spec.priority < to->spec.priority || j->status.passed == to->id;
}

bool job_fits_device(const struct jobrec *j, const char *device)
{
    return strcmp(j->spec.device, "auto") == 0 || strcmp(j->spec.device, device) == 0;
}

/* Index of the worker, or where it would be, in id order. */
static size_t worker_at(const struct jobrec *j, uint64_t id)
{
    size_t lo = 0, hi = j->n_workers;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (j->workers[mid]->id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

struct workrec *job_worker(const struct jobrec *j, uint64_t id)
{
    size_t at = worker_at(j, id);
    return at < j->n_workers && j->workers[at]->id == id ? j->workers[at] : NULL;
}

/* w->rank_slot may point into rank slots that no longer exist. */
struct rank_slot *job_rank_slot(struct jobrec *j, const struct workrec *w)
{
    bool its = w->rank_slot > 0 && w->rank_slot <= j->n_members + j->n_departing &&
               j->rank_slots[w->rank_slot - 1].worker == w;
    return its ? &j->rank_slots[w->rank_slot - 1] : NULL;
}

void job_new_rank_slots(struct jobrec *j, uint32_t members, uint32_t departing)
{
    free(j->rank_slots);
    j->rank_slots = core_alloc((members + departing + 1) * sizeof(*j->rank_slots));
    j->n_members = members;
    j->n_departing = departing;
}

void job_set_rank_slot(struct jobrec *j, uint32_t at, uint64_t worker_id, struct workrec *w)
{
    titan_assert(at < j->n_members + j->n_departing && worker_id);
    if (w && job_rank_slot(j, w))
        w = NULL;
    j->rank_slots[at] = (struct rank_slot){.worker_id = worker_id, .worker = w};
    if (w) {
        w->rank_slot = at + 1;
        w->quiesced = false;
    }
}

bool job_member(struct jobrec *j, const struct workrec *w)
{
    const struct rank_slot *rank_slot = job_rank_slot(j, w);
    return rank_slot && rank_slot < j->rank_slots + j->n_members;
}

void job_remove_worker(struct jobrec *j, const struct workrec *w)
{
    size_t at = worker_at(j, w->id);
    titan_assert(at < j->n_workers && j->workers[at] == w);
    VEC_REMOVE(j->workers, j->n_workers, at);
    titan_assert(w->node->used > 0);
    w->node->used--;
}

size_t job_count_workers(const struct jobrec *j, enum worker_state state)
{
    size_t n = 0;
    for (size_t i = 0; i < j->n_workers; i++)
        n += j->workers[i]->state == state;
    return n;
}

bool epoch_live(const struct jobrec *j)
{
    return j->epoch_state == EPOCH_FORMING || j->epoch_state == EPOCH_RUNNING;
}

bool epoch_leaving(const struct jobrec *j)
{
    return j->epoch_state == EPOCH_REVOKED || (j->state == JOB_RESIZING && j->epoch_state == EPOCH_RUNNING);
}

bool epoch_near_end(const struct jobrec *j)
{
    for (uint32_t i = 0; i < j->n_members && epoch_live(j); i++)
        if (j->rank_slots[i].finished)
            return true;
    return epoch_live(j) && j->status.step + 1 >= j->spec.steps;
}

void core_list_remove(struct jobrec **first, struct jobrec **last, struct jobrec *j)
{
    *(j->prev ? &j->prev->next : first) = j->next;
    *(j->next ? &j->next->prev : last) = j->prev;
    j->prev = j->next = NULL;
}

void core_list_append(struct jobrec **first, struct jobrec **last, struct jobrec *j)
{
    j->prev = *last;
    j->next = NULL;
    *(*last ? &(*last)->next : first) = j;
    *last = j;
}

struct workrec *job_new_worker(struct jobrec *j, struct workrec is, const char *address)
{
    struct workrec *w = core_alloc(sizeof(*w));
    titan_assert(is.id && is.node);
    *w = is;
    w->job = j;
    w->address = address ? core_strdup(address) : NULL;
    w->node->used++;
    const size_t at = worker_at(j, w->id);
    titan_assert(at == j->n_workers || j->workers[at]->id != w->id);
    VEC_MUST_INSERT(j->workers, j->n_workers, j->cap_workers, at, w);
    return w;
}

bool epoch_done(const struct jobrec *j)
{
    for (uint32_t i = 0; i < j->n_members; i++)
        if (!j->rank_slots[i].finished)
            return false;
    return j->n_members > 0;
}

void worker_knows(struct workrec *w, uint64_t epoch)
{
    w->epoch = epoch;
}

void worker_enters(struct workrec *w, uint64_t epoch)
{
    worker_knows(w, epoch);
    w->quiesced = false;
}
