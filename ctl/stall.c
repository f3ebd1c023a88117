/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/stall.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "base/vec.h"

#define SHORT_S 1.0 /* shorter waits are normal, and left out where no fault was reported */
#define RANKS_SAID_MAX 8
#define OLD_MS 10000 /* dumps whose times differ by more are not of the same moment */

/* The dumps, indexed by rank. */
struct ranks {
    const struct stall_dump *of[FLIGHT_RANKS_MAX];
    int world;
    int64_t newest_ms;
};

static double seconds(const struct stall_dump *d, int64_t since_ns)
{
    titan_assert(since_ns <= d->now_ns);
    return (double)(d->now_ns - since_ns) * 1e-9;
}

/* The newest entry of a kind in a group. peer: only for messages. NULL: there is no entry. */
static const struct flight_entry *newest(const struct stall_dump *d, enum flight_kind kind, int group, int peer)
{
    const struct flight_entry *found = NULL;
    titan_assert(group >= 0 && group < FLIGHT_GROUPS && kind != FLIGHT_ACTION);
    for (int i = 0; i < d->copy->n; i++) {
        const struct flight_entry *e = &d->copy->entries[i];
        if (e->kind == kind && e->group == group && (kind == FLIGHT_COLLECTIVE || e->peer == peer) &&
            (!found || e->number > found->number))
            found = e;
    }
    return found;
}

static const struct flight_entry *numbered(const struct stall_dump *d, enum flight_kind kind, int group,
                                           uint32_t number)
{
    for (int i = 0; i < d->copy->n; i++) {
        const struct flight_entry *e = &d->copy->entries[i];
        if (e->kind == kind && e->group == group && e->number == number)
            return e;
    }
    return NULL;
}

/* What a rank does now. Its own operation is chosen before a transfer, and the latest begun of several. If nothing is
 * under way, this is what ended last. */
static const struct flight_entry *doing(const struct stall_dump *d)
{
    const struct flight_entry *best = NULL;
    int best_class = 0;
    for (int i = 0; i < d->copy->n; i++) {
        const struct flight_entry *e = &d->copy->entries[i];
        const int class = e->ended_ns ? 1 : e->kind == FLIGHT_ACTION ? 3 : 2;
        const bool later = !best || (class == 1 ? e->ended_ns >= best->ended_ns : e->began_ns >= best->began_ns);
        if (class > best_class || (class == best_class && later)) {
            best = e;
            best_class = class;
        }
    }
    return best;
}

/* Does this worker have a fault of its own, or no dump? */
static bool at_fault(const struct stall_dump *d)
{
    return !d || d->detail[0];
}

static bool has_ended(const struct stall_dump *d)
{
    return d->detail[0] && !strcmp(d->cause, "exit");
}

/* --- finding ------------------------------------------------------------------------------------------------------ */

static int by_rank(const void *a, const void *b)
{
    return ((const struct stall_rank *)a)->rank - ((const struct stall_rank *)b)->rank;
}

static titan_status add_rank(struct stall_rank **list, int *n, int *cap, struct stall_rank rank,
                             struct titan_error *err)
{
    for (int i = 0; i < *n; i++)
        if ((*list)[i].rank == rank.rank)
            return TITAN_OK;
    return VEC_PUSH(*list, *n, *cap, rank) ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "out of memory");
}

static titan_status add_stall(struct stall_report *r, const struct stall_dump *d, const struct flight_entry *e,
                              enum stall_kind kind, struct stall **ret, struct titan_error *err)
{
    titan_assert(kind < STALL_KINDS && e->group >= 0 && e->group < FLIGHT_GROUPS);
    const struct stall s = {
        .kind = kind, .group = e->kind == FLIGHT_ACTION ? "" : d->copy->groups[e->group].name, .what = e};
    if (!VEC_PUSH(r->stalls, r->n, r->cap, s))
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    *ret = &r->stalls[r->n - 1];
    return TITAN_OK;
}

static titan_status add_waiting(struct stall *s, const struct stall_dump *d, const struct flight_entry *e,
                                struct titan_error *err)
{
    s->waited_s = MAX(s->waited_s, seconds(d, e->began_ns));
    return add_rank(&s->waiting, &s->n_waiting, &s->cap_waiting, (struct stall_rank){d->copy->rank, d, e, 0}, err);
}

static titan_status add_missing(struct stall *s, const struct ranks *ranks, int rank, struct titan_error *err)
{
    const struct stall_dump *d = ranks->of[rank];
    titan_assert(rank < ranks->world);
    const int64_t older_ms = d ? ranks->newest_ms - d->time_ms : 0;
    return add_rank(&s->missing, &s->n_missing, &s->cap_missing,
                    (struct stall_rank){.rank = rank,
                                        .dump = d,
                                        .entry = d ? doing(d) : NULL,
                                        .older_s = older_ms > OLD_MS ? (double)older_ms / 1000 : 0},
                    err);
}

/* Finds members that have not begun the collective, or have begun another in its place. */
static titan_status look_for_missing(struct stall *s, const struct ranks *ranks, struct titan_error *err)
{
    titan_assert(s->n_waiting > 0 && s->what->kind == FLIGHT_COLLECTIVE);
    const struct flight_entry *what = s->what;
    const struct flight_group *g = &s->waiting[0].dump->copy->groups[what->group];
    for (int rank = 0; rank < ranks->world; rank++) {
        const struct stall_dump *d = ranks->of[rank];
        if (!(g->members[rank / 64] >> rank % 64 & 1))
            continue;
        const struct flight_entry *there = d ? numbered(d, FLIGHT_COLLECTIVE, what->group, what->number) : NULL;
        const struct flight_entry *last = d ? newest(d, FLIGHT_COLLECTIVE, what->group, -1) : NULL;
        if (!there && (!last || last->number < what->number)) {
            TRY(add_missing(s, ranks, rank, err));
            continue;
        }
        if (!there) /* the rank is past the collective, and its record was overwritten */
            continue;
        if (strcmp(there->op, what->op) != 0)
            s->kind = STALL_DIFFERENT;
        else if (there->bytes != what->bytes && strcmp(what->op, "ALL_TO_ALL_V") != 0 && s->kind != STALL_DIFFERENT)
            s->kind = STALL_SIZES;
        else
            continue;
        TRY(add_rank(&s->missing, &s->n_missing, &s->cap_missing, (struct stall_rank){rank, d, there, 0}, err));
    }
    if (s->kind != STALL_MISSING || s->n_missing)
        return TITAN_OK;
    for (int i = 0; i < s->n_waiting; i++)
        if (at_fault(s->waiting[i].dump))
            TRY(add_rank(&s->missing, &s->n_missing, &s->cap_missing, s->waiting[i], err));
    s->kind = s->n_missing ? STALL_HELD : STALL_UNDER_WAY;
    int kept = 0;
    for (int i = 0; i < s->n_waiting; i++)
        if (s->n_missing == s->n_waiting || !at_fault(s->waiting[i].dump))
            s->waiting[kept++] = s->waiting[i];
    s->n_waiting = kept;
    return TITAN_OK;
}

/* Adds a rank that is inside a collective to the stall of that collective. Each collective has one stall. */
static titan_status look_at_collective(struct stall_report *r, const struct stall_dump *d, const struct flight_entry *e,
                                       struct titan_error *err)
{
    const struct flight_group *g = &d->copy->groups[e->group];
    struct stall *s = NULL;
    for (int i = 0; i < r->n && !s; i++) {
        const struct stall_rank *first = r->stalls[i].waiting;
        if (r->stalls[i].what->kind != FLIGHT_COLLECTIVE || r->stalls[i].what->number != e->number || !first ||
            first->entry->group != e->group)
            continue;
        const struct flight_group *its = &first->dump->copy->groups[e->group];
        if (strcmp(its->name, g->name) == 0 && memcmp(its->members, g->members, sizeof g->members) == 0)
            s = &r->stalls[i];
    }
    if (!s)
        TRY(add_stall(r, d, e, STALL_MISSING, &s, err));
    return add_waiting(s, d, e, err);
}

/* Examines a send or receive without its counterpart. */
static titan_status look_at_message(struct stall_report *r, const struct ranks *ranks, const struct stall_dump *d,
                                    const struct flight_entry *e, struct titan_error *err)
{
    titan_assert(e->peer >= 0 && !e->ended_ns);
    const bool sends = e->kind == FLIGHT_SEND;
    const enum flight_kind other = sends ? FLIGHT_RECEIVE : FLIGHT_SEND;
    const struct stall_dump *peer = ranks->of[e->peer];
    const struct flight_entry *last = peer ? newest(peer, other, e->group, d->copy->rank) : NULL;
    const struct flight_entry *there = peer ? numbered(peer, other, e->group, e->number) : NULL;
    struct stall *s = NULL;
    enum stall_kind kind = sends ? STALL_UNTAKEN : STALL_UNSENT;
    if (last && last->number >= e->number)
        kind = there && there->peer == d->copy->rank && there->bytes != e->bytes ? STALL_SIZES : STALL_UNDER_WAY;
    TRY(add_stall(r, d, e, kind, &s, err));
    TRY(add_waiting(s, d, e, err));
    if (kind == STALL_SIZES)
        return add_rank(&s->missing, &s->n_missing, &s->cap_missing, (struct stall_rank){e->peer, peer, there, 0}, err);
    return kind == STALL_UNDER_WAY ? TITAN_OK : add_missing(s, ranks, e->peer, err);
}

/* --- which explains which ----------------------------------------------------------------------------------------- */

/* Does this rank wait in a stall other than `other`? */
static bool waits(const struct stall_report *r, const struct stall *other, int rank)
{
    for (int i = 0; i < r->n; i++)
        for (int k = 0; &r->stalls[i] != other && r->stalls[i].n_missing && k < r->stalls[i].n_waiting; k++)
            if (r->stalls[i].waiting[k].rank == rank)
                return true;
    return false;
}

static bool only_at_fault(const struct stall *s)
{
    for (int k = 0; k < s->n_waiting; k++)
        if (!at_fault(s->waiting[k].dump))
            return false;
    return true;
}

static bool is_root(const struct stall_report *r, const struct stall *s)
{
    if (s->kind == STALL_DIFFERENT || s->kind == STALL_SIZES)
        return true;
    for (int k = 0; k < s->n_missing; k++) {
        const struct stall_rank *m = &s->missing[k];
        const bool works = m->entry && !m->entry->ended_ns && m->entry->kind == FLIGHT_ACTION;
        if (at_fault(m->dump) || works || !waits(r, s, m->rank))
            return !only_at_fault(s);
    }
    return false;
}

static int by_weight(const void *a, const void *b)
{
    const struct stall *x = a, *y = b;
    if (x->root != y->root)
        return y->root - x->root;
    return (y->waited_s > x->waited_s) - (y->waited_s < x->waited_s);
}

/* A stall in which only faulty ranks wait is a root only if no other stall has missing ranks. */
static void find_roots(struct stall_report *r)
{
    int roots = 0, open = 0;
    titan_assert(r->n > 0 && r->stalls);
    for (int i = 0; i < r->n; i++) {
        struct stall *s = &r->stalls[i];
        s->root = s->n_missing > 0 && is_root(r, s);
        roots += s->root;
        open += s->n_missing > 0 && !only_at_fault(s);
    }
    r->circle = open > 0 && roots == 0;
    for (int i = 0; roots == 0 && open == 0 && i < r->n; i++)
        r->stalls[i].root =
            (r->stalls[i].n_missing > 0 || r->stalls[i].kind == STALL_BUSY) && only_at_fault(&r->stalls[i]);
    qsort(r->stalls, (size_t)r->n, sizeof *r->stalls, by_weight);
}

titan_status stall_find(const struct stall_dump *dumps, int n, struct stall_report *ret, struct titan_error *err)
{
    struct ranks ranks = {.world = 0};
    for (int i = 0; i < n; i++) {
        const struct stall_dump **of = &ranks.of[dumps[i].copy->rank];
        ranks.world = MAX(ranks.world, dumps[i].copy->world);
        ranks.newest_ms = MAX(ranks.newest_ms, dumps[i].time_ms);
        if (!*of || dumps[i].time_ms > (*of)->time_ms)
            *of = &dumps[i];
    }
    titan_assert(ranks.world <= FLIGHT_RANKS_MAX);
    *ret = (struct stall_report){.epoch = n ? dumps[0].copy->epoch : 0, .requested = true};
    titan_status status = TITAN_OK;
    for (int rank = 0; rank < ranks.world; rank++) {
        const struct stall_dump *d = ranks.of[rank];
        if (!d)
            continue;
        titan_assert(d->copy->epoch == ret->epoch);
        ret->ranks++;
        if (has_ended(d) && !ret->ended)
            ret->ended = d;
        if (ranks.newest_ms - d->time_ms > OLD_MS) /* the dump is too old: its wait is over, or the rank is gone */
            continue;
        ret->damaged += d->copy->damaged;
        ret->requested &= !strcmp(d->cause, "request");
        for (int i = 0; i < d->copy->n && status == TITAN_OK; i++) {
            const struct flight_entry *e = &d->copy->entries[i];
            ret->step = MAX(ret->step, e->step);
            if (e->kind != FLIGHT_ACTION && !e->ended_ns)
                status = e->kind == FLIGHT_COLLECTIVE ? look_at_collective(ret, d, e, err)
                                                      : look_at_message(ret, &ranks, d, e, err);
        }
    }
    for (int i = 0; i < ret->n && status == TITAN_OK; i++)
        if (ret->stalls[i].what->kind == FLIGHT_COLLECTIVE)
            status = look_for_missing(&ret->stalls[i], &ranks, err);
    const bool none_waits = ret->n == 0;
    for (int rank = 0; none_waits && rank < ranks.world && status == TITAN_OK; rank++) {
        const struct stall_dump *d = ranks.of[rank];
        const struct flight_entry *e = d ? doing(d) : NULL;
        struct stall *s = NULL;
        if (!e || e->ended_ns)
            continue;
        status = add_stall(ret, d, e, STALL_BUSY, &s, err);
        if (status == TITAN_OK)
            status = add_waiting(s, d, e, err);
    }
    if (status != TITAN_OK) {
        stall_report_free(ret);
        return status;
    }
    for (int i = 0; i < ret->n; i++) {
        qsort(ret->stalls[i].waiting, (size_t)ret->stalls[i].n_waiting, sizeof(struct stall_rank), by_rank);
        if (ret->stalls[i].n_missing)
            qsort(ret->stalls[i].missing, (size_t)ret->stalls[i].n_missing, sizeof(struct stall_rank), by_rank);
    }
    int kept = 0;
    for (int i = 0; i < ret->n; i++) {
        struct stall *s = &ret->stalls[i];
        if (!ret->requested || s->waited_s >= SHORT_S || s->kind == STALL_DIFFERENT || s->kind == STALL_SIZES) {
            ret->stalls[kept++] = *s;
            continue;
        }
        free(s->waiting);
        free(s->missing);
    }
    ret->n = kept;
    if (ret->n)
        find_roots(ret);
    return TITAN_OK;
}

void stall_report_free(struct stall_report *report)
{
    for (int i = 0; i < report->n; i++) {
        free(report->stalls[i].waiting);
        free(report->stalls[i].missing);
    }
    free(report->stalls);
    *report = (struct stall_report){.n = 0};
}

/* --- in words ----------------------------------------------------------------------------------------------------- */

static void print_ranks(const struct stall_rank *list, int n, struct buf *out)
{
    buf_puts(out, n == 1 ? "rank " : "ranks ");
    titan_assert(n > 0);
    for (int i = 0; i < MIN(n, RANKS_SAID_MAX); i++)
        buf_printf(out, "%s%d", i == 0 ? "" : i == n - 1 ? " and " : ", ", list[i].rank);
    if (n > RANKS_SAID_MAX)
        buf_printf(out, " and %d more", n - RANKS_SAID_MAX);
}

/* "all-reduce". */
static void print_op(const struct flight_entry *e, struct buf *out)
{
    for (const char *c = e->op; *c; c++)
        buf_printf(out, "%c", *c == '_' ? '-' : *c >= 'A' && *c <= 'Z' ? *c + ('a' - 'A') : *c);
}

/* "all-reduce 118 of group dp_shard", "send 7 of group pp to rank 3", "matmul of layers.7 (dgrad)". */
static void print_entry(const struct flight_entry *e, const char *group, struct buf *out)
{
    print_op(e, out);
    if (e->kind != FLIGHT_ACTION)
        buf_printf(out, " %u of group %s", e->number, group);
    if (e->kind == FLIGHT_SEND || e->kind == FLIGHT_RECEIVE)
        buf_printf(out, " %s rank %d", e->kind == FLIGHT_SEND ? "to" : "from", e->peer);
    if (e->kind != FLIGHT_ACTION)
        return;
    if (e->place[0])
        buf_printf(out, " of %s", e->place);
    if (e->phase[0])
        buf_printf(out, " (%s)", e->phase);
}

/* " ended by signal 9", " is held up (stopped)". */
static void print_fault(const struct stall_dump *d, int n, struct buf *out)
{
    titan_assert(d->detail[0] && n > 0);
    if (!has_ended(d))
        buf_printf(out, " %s held up (%s)", n == 1 ? "is" : "are", d->detail);
    else if (strncmp(d->detail, "signal ", 7) == 0)
        buf_printf(out, " ended by %s", d->detail);
    else
        buf_printf(out, " %s ended (%s)", n == 1 ? "has" : "have", d->detail);
}

/* "rank 2 has been in matmul of layers.7 for 12.4 s". */
static void print_doing(const struct stall_rank *m, struct buf *out)
{
    const struct flight_entry *e = m->entry;
    buf_printf(out, "; rank %d", m->rank);
    if (!m->dump) {
        buf_puts(out, " has left no dump");
        return;
    }
    if (m->dump->detail[0]) {
        print_fault(m->dump, 1, out);
        buf_puts(out, ",");
    }
    const bool ended = has_ended(m->dump);
    if (!e) {
        buf_puts(out, ended ? " had done nothing in this epoch" : " has done nothing in this epoch");
        return;
    }
    buf_puts(out, e->ended_ns ? " was last in " : ended ? " was in " : " has been in ");
    print_entry(e, m->dump->copy->groups[e->group].name, out);
    if (e->ended_ns)
        buf_printf(out, ", %.3g s before its dump", seconds(m->dump, e->ended_ns));
    else
        buf_printf(out, " for %.3g s", seconds(m->dump, e->began_ns));
    if (m->older_s > 0)
        buf_printf(out, ", which is %.0f s older than the others'", m->older_s);
}

void stall_print(const struct stall_report *report, const struct stall *s, struct buf *out)
{
    titan_assert(s->n_waiting > 0);
    const struct flight_entry *e = s->what;
    switch (s->kind) {
    case STALL_MISSING:
        print_ranks(s->missing, s->n_missing, out);
        buf_printf(out, " %s not entered ", s->n_missing == 1 ? "has" : "have");
        break;
    case STALL_UNSENT:
    case STALL_UNTAKEN:
        print_ranks(s->missing, s->n_missing, out);
        buf_printf(out, " has not come to %s ", s->kind == STALL_UNSENT ? "send for" : "receive from");
        break;
    case STALL_DIFFERENT:
    case STALL_SIZES:
        buf_printf(out, "%s differ in ", s->kind == STALL_SIZES ? "sizes" : "the ranks' collectives");
        break;
    case STALL_HELD:
        print_ranks(s->missing, s->n_missing, out);
        print_fault(s->missing[0].dump, s->n_missing, out);
        buf_puts(out, " in ");
        break;
    case STALL_UNDER_WAY:
        buf_puts(out, "no rank is missing in ");
        break;
    default:
        print_ranks(s->waiting, s->n_waiting, out);
        if (at_fault(s->waiting[0].dump))
            print_fault(s->waiting[0].dump, s->n_waiting, out);
        buf_puts(out, at_fault(s->waiting[0].dump) ? " in " : " is in ");
        break;
    }
    print_entry(e, s->group, out);

    buf_printf(out, " (epoch %llu, step %llu", (unsigned long long)report->epoch, (unsigned long long)e->step);
    if (e->microbatch >= 0)
        buf_printf(out, ", microbatch %d", e->microbatch);
    if (e->kind != FLIGHT_ACTION && e->place[0])
        buf_printf(out, ", %s", e->place);
    buf_puts(out, ")");

    if (s->kind == STALL_DIFFERENT || s->kind == STALL_SIZES) {
        buf_puts(out, ": ");
        print_ranks(s->waiting, 1, out);
        buf_puts(out, " in ");
        print_op(e, out);
        if (s->kind == STALL_SIZES)
            buf_printf(out, " with %llu bytes", (unsigned long long)e->bytes);
        buf_puts(out, ",");

        /* Prints what the missing ranks have begun instead. */
        for (int i = 0; i < MIN(s->n_missing, RANKS_SAID_MAX); i++) {
            const struct stall_rank *m = &s->missing[i];
            buf_printf(out, "%s rank %d ", i ? "," : "", m->rank);
            if (!m->entry) {
                buf_puts(out, "has not come to it");
                continue;
            }
            buf_puts(out, "in ");
            print_op(m->entry, out);
            if (s->kind == STALL_SIZES)
                buf_printf(out, " with %llu bytes", (unsigned long long)m->entry->bytes);
        }
    } else if (s->kind == STALL_HELD && only_at_fault(s)) {
        buf_puts(out, "; no other rank was in it when its dump was made");
    } else if (s->kind == STALL_BUSY) {
        if (at_fault(s->waiting[0].dump))
            buf_puts(out, "; no rank waits for another");
        else
            buf_printf(out, " for %.3g s, and no rank waits for another", s->waited_s);
    } else {
        buf_puts(out, "; ");
        print_ranks(s->waiting, s->n_waiting, out);
        buf_printf(out, " %s waited %.3g s%s", s->n_waiting == 1 ? "has" : "have", s->waited_s,
                   s->what->kind == FLIGHT_COLLECTIVE ? " in it" : "");
        for (int i = 0; s->kind != STALL_HELD && i < MIN(s->n_missing, RANKS_SAID_MAX); i++)
            print_doing(&s->missing[i], out);
    }
    bool named = s->kind == STALL_BUSY && s->waiting[0].dump == report->ended;
    for (int i = 0; i < s->n_missing && !named; i++)
        named = s->missing[i].dump == report->ended;
    if (report->ended && !named) { /* also names the rank that ended by itself: it may be the cause */
        buf_printf(out, "; rank %d", report->ended->copy->rank);
        print_fault(report->ended, 1, out);
    }
}

void stall_print_none(const struct stall_report *report, struct buf *out)
{
    if (report->ended) {
        buf_printf(out, "rank %d", report->ended->copy->rank);
        print_fault(report->ended, 1, out);
        buf_puts(out, ", and no rank was in an operation");
    } else {
        buf_puts(out, report->requested ? "no rank has waited for a second" : "no rank was in an operation");
    }
    buf_printf(out, " (epoch %llu, step %llu, %d ranks)", (unsigned long long)report->epoch,
               (unsigned long long)report->step, report->ranks);
}

void stall_print_slowest(const struct stall_slowest *s, struct buf *out)
{
    if (s->rank >= 0)
        buf_printf(
            out,
            "; rank %d is the slowest: the last in %d of %d collectives, and in some for %.0f %% of the time, the "
            "others for %.0f %%",
            s->rank, s->last, s->collectives, 100 * s->share, 100 * s->others);
}

/* --- as data ------------------------------------------------------------------------------------------------------ */

static void put_entry(const struct flight_entry *e, const char *group, struct json_writer *w)
{
    json_put_string(w, "op", e->op);
    json_put_string(w, "place", e->place);
    json_put_string(w, "phase", e->phase);
    json_put_uint(w, "step", e->step);
    json_put_int(w, "microbatch", e->microbatch);
    if (e->kind == FLIGHT_ACTION)
        return;
    json_put_string(w, "group", group);
    json_put_uint(w, "number", e->number);
    json_put_uint(w, "bytes", e->bytes);
    json_put_int(w, "peer", e->peer);
}

static void put_ranks(const char *key, const struct stall_rank *list, int n, struct json_writer *w)
{
    json_begin_array(w, key);
    for (int i = 0; i < n; i++) {
        const struct stall_rank *m = &list[i];
        const struct flight_entry *e = m->entry;
        json_begin_object(w, NULL);
        json_put_int(w, "rank", m->rank);
        json_put_bool(w, "dumped", m->dump);
        json_put_real(w, "older_s", m->older_s);
        if (m->dump && e) {
            json_put_bool(w, "in_it", !e->ended_ns);
            json_put_real(w, "since_s", seconds(m->dump, e->ended_ns ? e->ended_ns : e->began_ns));
            put_entry(e, m->dump->copy->groups[e->group].name, w);
        }
        json_end_object(w);
    }
    json_end_array(w);
}

void stall_put(const struct stall_report *report, const struct stall_slowest *slowest, const struct stall_dump *dumps,
               int n, struct json_writer *w)
{
    static const char *const kinds[STALL_KINDS] = {"missing", "different", "sizes",     "unsent",
                                                   "untaken", "held",      "under_way", "busy"};
    json_begin_object(w, NULL);
    json_put_uint(w, "epoch", report->epoch);
    json_put_uint(w, "step", report->step);
    json_put_int(w, "damaged", report->damaged);
    json_put_bool(w, "circle", report->circle);
    if (slowest->rank >= 0) {
        json_begin_object(w, "slowest");
        json_put_int(w, "rank", slowest->rank);
        json_put_int(w, "collectives", slowest->collectives);
        json_put_int(w, "last", slowest->last);
        json_put_real(w, "share", slowest->share);
        json_put_real(w, "others", slowest->others);
        json_end_object(w);
    }
    json_begin_array(w, "stalls");
    for (int i = 0; i < report->n; i++) {
        const struct stall *s = &report->stalls[i];
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        stall_print(report, s, &text);
        json_begin_object(w, NULL);
        json_put_string(w, "kind", kinds[s->kind]);
        json_put_bool(w, "root", s->root);
        put_entry(s->what, s->group, w);
        json_put_real(w, "waited_s", s->waited_s);
        put_ranks("missing", s->missing, s->n_missing, w);
        put_ranks("waiting", s->waiting, s->n_waiting, w);
        json_put_string(w, "text", text.data);
        json_end_object(w);
    }
    json_end_array(w);
    json_begin_array(w, "dumps");
    for (int i = 0; i < n; i++) {
        json_begin_object(w, NULL);
        json_put_uint(w, "worker", dumps[i].worker);
        json_put_int(w, "rank", dumps[i].copy->rank);
        json_put_string(w, "node", dumps[i].node);
        json_put_string(w, "cause", dumps[i].cause);
        json_put_string(w, "detail", dumps[i].detail);
        json_put_int(w, "records", dumps[i].copy->n);
        json_put_int(w, "damaged", dumps[i].copy->damaged);
        json_end_object(w);
    }
    json_end_array(w);
    json_end_object(w);
}
