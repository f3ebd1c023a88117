/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/records/job_queue.h"

#include <stdlib.h>
#include <string.h>

struct user {
    struct user *next;
    char *name;
    uint32_t slots; /* of its running jobs, as of queue_begin */
};

struct lane {
    struct lane *next; /* of lower or equal priority */
    int32_t priority;
    struct user *user;
    struct jobrec *first, *last, *cursor;
};

struct user *queue_user(struct core *c, const char *name)
{
    struct user *u = c->users;
    while (u && strcmp(u->name, name) != 0)
        u = u->next;
    if (u)
        return u;
    u = core_alloc(sizeof(*u));
    u->name = core_strdup(name);
    u->next = c->users;
    c->users = u;
    return u;
}

static struct lane *find_lane(struct core *c, int32_t priority, struct user *user)
{
    titan_assert(user);
    struct lane **at = &c->lanes;
    while (*at && (*at)->priority > priority)
        at = &(*at)->next;
    for (struct lane *l = *at; l && l->priority == priority; l = l->next)
        if (l->user == user)
            return l;
    struct lane *l = core_alloc(sizeof(*l));
    l->priority = priority;
    l->user = user;
    l->next = *at;
    *at = l;
    return l;
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
    titan_assert(!j->lane && j->n_workers == 0);
    struct lane *l = find_lane(c, j->spec.priority, j->user);
    struct jobrec *before = l->last;
    while (before && before->id > j->id) /* it has been here before */
        before = before->prev;
    j->lane = l;
    j->prev = before;
    j->next = before ? before->next : l->first;
    *(j->prev ? &j->prev->next : &l->first) = j;
    *(j->next ? &j->next->prev : &l->last) = j;
    c->pending++;
}

void queue_remove(struct core *c, struct jobrec *j)
{
    struct lane *l = j->lane;
    titan_assert(l && c->pending > 0);
    if (l->cursor == j)
        l->cursor = j->next;
    core_list_remove(&l->first, &l->last, j);
    j->lane = NULL;
    c->pending--;
    if (!l->first)
        drop_lane(c, l);
}

void queue_begin(struct core *c)
{
    for (struct user *u = c->users; u; u = u->next)
        u->slots = 0;
    for (const struct jobrec *j = c->active; j; j = j->next)
        j->user->slots += (uint32_t)j->n_workers;
    for (struct lane *l = c->lanes; l; l = l->next)
        l->cursor = l->first;
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
