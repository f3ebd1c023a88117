/* SPDX-License-Identifier: Apache-2.0 */
#include "base/progress.h"

#include <stddef.h>

#include "base/clock.h"
#include "base/error.h"

static _Atomic uint64_t own_actions, own_busy_ns;
static _Atomic uint32_t own_waiting;

static _Atomic(_Atomic uint64_t *) actions = &own_actions;
static _Atomic(_Atomic uint32_t *) waiting = &own_waiting;
static _Atomic(_Atomic uint64_t *) busy_ns = &own_busy_ns;

static atomic_int working; /* working threads */
static _Atomic int64_t idle_since, idle_ns;
static _Thread_local int works, waits; /* nesting depths */

/* Publishes `working`. Each thread reads `working` again after the write, so the last change to or from 0 is written
 * last. */
static void publish(void)
{
    int seen;
    do {
        seen = atomic_load(&working);
        atomic_store(atomic_load(&waiting), seen == 0);
    } while ((atomic_load(&working) == 0) != (seen == 0));
}

void progress_attach(const struct progress_counters *counters)
{
    atomic_store(&actions, counters ? counters->actions : &own_actions);
    atomic_store(&waiting, counters ? counters->waiting : &own_waiting);
    atomic_store(&busy_ns, counters ? counters->busy_ns : &own_busy_ns);
    publish();
}

void progress_action(void)
{
    (void)atomic_fetch_add_explicit(atomic_load_explicit(&actions, memory_order_relaxed), 1, memory_order_relaxed);
}

uint64_t progress_actions(void)
{
    return atomic_load(atomic_load(&actions));
}

static void resume(void)
{
    if (atomic_fetch_add(&working, 1) > 0)
        return;
    /* since 0: the thread that stopped has not stored the time yet. */
    const int64_t since = atomic_exchange(&idle_since, 0);
    if (since)
        (void)atomic_fetch_add(&idle_ns, clock_mono_ns() - since);
    publish();
}

static void cease(void)
{
    if (atomic_fetch_sub(&working, 1) > 1)
        return;
    atomic_store(&idle_since, clock_mono_ns());
    publish();
}

void progress_work_begin(void)
{
    titan_debug_assert(waits == 0);
    if (works++ == 0)
        resume();
}

void progress_work_end(void)
{
    titan_debug_assert(works > 0 && waits == 0);
    if (--works == 0)
        cease();
}

void progress_wait_begin(void)
{
    if (works > 0 && waits++ == 0)
        cease();
}

void progress_wait_end(void)
{
    if (works > 0 && --waits == 0)
        resume();
}

int64_t progress_idle_ns(void)
{
    return atomic_load(&idle_ns);
}

void progress_busy(int64_t ns)
{
    if (ns > 0)
        (void)atomic_fetch_add_explicit(atomic_load(&busy_ns), (uint64_t)ns, memory_order_relaxed);
}
