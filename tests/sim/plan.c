/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule: everything that is decided before it starts. Most are short; one in fifty is long and crowded. */
#include "tests/sim/sim.h"

#include <string.h>

#include "base/cleanup.h"

#define RESTORE_SETTLES (9 * SEC) /* most of what core_options.adopt_ms and a lease take */

const char *const fault_names[FAULT_KINDS] = {
    [FAULT_WORKER_KILL] = "worker killed",
    [FAULT_WORKER_EXIT] = "worker exits",
    [FAULT_WORKER_HANG] = "worker hangs",
    [FAULT_WORKER_STOP] = "worker stopped",
    [FAULT_WORKERS_KILL] = "two workers killed",
    [FAULT_LOSS_WHILE_AWAY] = "coordinator killed, a worker while it is away",
    [FAULT_KILL_AT_AGREE] = "worker killed in the agreement on a step",
    [FAULT_KILL_AT_SEAL] = "worker killed while state is installed",
    [FAULT_COMM_BREAK] = "communicator breaks",
    [FAULT_STARTS_FAIL] = "starts fail",
    [FAULT_REFUSED] = "node refuses a job",
    [FAULT_AGENT_KILL] = "agent killed",
    [FAULT_AGENT_STOP] = "agent stopped",
    [FAULT_NODE_POWER] = "node loses power",
    [FAULT_COORD_KILL] = "coordinator killed",
    [FAULT_COORD_KILL_AT_COMMIT] = "coordinator killed between commit and broadcast",
    [FAULT_COORD_POWER] = "coordinator's machine loses power",
    [FAULT_COORD_STOP] = "coordinator stopped",
    [FAULT_STREAM_BREAK] = "stream breaks",
    [FAULT_CUT_COORD] = "node cut off from the coordinator",
    [FAULT_CUT_NODE] = "node cut off from all",
    [FAULT_CUT_ONE_WAY] = "link cut one way",
    [FAULT_CUT_SPLIT] = "cluster split",
    [FAULT_LINK_SLOW] = "link slow",
    [FAULT_LINK_LOSSY] = "link lossy",
    [FAULT_LINK_DOUBLES] = "link doubles datagrams",
    [FAULT_REPLAY_UP] = "old report heard again",
    [FAULT_REPLAY_DOWN] = "old command heard again",
    [FAULT_REPLAY_WORKER] = "old command to a worker heard again",
    [FAULT_FALSE_NAME] = "false registration",
    [FAULT_ELSEWHERE] = "node comes back elsewhere, the old one lives on cut off",
    [FAULT_REVOKED] = "node revoked, a session opened before speaks after",
    [FAULT_LYING_AGENT] = "an agent lies",
    [FAULT_LYING_WORKER] = "a worker lies",
    [FAULT_LYING_CLIENT] = "a client asks for what cannot be",
    [FAULT_DISK_SLOW] = "disk slow",
    [FAULT_DISK_FULL] = "disk full",
    [FAULT_DISK_ERROR] = "disk fails",
    [FAULT_STORE_OLD] = "coordinator on an old backup",
    [FAULT_STORE_RESTORED] = "store restored from a backup",
    [FAULT_WALL_STEP] = "wall clock steps",
    [REQUEST_CANCEL] = "cancel",
    [REQUEST_RESIZE] = "resize",
    [REQUEST_DRAIN] = "drain",
    [REQUEST_UNDRAIN] = "undrain",
    [REQUEST_CHECKPOINT] = "checkpoint",
    [REQUEST_FORGET] = "node forgotten",
};

/* How often each is drawn, and how long it lasts in ms. */
static const struct {
    int weight, lo, hi;
} kinds[FAULT_KINDS] = {
    [FAULT_WORKER_KILL] = {20, 0, 0},     [FAULT_WORKER_EXIT] = {6, 0, 0},
    [FAULT_WORKER_HANG] = {5, 0, 0},      [FAULT_WORKER_STOP] = {5, 50, 4000},
    [FAULT_WORKERS_KILL] = {8, 0, 100},   [FAULT_KILL_AT_AGREE] = {8, 0, 0},
    [FAULT_KILL_AT_SEAL] = {6, 0, 0},     [FAULT_COMM_BREAK] = {6, 0, 0},
    [FAULT_STARTS_FAIL] = {3, 100, 2000}, [FAULT_AGENT_KILL] = {7, 50, 12000},
    [FAULT_AGENT_STOP] = {4, 50, 5000},   [FAULT_NODE_POWER] = {6, 200, 9000},
    [FAULT_COORD_KILL] = {8, 20, 4000},   [FAULT_COORD_KILL_AT_COMMIT] = {10, 20, 4000},
    [FAULT_COORD_POWER] = {5, 20, 4000},  [FAULT_COORD_STOP] = {3, 50, 5000},
    [FAULT_STREAM_BREAK] = {6, 0, 0},     [FAULT_CUT_COORD] = {8, 50, 6000},
    [FAULT_CUT_NODE] = {6, 50, 6000},     [FAULT_CUT_ONE_WAY] = {5, 50, 6000},
    [FAULT_CUT_SPLIT] = {5, 50, 6000},    [FAULT_LINK_SLOW] = {4, 100, 4000},
    [FAULT_LINK_LOSSY] = {4, 100, 4000},  [FAULT_LINK_DOUBLES] = {3, 100, 4000},
    [FAULT_REPLAY_UP] = {6, 0, 0},        [FAULT_REPLAY_DOWN] = {6, 0, 0},
    [FAULT_REPLAY_WORKER] = {6, 0, 0},    [FAULT_FALSE_NAME] = {4, 0, 0},
    [FAULT_LYING_AGENT] = {12, 0, 0},     [FAULT_LYING_CLIENT] = {2, 0, 0},
    [FAULT_DISK_SLOW] = {3, 100, 3000},   [FAULT_DISK_FULL] = {3, 100, 3000},
    [FAULT_DISK_ERROR] = {2, 50, 1000},   [FAULT_STORE_OLD] = {5, 100, 2000},
    [FAULT_WALL_STEP] = {3, 0, 0},        [FAULT_LOSS_WHILE_AWAY] = {8, 1000, 5000},
    [FAULT_LYING_WORKER] = {6, 0, 0},     [REQUEST_CANCEL] = {4, 0, 0},
    [REQUEST_RESIZE] = {9, 0, 0},         [REQUEST_DRAIN] = {5, 0, 0},
    [REQUEST_UNDRAIN] = {3, 0, 0},        [REQUEST_CHECKPOINT] = {5, 0, 0},
    [REQUEST_FORGET] = {5, 0, 0},         [FAULT_STORE_RESTORED] = {0, 20, 4000},
    [FAULT_ELSEWHERE] = {0, 3000, 12000}, [FAULT_REVOKED] = {0, 300, 9000},
    [FAULT_REFUSED] = {0, 100, 6000},
};

/* What follows a restore, besides what follows everything. */
static const enum fault_kind after_restore[] = {
    REQUEST_CANCEL,   REQUEST_RESIZE,   REQUEST_DRAIN,     REQUEST_UNDRAIN,    REQUEST_FORGET,   REQUEST_CHECKPOINT,
    FAULT_AGENT_KILL, FAULT_NODE_POWER, FAULT_WORKER_KILL, FAULT_WORKERS_KILL, FAULT_COORD_KILL, FAULT_CUT_COORD};

struct dice {
    uint64_t state;
};
static int64_t roll(struct dice *d, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(chance_mix(d->state++, 7) % (uint64_t)(hi - lo + 1));
}

static void make_spec(struct dice *d, struct plan *p, int id)
{
    struct job *j = &p->specs[id];
    j->id = (uint64_t)id;
    j->name = j->user = j->reason = "";
    j->status.checkpoint = "";
    strcpy(j->spec.device, "cpu"); /* those that lie have others */
    j->spec.steps = (uint64_t)roll(d, roll(d, 0, 9) ? 8 : 1, 30);
    j->spec.min_workers = (uint32_t)roll(d, 1, 4);
    j->spec.max_workers = j->spec.min_workers + (uint32_t)roll(d, 0, 4);
    /* Half of them have a mesh: only whole multiples of it are legal. */
    uint32_t unit = roll(d, 0, 1) ? 1 : (uint32_t)roll(d, 2, 4);
    if (unit > 1) {
        j->spec.min_workers = unit;
        j->spec.max_workers = unit * (uint32_t)roll(d, 1, SIM_WORLD / unit);
        (void)snprintf(j->spec.mesh, sizeof(j->spec.mesh), "tp=%u", unit);
    }
    for (uint32_t w = j->spec.min_workers; w <= j->spec.max_workers; w += unit)
        if (w == j->spec.min_workers || w == j->spec.max_workers || roll(d, 0, 4))
            world_set_add(&j->spec.worlds, w);
    j->spec.max_restarts = (uint32_t)roll(d, 0, 25);
    j->spec.backoff_ms = (uint32_t)roll(d, 10, 300);
    j->spec.backoff_max_ms = j->spec.backoff_ms * 8;
    j->spec.keep_latest = (uint32_t)roll(d, 0, 2);
    j->spec.priority = (int32_t)roll(d, 0, 2);
    if (roll(d, 0, 3) == 0) {
        j->spec.restart_window_s = 36000;
        j->spec.max_node_losses = (uint32_t)roll(d, 0, 12);
        j->spec.max_hangs = (uint32_t)roll(d, 0, 5);
        j->spec.max_ooms = 1;
    }
    p->redundancy[id] = (enum redundancy)roll(d, 0, 2);
}

/* Every job fits when all nodes are there. */
static void make_room(struct plan *p)
{
    uint32_t slots = 0, most = 0;
    for (int id = 1; id <= p->jobs; id++)
        most = p->specs[id].spec.min_workers > most ? p->specs[id].spec.min_workers : most;
    for (int h = 0; h < p->nodes; h++)
        slots += p->slots[h];
    for (int h = 0; slots < most; h = (h + 1) % p->nodes, slots++)
        p->slots[h]++;
}

static enum fault_kind draw_kind(struct dice *d)
{
    int sum = 0;
    for (int k = 0; k < FAULT_KINDS; k++)
        sum += kinds[k].weight;
    int64_t r = roll(d, 0, sum - 1);
    int k = 0;
    for (; r >= kinds[k].weight; k++)
        r -= kinds[k].weight;
    return (enum fault_kind)k;
}

static void make_fault(struct dice *d, struct plan *p, enum fault_kind kind, usec when)
{
    struct fault *f = &p->faults[p->n_faults++];
    /* Half of what lasts is short. */
    int64_t hi = roll(d, 0, 1) ? kinds[kind].hi : kinds[kind].lo + (kinds[kind].hi - kinds[kind].lo) / 8;
    f->kind = kind;
    f->at = when;
    f->lasts = roll(d, kinds[kind].lo, hi) * MS;
    f->pick = (uint32_t)roll(d, 0, INT32_MAX);
    f->pick2 = (uint32_t)roll(d, 0, INT32_MAX);
    p->quiet_at = MAX(p->quiet_at, f->at + f->lasts);
}

static void make_faults(struct dice *d, struct plan *p, int n, usec until)
{
    p->quiet_at = until;
    for (int i = 0; i < n; i++) {
        const enum fault_kind kind = draw_kind(d);
        usec when = roll(d, 50 * MS, until);
        /* Trouble comes together: a third strikes soon after the one before it. */
        if (i > 0 && roll(d, 0, 2) == 0)
            when = p->faults[p->n_faults - 1].at + roll(d, 0, 300 * MS);
        make_fault(d, p, kind, when);
    }
}

/* The store goes back to its backup in one of eight; what the others roll stays theirs. */
static void make_restore(struct plan *p, usec until)
{
    struct dice d = {chance_mix(p->seed, 2)};
    if (p->store != STORE_IMAGE || roll(&d, 0, 7))
        return;
    const usec when = roll(&d, p->backup_at, until + SEC);
    make_fault(&d, p, FAULT_STORE_RESTORED, when);
    const usec settles = when + p->faults[p->n_faults - 1].lasts + RESTORE_SETTLES;
    if (roll(&d, 0, 2) == 0) /* a job that is submitted before the store is settled */
        p->submit_at[p->jobs] = roll(&d, when, settles);
    for (int64_t n = roll(&d, 1, 6); n > 0; n--) {
        const bool any = roll(&d, 0, 3) == 0;
        const enum fault_kind kind = draw_kind(&d), next = after_restore[roll(&d, 0, ARRAY_SIZE(after_restore) - 1)];
        make_fault(&d, p, any ? kind : next, roll(&d, MAX(when - SEC, 50 * MS), settles));
    }
}

/* In one of four; what the others roll stays theirs. The lease is long enough for what is cut off to go on. */
static void make_elsewhere(struct plan *p, usec until)
{
    struct dice d = {chance_mix(p->seed, 3)};
    if (roll(&d, 0, 3))
        return;
    make_fault(&d, p, FAULT_ELSEWHERE, roll(&d, 50 * MS, until));
    if (p->lease_ms)
        p->lease_ms = (uint32_t)roll(&d, 4000, 9000);
}

/* In one of eight; what the others roll stays theirs. */
static void make_revoked(struct plan *p, usec until)
{
    struct dice d = {chance_mix(p->seed, 5)};
    if (roll(&d, 0, 7) == 0)
        make_fault(&d, p, FAULT_REVOKED, roll(&d, 50 * MS, until));
}

/* In one of four. */
static void make_refused(struct plan *p, usec until)
{
    struct dice d = {chance_mix(p->seed, 6)};
    if (roll(&d, 0, 3) == 0)
        make_fault(&d, p, FAULT_REFUSED, roll(&d, 0, until));
}

/* One of six has as many jobs as there can be, most of them short: they queue, and pass each other. */
static void make_crowd(struct plan *p, usec until)
{
    struct dice d = {chance_mix(p->seed, 4)};
    if (roll(&d, 0, 5))
        return;
    for (int id = p->jobs + 1; id <= SIM_JOBS; id++) {
        make_spec(&d, p, id);
        p->submit_at[id] = roll(&d, 0, until / 2);
    }
    p->jobs = SIM_JOBS;
}

/* In one of four, most jobs; what the others roll stays theirs. The number of the dice spares the seeds of
 * test_simulation.c that failed once. */
static void make_directed(struct plan *p)
{
    struct dice d = {chance_mix(p->seed, 89)};
    if (roll(&d, 0, 3))
        return;
    for (int id = 1; id <= p->jobs; id++)
        p->directed[id] = roll(&d, 0, 3) > 0;
}

void plan_make(struct plan *p, uint64_t seed)
{
    struct dice d = {chance_mix(seed, 1)};
    memset(p, 0, sizeof(*p));
    p->seed = seed;
    bool large = roll(&d, 0, 49) == 0;
    int64_t kind = roll(&d, 0, 119);
    p->store = kind == 0 ? STORE_DISK : kind <= 2 ? STORE_MEMORY : STORE_IMAGE;
    p->lease_ms = roll(&d, 0, 3) ? (uint32_t)roll(&d, 1200, 4000) : 0;
    p->pace = roll(&d, 0, 5) ? 1 : 5;
    p->late_cancel = roll(&d, 0, 5) == 0;
    p->quarantine = roll(&d, 0, 5) == 0;
    p->nodes = (int)roll(&d, 2, large ? SIM_NODES : 4);
    p->jobs = large ? (int)roll(&d, 2, SIM_JOBS) : (int)roll(&d, 0, 2) == 0 ? 2 : 1;
    for (int h = 0; h < p->nodes; h++)
        p->slots[h] = (uint32_t)roll(&d, 1, 3);
    for (int h = 0; h <= SIM_COORD; h++) {
        p->mono_offset_ms[h] = roll(&d, 1, 1000000000);
        p->wall_offset_ms[h] = INT64_C(1700000000000) + roll(&d, -4, 4) * 3600000;
        p->drift_ppm[h] = (int32_t)roll(&d, -100, 100);
    }
    usec until = (large ? 12 : roll(&d, 1, 4)) * SEC;
    for (int id = 1; id <= p->jobs; id++) {
        make_spec(&d, p, id);
        p->submit_at[id] = id == 1 ? roll(&d, 0, 300 * MS) : roll(&d, 0, until / 2);
    }
    make_crowd(p, until);
    make_room(p);
    p->backup_at = roll(&d, 0, until / 2);
    make_faults(&d, p, (int)roll(&d, large ? 10 : 1, large ? 24 : 8), until);
    make_restore(p, until);
    make_elsewhere(p, until);
    make_revoked(p, until);
    make_refused(p, until);
    make_directed(p);
}

void plan_keep(struct plan *p, uint64_t keep)
{
    int n = 0;
    for (int i = 0; i < p->n_faults; i++)
        if (keep >> i & 1)
            p->faults[n++] = p->faults[i];
    p->n_faults = n;
}

void plan_print_fault(FILE *out, int number, const struct fault *f)
{
    fprintf(out, "#   %2d  at %6lld ms  %s", number, (long long)(f->at / MS), fault_names[f->kind]);
    if (f->lasts)
        fprintf(out, " for %lld ms", (long long)(f->lasts / MS));
    fprintf(out, " (pick %u)\n", f->pick);
}
