/* SPDX-License-Identifier: Apache-2.0 */
/* hang_detector.c - see hang_detector.h. */
#include "daemon/agent/core/hang_detector.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "titan/internal/worker.pb-c.h"

#define TAIL_FADE 8192 /* total at which all counts are halved */
#define AGAIN_MS 1000
#define STOPPED_SAMPLES 2

void tail_add(struct tail *t, uint64_t ms)
{
    titan_assert(t->total <= TAIL_FADE);
    if (t->total >= TAIL_FADE) {
        t->total = 0;
        for (unsigned i = 0; i < TAIL_BUCKETS; i++) {
            t->counts[i] = (t->counts[i] + 1) / 2; /* rounded up, so that a single value stays for a while */
            t->total += t->counts[i];
        }
    }
    /* A power of two has four buckets. Below eight each millisecond has its own bucket. */
    unsigned i = (unsigned)MIN(ms, UINT64_C(3));
    if (ms >= 4) {
        const unsigned top = 63 - (unsigned)__builtin_clzll(ms);
        i = MIN(4 * (top - 1) + (unsigned)(ms >> (top - 2) & 3), TAIL_BUCKETS - 1u);
    }
    t->counts[i]++;
    t->total++;
}

uint64_t tail_p999(const struct tail *t)
{
    if (t->total < TAIL_TRUSTED)
        return 0;
    titan_assert(t->total <= TAIL_FADE);
    uint64_t beyond = t->total / 1000, above = 0;
    unsigned i = TAIL_BUCKETS - 1;
    for (; i > 0; i--) {
        above += t->counts[i];
        if (above > beyond)
            break;
    }
    titan_assert(t->counts[i] > 0);
    const unsigned top = i / 4 + 1; /* the bucket ends within [2^top, 2^(top+1)) */
    return i < 4 ? i : (UINT64_C(1) << top) + ((uint64_t)(i % 4 + 1) << (top - 2)) - 1;
}

uint64_t watch_patience(const struct watch *w, const struct watch_limits *limits)
{
    uint64_t p999 = tail_p999(&w->steps);
    if (w->steps.total < TAIL_TRUSTED)
        return MAX(limits->floor_ms, limits->unknown_ms);
    return MAX((uint64_t)limits->floor_ms, p999 + p999 / 2);
}

bool watch_hangs(const struct watch *w)
{
    return w->reported;
}

enum watch_verdict watch_sample(struct watch *w, const struct agent_sample *s, const struct watch_limits *limits,
                                int64_t now, uint32_t *ret_ms)
{
    bool fresh = !w->seen || s->epoch != w->epoch;
    bool moved = fresh || s->actions != w->actions || s->step != w->step;
    int64_t gap = w->seen ? MIN(now - w->seen_at, WATCH_GAP_MS) : 0;

    /* lost: of the time since the last sample, the part in which the worker was runnable without a processor. */
    const uint64_t ran = s->cpu_ms >= w->cpu_ms ? s->cpu_ms - w->cpu_ms : 0;
    w->cpu_ms = s->cpu_ms;
    w->ran_ms = MIN(w->ran_ms + ran, (uint64_t)WATCH_GAP_MS); /* ticks are coarser than samples */
    const int64_t had = s->runnable ? MIN(gap, (int64_t)w->ran_ms) : gap;
    w->ran_ms -= s->runnable ? (uint64_t)had : 0;
    const int64_t lost = gap - had;
    titan_assert(lost >= 0 && lost <= gap);
    if (w->seen) {
        w->still_since += now - w->seen_at - gap + lost;
        w->moved_at += lost;
    }
    if (!fresh && s->waiting == 0)
        w->own_ms += (uint64_t)(gap - lost);
    if (fresh) {
        w->first = true;
        w->own_ms = 0;
    } else if (s->step > w->step) {
        uint64_t steps = s->step - w->step; /* since the last sample */
        if (!w->first && !w->reported)
            for (uint64_t i = 0; i < MIN(steps, (uint64_t)64); i++)
                tail_add(&w->steps, w->own_ms / steps);
        w->first = false;
        w->own_ms = 0;
    }
    if (moved)
        w->moved_at = now;
    const bool works = s->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_FORMING ||
                       s->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING;
    if (moved || s->waiting > 0 || !works) {
        w->still_since = now;
        if (w->reported && s->process_state != 'T' && s->process_state != 't') {
            w->reported = false;
            w->own_ms = 0;
        }
    }
    w->seen = true;
    w->actions = s->actions;
    w->step = s->step;
    w->epoch = s->epoch;
    w->seen_at = now;

    bool is_stopped = s->process_state == 'T' || s->process_state == 't';
    w->stopped = is_stopped ? w->stopped + 1 : 0;
    /* A first step includes set-up, so its time is unknown. */
    uint64_t patience = s->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING && !w->first
                            ? watch_patience(w, limits)
                            : MAX(watch_patience(w, limits), (uint64_t)limits->unknown_ms);
    int64_t still = now - w->still_since;
    bool hangs = (uint64_t)still > patience;
    enum watch_verdict verdict = w->stopped >= STOPPED_SAMPLES ? WATCH_STOPPED : hangs ? WATCH_HANGS : WATCH_WELL;
    if (verdict == WATCH_WELL || (w->reported && now - w->reported_at < AGAIN_MS))
        return WATCH_WELL;
    w->reported = true;
    w->reported_at = now;
    *ret_ms = (uint32_t)MIN(verdict == WATCH_STOPPED ? now - w->moved_at : still, (int64_t)UINT32_MAX);
    return verdict;
}
