/* The queue: priority first, then the user with the fewest slots in use, then age.
 *
 * Jobs of one priority and user wait in a lane, oldest first. There are few lanes, however many jobs. */
#include "daemon/coordinator/core_internal.h"

#include <stdlib.h>
#include <string.h>

struct lane {
    struct lane *next; /* of lower or equal priority */
    int32_t priority;
    char *user;
    struct jobrec *first, *last, *cursor;
    uint32_t slots; /* of this user's running jobs, as of queue_begin */
};

static struct lane *find_lane(struct core *c, int32_t priority, const char *user)
{
    struct lane **at = &c->lanes;
    while (*at && (*at)->priority > priority)
        at = &(*at)->next;
    for (struct lane *l = *at; l && l->priority == priority; l = l->next)
        if (strcmp(l->user, user) == 0)
            return l;
    struct lane *l = core_alloc(sizeof(*l));
    l->priority = priority;
    l->user = core_strdup(user);
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
    free(gone->user);
    free(gone);
}

void queue_add(struct core *c, struct jobrec *j)
{
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
    for (struct lane *l = c->lanes; l; l = l->next) {
        l->cursor = l->first;
        l->slots = 0;
        for (const struct jobrec *j = c->active; j; j = j->next)
            if (strcmp(j->user, l->user) == 0)
                l->slots += (uint32_t)j->n_workers;
    }
}

struct jobrec *queue_next(struct core *c)
{
    struct lane *best = NULL;
    for (struct lane *l = c->lanes; l && (!best || l->priority == best->priority); l = l->next)
        if (l->cursor &&
            (!best || l->slots < best->slots || (l->slots == best->slots && l->cursor->id < best->cursor->id)))
            best = l;
    if (!best)
        return NULL;
    struct jobrec *j = best->cursor;
    best->cursor = j->next;
    return j;
}

void queue_took(struct core *c, const char *user, uint32_t slots)
{
    for (struct lane *l = c->lanes; l; l = l->next)
        if (strcmp(l->user, user) == 0)
            l->slots += slots;
}

void queue_free(struct core *c)
{
    while (c->lanes)
        drop_lane(c, c->lanes);
}
