/* SPDX-License-Identifier: Apache-2.0 */
/* The clock, the queue of events, one run from start to end. */
#include "base/hash.h"
#include "base/vec.h"
#include "tests/sim/sim.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"

#define EVENTS_MAX 3000000 /* of one schedule: more is a storm */
#define END_AT (900 * SEC) /* of one schedule: later is never */
#define LINE_BYTES 240
#define LINES_KEPT 60

struct sim *S;
static struct totals no_totals;
struct totals *totals = &no_totals;

/* --- chance ------------------------------------------------------------------------------------------------------- */

uint64_t chance_mix(uint64_t a, uint64_t b)
{
    return hash_mix(a + (b + 1) * HASH_STEP);
}

uint64_t draw(enum stream_of_chance s)
{
    return chance_mix(S->rng[s]++, 0);
}

int64_t between(enum stream_of_chance s, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(draw(s) % (uint64_t)(hi - lo + 1));
}

bool chance(enum stream_of_chance s, int percent)
{
    return draw(s) % 100 < (uint64_t)percent;
}

/* --- memory of one event ------------------------------------------------------------------------------------------ */

static char memory[SIM_EVENT_BYTES] __attribute__((aligned(16)));
static size_t memory_used;

static void *memory_alloc(void *data, size_t bytes)
{
    (void)data;
    bytes = (bytes + 15) & ~(size_t)15;
    if (SIM_EVENT_BYTES - memory_used < bytes)
        violated("sim", "one event needs more memory than the simulator keeps");
    void *p = memory + memory_used;
    memory_used += bytes;
    return p;
}

static void memory_free(void *data, void *p)
{
    (void)data;
    (void)p;
}

ProtobufCAllocator event_memory = {.alloc = memory_alloc, .free = memory_free};

/* --- bytes on their way ------------------------------------------------------------------------------------------- */

struct shared {
    uint32_t refs;
    _Alignas(16) char data[];
};

static struct shared *shared_of(void *bytes)
{
    return (struct shared *)((char *)bytes - offsetof(struct shared, data));
}

static void *bytes_room(size_t len)
{
    struct shared *s = malloc(sizeof(*s) + len + 1);
    titan_assert(s);
    s->refs = 1;
    return s->data;
}

void *bytes_new(const void *bytes, uint32_t len)
{
    return memcpy(bytes_room(len), bytes, len);
}

void *bytes_keep(void *bytes)
{
    shared_of(bytes)->refs++;
    return bytes;
}

void bytes_drop(void *bytes)
{
    if (bytes && --shared_of(bytes)->refs == 0)
        free(shared_of(bytes));
}

void *packed(const ProtobufCMessage *m, uint32_t *ret_len)
{
    size_t len = protobuf_c_message_get_packed_size(m);
    void *bytes = bytes_room(len);
    (void)protobuf_c_message_pack(m, bytes);
    *ret_len = (uint32_t)len;
    return bytes;
}

/* --- events ------------------------------------------------------------------------------------------------------- */

static bool before(const struct ev *a, const struct ev *b)
{
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static struct ev *push(const struct ev *e)
{
    VEC_MUST_RESERVE(S->heap, S->cap_heap, S->n_heap + 1);
    size_t i = S->n_heap++;
    for (; i > 0 && before(e, &S->heap[(i - 1) / 2]); i = (i - 1) / 2)
        S->heap[i] = S->heap[(i - 1) / 2];
    S->heap[i] = *e;
    return &S->heap[i];
}

struct ev *at(usec when, const struct handler *h, uint64_t a, uint64_t b)
{
    struct ev e = {.at = when > S->now ? when : S->now, .seq = S->seq++, .handler = h, .a = a, .b = b};
    return push(&e);
}

static struct ev pop(void)
{
    struct ev top = S->heap[0], last = S->heap[--S->n_heap];
    size_t i = 0;
    for (;;) {
        size_t kid = 2 * i + 1;
        if (kid >= S->n_heap)
            break;
        if (kid + 1 < S->n_heap && before(&S->heap[kid + 1], &S->heap[kid]))
            kid++;
        if (!before(&S->heap[kid], &last))
            break;
        S->heap[i] = S->heap[kid];
        i = kid;
    }
    if (S->n_heap)
        S->heap[i] = last;
    return top;
}

static bool stands_still(const struct ev *e)
{
    switch (e->handler->target) {
    case TARGET_COORD:
        return S->coord.stopped;
    case TARGET_AGENT:
        return S->hosts[e->a].stopped;
    case TARGET_WORKER:
        return S->procs[e->a].stopped;
    case TARGET_TRAINING:
        return S->procs[e->a].stopped || S->procs[e->a].hung;
    default:
        return false;
    }
}

static void wait_for_process(const struct ev *e)
{
    VEC_MUST_PUSH(S->waiting, S->n_waiting, S->cap_waiting, *e);
}

void cluster_continue(enum target target, uint64_t a)
{
    size_t kept = 0;
    for (size_t i = 0; i < S->n_waiting; i++) {
        struct ev e = S->waiting[i];
        bool its = e.handler->target == target || (target == TARGET_WORKER && e.handler->target == TARGET_TRAINING);
        if (!its || (target != TARGET_COORD && e.a != a)) {
            S->waiting[kept++] = e;
            continue;
        }
        e.at = S->now;
        e.seq = S->seq++;
        (void)push(&e);
    }
    S->n_waiting = kept;
}

/* --- what happened ------------------------------------------------------------------------------------------------ */

static void trace_add(uint64_t *hash, uint64_t x)
{
    *hash = hash_word(*hash, x);
    *hash ^= *hash >> 29;
}

static void trace_word(uint64_t x)
{
    trace_add(&S->hash, x);
}

static void trace_text(uint64_t *hash, const char *text)
{
    for (const char *c = text ? text : ""; *c; c++)
        trace_add(hash, (uint64_t)*c);
    trace_add(hash, 0);
}

void hash_stored(const struct change *c)
{
    uint64_t *hash = &S->hash_stored;
    trace_add(hash, (uint64_t)c->kind);
    trace_add(hash, c->event.job_id);
    trace_add(hash, c->event.epoch);
    trace_add(hash, c->event.step);
    if (c->has_event) {
        trace_text(hash, c->event.type);
        trace_text(hash, c->event.node);
        trace_text(hash, c->event.message);
        trace_text(hash, c->event.detail);
    }
}

static void hash_event(const struct ev *e)
{
    trace_word((uint64_t)e->at);
    trace_word(e->a);
    trace_word(e->b);
    for (const char *c = e->handler->name; *c; c++)
        trace_word((uint64_t)*c);
    const char *bytes = e->bytes;
    for (uint32_t i = 0; i < e->len && !S->plan->scale; i += 8) {
        uint64_t x = 0;
        memcpy(&x, bytes + i, MIN(e->len - i, 8u));
        trace_word(x);
    }
}

void trace_line(const char *fmt, ...)
{
    char line[LINE_BYTES];
    va_list ap;
    int n = snprintf(line, sizeof(line), "%9lld.%03lld ", (long long)(S->now / MS), (long long)(S->now % MS));
    va_start(ap, fmt);
    (void)vsnprintf(line + n, sizeof(line) - (size_t)n, fmt, ap);
    va_end(ap);
    if (S->trace == TRACE_PRINT)
        printf("# %s\n", line);
    else
        memcpy(S->lines + S->n_lines++ % LINES_KEPT * LINE_BYTES, line, sizeof(line));
}

void violated(const char *invariant, const char *fmt, ...)
{
    struct outcome *o = S->outcome;
    va_list ap;
    o->violated = true;
    (void)snprintf(o->invariant, sizeof(o->invariant), "%s", invariant);
    va_start(ap, fmt);
    (void)vsnprintf(o->text, sizeof(o->text), fmt, ap);
    va_end(ap);
    TRACE("%s is violated: %s", invariant, o->text);
    longjmp(S->out, 1);
}

static char *last_lines(void)
{
    if (S->trace != TRACE_KEEP)
        return NULL;
    char *text = malloc(LINES_KEPT * (LINE_BYTES + 1) + 1), *to = text;
    titan_assert(text);
    size_t first = S->n_lines > LINES_KEPT ? S->n_lines - LINES_KEPT : 0;
    *to = '\0';
    for (size_t i = first; i < S->n_lines; i++)
        to += sprintf(to, "%s\n", S->lines + i % LINES_KEPT * LINE_BYTES);
    return text;
}

/* --- a run -------------------------------------------------------------------------------------------------------- */

static void on_submit(const struct ev *e)
{
    coord_request((int)e->a);
}
static const struct handler submit = {"submit", on_submit, TARGET_WORLD};

static void on_power(const struct ev *e)
{
    struct host *h = &S->hosts[e->a];
    h->up = h->alive = true;
    agent_begin((int)e->a);
}
static const struct handler power = {"power", on_power, TARGET_WORLD};

static void begin(void)
{
    const struct plan *p = S->plan;
    S->next_session = 1;
    for (int h = 0; h < p->nodes; h++) {
        (void)snprintf(S->hosts[h].name, sizeof(S->hosts[h].name), "n%d", h);
        S->hosts[h].clocks = (struct clocks){p->mono_offset_ms[h], p->wall_offset_ms[h], p->drift_ppm[h]};
        (void)at(between(CHANCE_HOST, 0, 200 * MS), &power, (uint64_t)h, 0);
    }
    S->coord_clocks =
        (struct clocks){p->mono_offset_ms[SIM_COORD], p->wall_offset_ms[SIM_COORD], p->drift_ppm[SIM_COORD]};
    store_begin(p->store);
    coord_start();
    for (int id = 1; id <= p->jobs; id++)
        (void)at(p->submit_at[id], &submit, (uint64_t)id, 0);
    faults_begin();
}

static void run_event(void)
{
    struct ev e = pop();
    S->now = e.at;
    if (stands_still(&e)) {
        wait_for_process(&e);
        return;
    }
    S->events++;
    memory_used = 0;
    hash_event(&e);
    e.handler->run(&e);
    bytes_drop(e.bytes);
}

static void run_events(void)
{
    while (S->n_heap && !(S->now > S->plan->quiet_at && must_be_over())) {
        if (S->heap[0].at > END_AT || S->events > EVENTS_MAX) {
            must_at_end();
            violated("I9", "it does not end: %llu events, %lld s", LL(S->events), (long long)(S->now / SEC));
        }
        run_event();
    }
    must_at_end();
}

static void end(void)
{
    for (int h = 0; h < SIM_NODES; h++) {
        agent_end(h);
        for (int id = 0; id <= SIM_JOBS; id++)
            bytes_drop(S->hosts[h].records[id].bytes);
        free(S->hosts[h].procs);
    }
    for (uint64_t i = 1; i <= S->last_proc; i++) {
        if (S->procs[i].member) {
            const struct member_counters *k = &member_state(S->procs[i].member)->counters;
            totals->fenced_commands += k->fenced + k->stale + k->conflicts + k->nonsense;
            totals->duplicates += k->duplicates;
        }
        member_close(S->procs[i].member);
    }
    coord_kill(-1, false);
    store_end();
    net_reset();
    for (size_t i = 0; i < S->n_heap; i++)
        bytes_drop(S->heap[i].bytes);
    for (size_t i = 0; i < S->n_waiting; i++)
        bytes_drop(S->waiting[i].bytes);
}

static struct sim *reset(void)
{
    static struct sim *the;
    struct ev *heap = the ? the->heap : NULL, *waiting = the ? the->waiting : NULL;
    size_t cap_heap = the ? the->cap_heap : 0, cap_waiting = the ? the->cap_waiting : 0;
    char *lines = the ? the->lines : calloc(LINES_KEPT, LINE_BYTES);
    if (the)
        memset(the, 0, sizeof(*the));
    else
        the = calloc(1, sizeof(*the)); /* most of a large one is never touched */
    titan_assert(the && lines);
    the->heap = heap;
    the->cap_heap = cap_heap;
    the->waiting = waiting;
    the->cap_waiting = cap_waiting;
    the->lines = lines;
    return the;
}

void cluster_open(const struct plan *p, enum trace_mode trace, struct outcome *ret)
{
    S = reset();
    *ret = (struct outcome){0};
    S->plan = p;
    S->trace = trace;
    S->outcome = ret;
    for (int s = 0; s < CHANCE_STREAMS; s++)
        S->rng[s] = chance_mix(p->seed, (uint64_t)s + 100);
    if (setjmp(S->out) == 0)
        begin();
}

bool cluster_advance(usec until)
{
    if (S->outcome->violated || setjmp(S->out) != 0)
        return false;
    while (S->n_heap && S->heap[0].at <= until)
        run_event();
    S->now = until;
    return true;
}

void cluster_close(void)
{
    struct outcome *o = S->outcome;
    o->when = S->now;
    o->hash = S->hash;
    o->hash_stored = S->hash_stored;
    o->events = S->events;
    o->last_lines = last_lines();
    totals->events += S->events;
    end();
}

void cluster_run(const struct plan *p, enum trace_mode trace, struct outcome *ret)
{
    cluster_open(p, trace, ret);
    if (!ret->violated && setjmp(S->out) == 0)
        run_events();
    cluster_close();
}
