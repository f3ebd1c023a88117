/* SPDX-License-Identifier: Apache-2.0 */
/* simulate.c - programs on a virtual clock. */
#include "worker/plan/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/plan/timeline.h"

/* One stream of one rank: its actions in order, and the next one to run. */
struct lane {
    int *actions;
    int n, next;
    double free;  /* end of the last action */
    double drift; /* drift (struct simulated_rank) at the end of the compute stream's last action */
    /* A lane stores no ready times for SEND and RECV: advance() finds the partner's time through the partner's
     * lane. */
};

struct sim {
    const struct simulation_options *opt;
    struct simulation *out;
    struct lane *lanes;         /* [rank][STREAM_COUNT] */
    double late[CHANNEL_COUNT]; /* by how many standard deviations the last member is late; 0: no spread is known */
};

static struct lane *lane_of(const struct sim *s, int rank, int stream)
{
    titan_assert(rank >= 0 && rank < s->opt->n && stream >= 0 && stream < STREAM_COUNT);
    return &s->lanes[rank * STREAM_COUNT + stream];
}

static const struct action *action_at(const struct sim *s, int rank, int index)
{
    return &s->opt->programs[rank]->actions[index];
}

/* The mean of the largest of n values of a standard normal distribution: the integral of x d(Phi(x)^n). */
static double largest_of(int n)
{
    const double step = 1.0 / 64, end = 8;
    double sum = 0, below = 0;

    titan_assert(n >= 1);
    for (double x = -end; n > 1 && x < end; x += step) {
        const double above = pow(0.5 * erfc(-(x + step) / sqrt(2)), n);
        sum += (x + step / 2) * (above - below);
        below = above;
    }
    return sum;
}

/* --- set-up ------------------------------------------------------------------------------------------------------- */

static titan_status alloc_ranks(struct sim *s, struct titan_error *err)
{
    s->out->n = s->opt->n;
    s->out->ranks = calloc((size_t)s->opt->n, sizeof *s->out->ranks);
    s->lanes = calloc((size_t)s->opt->n * STREAM_COUNT, sizeof *s->lanes);
    if (!s->out->ranks || !s->lanes)
        return titan_fail(err, TITAN_ENOMEM, "simulation: out of memory");
    for (int r = 0; r < s->opt->n; r++) {
        struct simulated_rank *k = &s->out->ranks[r];
        const size_t n = (size_t)s->opt->programs[r]->n_actions + 1;
        k->program = s->opt->programs[r];
        k->start = calloc(n, sizeof *k->start);
        k->end = malloc(n * sizeof *k->end);
        k->drift = calloc(n, sizeof *k->drift);
        if (s->opt->to_buddy)
            TRY(program_finals(k->program, &k->finals, &k->n_finals, err));
        if (!k->start || !k->end || !k->drift)
            return titan_fail(err, TITAN_ENOMEM, "simulation: out of memory");
        for (size_t i = 0; i < n; i++)
            k->end[i] = -1; /* not run */

        int count[STREAM_COUNT] = {0};
        for (int i = 0; i < k->program->n_actions; i++)
            count[k->program->actions[i].stream]++;
        for (int c = 0; c < STREAM_COUNT; c++) {
            struct lane *l = lane_of(s, r, c);
            l->actions = malloc(((size_t)count[c] + 1) * sizeof *l->actions);
            if (!l->actions)
                return titan_fail(err, TITAN_ENOMEM, "simulation: out of memory");
        }
        for (int i = 0; i < k->program->n_actions; i++) {
            struct lane *l = lane_of(s, r, k->program->actions[i].stream);
            l->actions[l->n++] = i;
        }
    }
    return TITAN_OK;
}

/* --- the clock ---------------------------------------------------------------------------------------------------- */

/* Head of a lane; -1 at its end. */
static int head(const struct lane *l)
{
    titan_assert(l->next <= l->n);
    return l->next < l->n ? l->actions[l->next] : -1;
}

/* Time when the action can begin; -1: it waits for an action that has not run. *ret_blocker: of the actions that it
 * waits for, the last to end. */
static double ready_time(const struct sim *s, int rank, int index, int *ret_blocker)
{
    const struct program *p = s->opt->programs[rank];
    const struct action *a = &p->actions[index];
    const double *const end = s->out->ranks[rank].end, *const drift = s->out->ranks[rank].drift;
    const double late = a->channel >= 0 && op_is_collective((enum op)a->op) ? s->late[a->channel] : 0;
    double t = MAX(lane_of(s, rank, a->stream)->free, s->opt->issue * index);

    *ret_blocker = -1;
    for (int i = 0; i < a->n_waits; i++) {
        const int w = p->waits[a->wait + i];
        if (end[w] < 0) {
            *ret_blocker = w;
            return -1;
        }
        if (end[w] + late * drift[w] > t) {
            t = end[w] + late * drift[w];
            *ret_blocker = w;
        }
    }
    return t;
}

/* Time when the rank's buddy has all that becomes final before the action; -1: an action that makes it has not run.
 * *ret_bytes: the bytes of it. */
static double buddy_time(const struct sim *s, int rank, int index, double *ret_bytes)
{
    const struct simulated_rank *const k = &s->out->ranks[rank];
    const struct program *const p = k->program;
    double free = 0; /* end of the message before */

    *ret_bytes = 0;
    for (int i = 0; i < k->n_finals && k->finals[i].writer < index; i++) {
        const struct final *const f = &k->finals[i];
        const double bytes = f->codes >= 0 ? (double)p->buffers[f->codes].bytes
                                           : (double)action_params(p, &p->actions[f->norm])->norm.n * sizeof(float);
        const double final = k->end[k->finals[i].writer];
        if (final < 0)
            return -1;
        free = MAX(free, final) + s->opt->to_buddy(s->opt->arg, p, bytes);
        *ret_bytes += bytes;
    }
    for (int i = 0; k->finals && i < index; i++) { /* the state that owners have made follows the last directions */
        const struct action *const a = &p->actions[i];
        if (a->op != OP_WHOLE)
            continue;
        const double bytes = (double)action_params(p, a)->whole.kept * sizeof(float);
        if (k->end[i] < 0)
            return -1;
        free = MAX(free, k->end[i]) + s->opt->to_buddy(s->opt->arg, p, bytes);
        *ret_bytes += bytes;
    }
    return free;
}

/* AGREE and COMMIT of all ranks begin together, once all ranks and their buddies are there. -1: not yet. *ret_waited: s
 * of waiting for buddies alone. */
static double begin_together(const struct sim *s, int stream, double *ret_waited)
{
    double start = 0, copied = 0, bytes;
    int before;

    for (int r = 0; r < s->opt->n; r++) {
        const int i = head(lane_of(s, r, stream));
        const bool here = i >= 0 && action_at(s, r, i)->channel == CHANNEL_WORLD;
        const double at = here ? ready_time(s, r, i, &before) : -1, buddy = here ? buddy_time(s, r, i, &bytes) : -1;
        if (at < 0 || buddy < 0)
            return -1;
        start = MAX(start, at);
        copied = MAX(copied, buddy);
    }
    *ret_waited = MAX(0, copied - start);
    return MAX(start, copied);
}

static void account(struct sim *s, int rank, int index, double start, double end, int blocker)
{
    struct simulated_rank *k = &s->out->ranks[rank];
    const struct program *p = k->program;
    const struct action *a = &p->actions[index];
    struct lane *l = lane_of(s, rank, a->stream);
    const double idle = start - l->free, took = end - start;

    titan_assert(start >= l->free && end >= start && k->end[index] < 0);
    if (a->stream == STREAM_COMPUTE && idle > 0 && blocker >= 0 && p->actions[blocker].channel >= 0)
        k->exposed[p->actions[blocker].channel] += idle;
    if (a->channel >= 0 && a->op != OP_RECV)
        k->bytes[a->channel] += action_wire_bytes(p, a);
    if (a->stream == STREAM_COMPUTE) {
        k->compute += took;
        if (a->phase == PHASE_FORWARD)
            k->forward += took;
        else if (a->phase != PHASE_REDUCE && a->phase != PHASE_UPDATE)
            k->backward += took;
        if (a->phase != PHASE_REDUCE && a->phase != PHASE_UPDATE && took > 0) {
            k->first = k->last == 0 ? start : k->first;
            k->last = end;
        }
    }
    if (a->stream == STREAM_COMPUTE && s->opt->spread) {
        if (idle > 0 && blocker >= 0 && op_is_collective((enum op)p->actions[blocker].op))
            l->drift = 0;
        l->drift += s->opt->spread(s->opt->arg, p, a);
        k->drift[index] = l->drift;
    }
    k->start[index] = start;
    k->end[index] = end;
    k->finish = MAX(k->finish, end);
    l->free = end;
    l->next++;
}

static double time_of(const struct sim *s, int rank, int index)
{
    return s->opt->time(s->opt->arg, s->opt->programs[rank], action_at(s, rank, index));
}

static bool advance(struct sim *s, int rank, int stream)
{
    struct lane *l = lane_of(s, rank, stream);
    bool moved = false;

    for (int i; (i = head(l)) >= 0; moved = true) {
        const struct action *a = action_at(s, rank, i);
        int blocker;
        const double ready = ready_time(s, rank, i, &blocker);
        if (ready < 0)
            break;
        if (a->op == OP_SEND || a->op == OP_RECV) { /* the two begin together */
            const int there =
                a->op == OP_SEND ? stream - STREAM_SEND + STREAM_RECV : stream - STREAM_RECV + STREAM_SEND;
            const int other = head(lane_of(s, a->peer, there));
            int other_blocker;
            if (other < 0 || action_at(s, a->peer, other)->peer != rank ||
                action_at(s, a->peer, other)->op != (a->op == OP_SEND ? OP_RECV : OP_SEND))
                break;
            const double other_ready = ready_time(s, a->peer, other, &other_blocker);
            if (other_ready < 0)
                break;
            const double start = MAX(ready, other_ready), end = start + time_of(s, rank, i);
            account(s, rank, i, start, end, blocker);
            account(s, a->peer, other, start, end, other_blocker);
        } else if (a->channel == CHANNEL_WORLD) {
            double waited;
            const double start = begin_together(s, stream, &waited);
            if (start < 0)
                break;
            for (int r = 0; r < s->opt->n; r++) {
                const int other = head(lane_of(s, r, stream));
                (void)buddy_time(s, r, other, &s->out->ranks[r].buddy_bytes);
                s->out->ranks[r].buddy += waited;
                account(s, r, other, start, start + time_of(s, r, other), -1);
            }
        } else {
            account(s, rank, i, ready, ready + time_of(s, rank, i), blocker);
        }
    }
    return moved;
}

static titan_status run(struct sim *s, struct titan_error *err)
{
    bool left = false;

    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->opt->n; r++)
            for (int k = 0; k < STREAM_COUNT; k++)
                moved |= advance(s, r, k);
    }
    for (int r = 0; r < s->opt->n; r++)
        for (int k = 0; k < STREAM_COUNT; k++) {
            const int i = head(lane_of(s, r, k));
            int blocker;
            left |= i >= 0;
            if (i < 0 || ready_time(s, r, i, &blocker) < 0)
                continue; /* the action waits for another stream of its own rank, so it is not the cause */
            const struct action *a = action_at(s, r, i);
            return titan_fail(
                err, TITAN_EINVAL,
                "deadlock: pp rank %d stands at action %d (%s, microbatch %d, peer %d) and no peer meets it", r, i,
                op_name((enum op)a->op), a->microbatch, a->peer);
        }
    return left ? titan_fail(err, TITAN_EINVAL, "deadlock: actions wait for each other") : TITAN_OK;
}

titan_status simulate(const struct simulation_options *options, struct simulation **ret, struct titan_error *err)
{
    struct sim s = {.opt = options, .out = calloc(1, sizeof *s.out)};

    titan_assert(options->n > 0 && options->time);
    if (!s.out)
        return titan_fail(err, TITAN_ENOMEM, "simulation: out of memory");
    for (int c = 0; options->spread && c < CHANNEL_COUNT; c++)
        s.late[c] = largest_of(mesh_group_size(&options->programs[0]->mesh, channel_group((enum channel)c)));
    titan_status status = alloc_ranks(&s, err);
    if (status == TITAN_OK)
        status = run(&s, err);
    for (int i = 0; s.lanes && i < options->n * STREAM_COUNT; i++)
        free(s.lanes[i].actions);
    free(s.lanes);
    if (status != TITAN_OK) {
        simulation_close(s.out);
        return status;
    }
    struct simulation *const out = s.out;
    double first = INFINITY, last = 0, busy = 0;
    for (int r = 0; r < out->n; r++) {
        out->step = MAX(out->step, out->ranks[r].finish);
        first = MIN(first, out->ranks[r].first);
        last = MAX(last, out->ranks[r].last);
        busy += out->ranks[r].forward + out->ranks[r].backward;
    }
    if (last > first)
        out->bubble = 1 - busy / (out->n * (last - first));
    *ret = out;
    return TITAN_OK;
}

void simulation_close(struct simulation *s)
{
    if (!s)
        return;
    for (int r = 0; s->ranks && r < s->n; r++) {
        free(s->ranks[r].start);
        free(s->ranks[r].end);
        free(s->ranks[r].drift);
        free(s->ranks[r].finals);
    }
    free(s->ranks);
    free(s);
}

#define BESIDE_PID (1 << 20) /* process numbers of the simulated ranks begin here, behind the ranks of a real trace */

/* --- timeline ----------------------------------------------------------------------------------------------------- */

void simulation_timeline(const struct simulation *s, double zero, struct buf *out)
{
    const bool beside = out->len > 0;
    const int first = beside ? BESIDE_PID : 0;
    if (!beside)
        timeline_begin(out);
    for (int r = 0; r < s->n; r++) {
        char name[32];
        (void)snprintf(name, sizeof name, "%spp rank %d", beside ? "plan: " : "", r);
        timeline_name(out, first + r, name, s->ranks[r].program);
    }
    for (int r = 0; r < s->n; r++)
        timeline_actions(out, first + r, s->ranks[r].program, zero, s->ranks[r].start, s->ranks[r].end);
    timeline_end(out);
}
