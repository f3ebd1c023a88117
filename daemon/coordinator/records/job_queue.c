/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/records/job_queue.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/records/job_size.h"

struct user {
    struct user *next;
    char *name;
    uint32_t slots; /* slots of the user's running jobs, as of queue_begin */
    size_t pending;
};

struct lane {
    struct lane *next; /* the next lane has lower or equal priority */
    int32_t priority;
    struct user *user;
    uint32_t least; /* smallest number of workers of each of its jobs; 0 = no number is legal */
    size_t n;
    bool too_large;
    struct jobrec *first, *last, *cursor;
};

static struct user *find_user(const struct core *c, const char *name)
{
    struct user *u = c->users;
    while (u && strcmp(u->name, name) != 0)
        u = u->next;
    return u;
}

size_t queue_user_pending(const struct core *c, const char *name)
{
    const struct user *u = find_user(c, name);
    return u ? u->pending : 0;
}

/* Jobs of a lane wait for the same, but for the first job in the queue of a device. */
void queue_count(const struct core *c, struct core_queue *ret)
{
    *ret = (struct core_queue){.n_priorities = 0};
    for (const struct lane *l = c->lanes; l; l = l->next) {
        const struct jobrec *j = l->first;
        size_t heads = 0;
        for (size_t i = 0; i < CORE_DEVICES; i++)
            heads |= c->heads[i].job == j;
        const bool none = !c->heads[0].job && !c->heads[1].job; /* nothing was looked at yet, or all get their slots */
        const enum core_wait why = c->stale                              ? CORE_WAITS_SETTLED
                                   : l->too_large                        ? CORE_WAITS_NODES
                                   : queue_allows(c, j, NULL) < l->least ? CORE_WAITS_USER
                                   : none                                ? CORE_WAITS_SLOTS
                                                                         : CORE_WAITS_BEHIND;
        if (why != CORE_WAITS_BEHIND)
            heads = 0;
        ret->waits[CORE_WAITS_SLOTS] += heads;
        ret->waits[why] += l->n - heads;
        size_t at = ret->n_priorities;
        if (at > 0 && ret->priorities[at - 1].priority == l->priority)
            ret->priorities[at - 1].oldest_ms = MIN(ret->priorities[at - 1].oldest_ms, j->submitted_at_ms);
        else if (at < CORE_QUEUE_PRIORITIES) {
            ret->priorities[at].priority = l->priority;
            ret->priorities[at].oldest_ms = j->submitted_at_ms;
            ret->n_priorities++;
        }
    }
}

const char *queue_user_name(const struct user *u)
{
    return u->name;
}

struct user *queue_user(struct core *c, const char *name)
{
    struct user *u = find_user(c, name);
    if (u)
        return u;
    u = core_alloc(sizeof(*u));
    u->name = core_strdup(name);
    u->next = c->users;
    c->users = u;
    return u;
}

/* Does the lane need at most room[] slots on some device that its jobs may run on? */
static bool lane_fits(const struct lane *l, const uint32_t room[CORE_DEVICES])
{
    bool fits = false;
    for (size_t i = 0; i < CORE_DEVICES; i++)
        fits |= l->least > 0 && l->least <= room[i] && job_fits_device(l->first, core_devices[i]);
    return fits;
}

static void drop_lane(struct core *c, struct lane *gone)
{
    struct lane **at = &c->lanes;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    free(gone);
}

void queue_add(struct core *c, struct jobrec *j)
{
    titan_assert(!j->lane && j->n_workers == 0 && j->user);
    const int32_t priority = j->spec.priority;
    const uint32_t least = size_least(j);
    struct lane **at = &c->lanes;
    while (*at && (*at)->priority > priority)
        at = &(*at)->next;
    struct lane *l = *at;
    while (l && l->priority == priority &&
           (l->user != j->user || l->least != least || strcmp(l->first->spec.device, j->spec.device) != 0))
        l = l->next;
    if (!l || l->priority != priority) {
        l = core_alloc(sizeof(*l));
        *l = (struct lane){.next = *at, .priority = priority, .user = j->user, .least = least};
        *at = l;
    }
    struct jobrec *before = l->last;
    while (before && before->id > j->id) /* a job that is queued again is older than others */
        before = before->prev;
    j->lane = l;
    j->prev = before;
    j->next = before ? before->next : l->first;
    *(j->prev ? &j->prev->next : &l->first) = j;
    *(j->next ? &j->next->prev : &l->last) = j;
    if (l->n++ == 0)
        l->too_large = !lane_fits(l, c->all);
    titan_assert((!j->prev || j->prev->id < j->id) && (!j->next || j->id < j->next->id));
    c->pending++;
    j->user->pending++;
    c->too_large += l->too_large;
    c->unreported |= l->too_large;
}

void queue_remove(struct core *c, struct jobrec *j)
{
    struct lane *l = j->lane;
    titan_assert(l && c->pending > 0 && l->n > 0 && j->user->pending > 0 && c->too_large >= (size_t)l->too_large);
    if (l->cursor == j)
        l->cursor = j->next;
    core_list_remove(&l->first, &l->last, j);
    j->lane = NULL;
    for (size_t i = 0; i < CORE_DEVICES; i++)
        if (c->heads[i].job == j)
            c->heads[i] = (struct queue_head){0};
    l->n--;
    c->pending--;
    j->user->pending--;
    c->too_large -= l->too_large;
    if (!l->first)
        drop_lane(c, l);
}

bool queue_set_all(struct core *c, const uint32_t all[CORE_DEVICES])
{
    if (memcmp(c->all, all, sizeof(c->all)) == 0)
        return false;
    memcpy(c->all, all, sizeof(c->all));
    c->too_large = 0;
    for (struct lane *l = c->lanes; l; l = l->next) {
        l->too_large = !lane_fits(l, all);
        c->too_large += l->too_large ? l->n : 0;
    }
    return true;
}

uint32_t queue_room(const struct core *c, const struct jobrec *j)
{
    uint32_t slots = 0;
    for (size_t i = 0; i < CORE_DEVICES; i++)
        if (job_fits_device(j, core_devices[i]))
            slots = MAX(slots, c->all[i]);
    return slots;
}

bool queue_too_large(const struct jobrec *j)
{
    titan_assert(j->lane);
    return j->lane->too_large;
}

void queue_each_too_large(struct core *c, size_t most, void (*each)(struct core *c, struct jobrec *j))
{
    for (const struct lane *l = c->lanes; l && most; l = l->next)
        for (struct jobrec *j = l->too_large ? l->first : NULL; j && most; j = j->next, most--)
            each(c, j);
}

void queue_begin(struct core *c)
{
    for (struct user *u = c->users; u; u = u->next)
        u->slots = 0;
    for (const struct jobrec *j = c->active; j; j = j->next)
        j->user->slots += (uint32_t)j->n_workers;
    for (struct lane *l = c->lanes; l; l = l->next)
        l->cursor = l->too_large ? NULL : l->first;
}

struct jobrec *queue_next(struct core *c)
{
    struct lane *best = NULL;
    for (struct lane *l = c->lanes; l && (!best || l->priority == best->priority); l = l->next)
        if (l->cursor && (!best || l->user->slots < best->user->slots ||
                          (l->user->slots == best->user->slots && l->cursor->id < best->cursor->id)))
            best = l;
    if (!best)
        return NULL;
    struct jobrec *j = best->cursor;
    titan_assert(j->lane == best && j->state == JOB_PENDING);
    best->cursor = j->next;
    return j;
}

void queue_narrow(struct core *c, const uint32_t room[CORE_DEVICES])
{
    for (struct lane *l = c->lanes; l; l = l->next)
        l->cursor = l->cursor && lane_fits(l, room) ? l->cursor : NULL;
}

void queue_narrow_user(struct core *c, const struct jobrec *j, uint32_t allowed)
{
    for (struct lane *l = c->lanes; l; l = l->next)
        if (l->user == j->user && l->least > allowed)
            l->cursor = NULL;
}

/* Nothing is known about newly queued jobs until the next placement. */
bool queue_wants(const struct core *c, const char *device)
{
    return queue_head_of(c, device)->job || (c->slots_changed && c->pending > c->too_large);
}

uint32_t queue_allows(const struct core *c, const struct jobrec *j, uint32_t *ret_others)
{
    uint32_t others = 0;
    if (!c->options.user_slots)
        return UINT32_MAX;
    for (const struct jobrec *a = c->active; a; a = a->next)
        others += a != j && a->user == j->user ? size_owned(a) : 0;
    if (ret_others)
        *ret_others = others;
    return c->options.user_slots - MIN(c->options.user_slots, others);
}

bool queue_before(const struct jobrec *waits, const struct jobrec *runs)
{
    titan_assert(waits->lane && !runs->lane);
    if (waits->spec.priority != runs->spec.priority)
        return waits->spec.priority > runs->spec.priority;
    const uint32_t with = runs->user->slots, without = with - MIN(with, (uint32_t)runs->n_workers);
    if (waits->user != runs->user && waits->user->slots != without)
        return waits->user->slots < without;
    return waits->id < runs->id;
}

const struct queue_head *queue_head_of(const struct core *c, const char *device)
{
    size_t i = 0;
    while (strcmp(core_devices[i], device) != 0)
        titan_assert(++i < CORE_DEVICES);
    return &c->heads[i];
}

void queue_took(struct jobrec *j, uint32_t slots)
{
    titan_assert(j->user && !j->lane);
    j->user->slots += slots;
}

void queue_free(struct core *c)
{
    while (c->lanes)
        drop_lane(c, c->lanes);
    while (c->users) {
        struct user *u = c->users;
        c->users = u->next;
        free(u->name);
        free(u);
    }
}
