/* SPDX-License-Identifier: Apache-2.0 */
/* stall_slowest.c - the rank that enters the collectives of a running epoch last. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/vec.h"
#include "ctl/stall.h"

#define COLLECTIVES_MIN 8 /* fewer collectives are not significant */
#define SHARE_MIN 0.1     /* notable share of the time; equally fast ranks also wait now and then */
#define DOMINANT 0.5      /* share of the waits for one rank among the waits for all */

/* A rank's stay in a collective that it has ended. */
struct part {
    uint64_t group;
    int64_t took_ns;
    uint32_t number;
    int rank, members;
};

struct tally {
    struct part *parts;
    size_t n, cap;
    double waited_s[FLIGHT_RANKS_MAX];
    int last[FLIGHT_RANKS_MAX];
    int collectives;
};

static bool add_dump(struct tally *t, const struct flight_copy *c)
{
    uint64_t keys[FLIGHT_GROUPS];
    int members[FLIGHT_GROUPS];
    titan_assert(c->rank >= 0 && c->rank < FLIGHT_RANKS_MAX);
    for (int g = 0; g < FLIGHT_GROUPS; g++) {
        const struct flight_group *group = &c->groups[g];
        /* The key is a hash of name and members; different groups are not expected to have equal hashes. */
        keys[g] = hash_bytes(hash_text(HASH_INIT, group->name), group->members, sizeof(group->members));
        members[g] = 0;
        for (size_t i = 0; i < ARRAY_SIZE(group->members); i++)
            members[g] += __builtin_popcountll(group->members[i]);
    }
    for (int i = 0; i < c->n; i++) {
        const struct flight_entry *e = &c->entries[i];
        if (e->kind != FLIGHT_COLLECTIVE || !e->ended_ns || members[e->group] < 2)
            continue;
        if (!VEC_PUSH(t->parts, t->n, t->cap,
                      (struct part){keys[e->group], e->ended_ns - e->began_ns, e->number, c->rank, members[e->group]}))
            return false;
    }
    return true;
}

static int by_collective(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->rank - y->rank;
}

static int by_begin(const void *a, const void *b)
{
    const struct flight_entry *x = *(const struct flight_entry *const *)a, *y = *(const struct flight_entry *const *)b;
    return (x->began_ns > y->began_ns) - (x->began_ns < y->began_ns);
}

/* The share of its time that a rank spent inside collectives, by its ended records. */
static double share_of(const struct flight_copy *c)
{
    const struct flight_entry *in[FLIGHT_RECORDS];
    int64_t from_ns = INT64_MAX, until_ns = 0, sum_ns = 0, covered_ns = 0;
    size_t n = 0;
    for (int i = 0; i < c->n; i++) {
        const struct flight_entry *e = &c->entries[i];
        if (!e->ended_ns)
            continue;
        from_ns = MIN(from_ns, e->began_ns);
        until_ns = MAX(until_ns, e->ended_ns);
        if (e->kind == FLIGHT_COLLECTIVE)
            in[n++] = e;
    }
    if (n > 1)
        qsort(in, n, sizeof(*in), by_begin);
    for (size_t i = 0; i < n; i++) {
        sum_ns += MAX(0, in[i]->ended_ns - MAX(in[i]->began_ns, covered_ns));
        covered_ns = MAX(covered_ns, in[i]->ended_ns);
    }
    return until_ns > from_ns ? (double)sum_ns / (double)(until_ns - from_ns) : 0;
}

titan_status stall_slowest(const struct stall_dump *dumps, int n, struct stall_slowest *ret, struct titan_error *err)
{
    struct tally *t = calloc(1, sizeof(*t));
    double all_s = 0;
    int best = 0, others = 0;
    bool ok = t;
    *ret = (struct stall_slowest){.rank = -1};
    for (int i = 0; i < n && ok; i++)
        ok = add_dump(t, dumps[i].copy);
    if (!ok) {
        if (t)
            free(t->parts);
        free(t);
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    }
    if (t->n > 1)
        qsort(t->parts, t->n, sizeof(*t->parts), by_collective);
    for (size_t i = 0, next; i < t->n; i = next) {
        const struct part *first = &t->parts[i];
        bool twice = false;
        next = i + 1;
        while (next < t->n && t->parts[next].group == first->group && t->parts[next].number == first->number) {
            twice |= t->parts[next].rank == t->parts[next - 1].rank;
            next++;
        }
        if (twice || next - i != (size_t)first->members)
            continue;

        /* All members have ended the collective. The member with the shortest stay entered last. */
        const struct part *last = first;
        double longer_s = 0;
        for (int k = 1; k < first->members; k++)
            if (first[k].took_ns < last->took_ns)
                last = &first[k];
        for (int k = 0; k < first->members; k++)
            longer_s += (double)(first[k].took_ns - last->took_ns) * 1e-9;
        titan_assert(first->members >= 2 && longer_s >= 0);
        t->collectives++;
        t->last[last->rank]++;
        t->waited_s[last->rank] += longer_s / (first->members - 1);
    }
    for (int rank = 0; rank < FLIGHT_RANKS_MAX; rank++) {
        all_s += t->waited_s[rank];
        if (t->waited_s[rank] > t->waited_s[best])
            best = rank;
    }
    ret->collectives = t->collectives;
    ret->last = t->last[best];
    const bool notable = t->collectives >= COLLECTIVES_MIN && t->waited_s[best] > DOMINANT * all_s;
    free(t->parts);
    free(t);
    if (!notable)
        return TITAN_OK;
    for (int i = 0; i < n; i++) {
        const bool other = dumps[i].copy->rank != best;
        *(other ? &ret->others : &ret->share) += share_of(dumps[i].copy);
        others += other;
    }
    titan_assert(others > 0);
    ret->others /= others;
    if (ret->others > ret->share + SHARE_MIN)
        ret->rank = best;
    return TITAN_OK;
}
