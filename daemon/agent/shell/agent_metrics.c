/* SPDX-License-Identifier: Apache-2.0 */
/* agent_metrics.c - the agent's metrics, for Prometheus. */
#include "daemon/agent/shell/agent_internal.h"

#include <inttypes.h>
#include <stdio.h>

#include "daemon/common/exposition.h"

/* The labels of a worker. */
struct worker_ids {
    char job[24], worker[24], slot[16];
};

static struct worker_ids ids_of(const struct worker *w)
{
    struct worker_ids ids;
    (void)snprintf(ids.job, sizeof(ids.job), "%" PRIu64, w->job_id);
    (void)snprintf(ids.worker, sizeof(ids.worker), "%" PRIu64, w->id);
    (void)snprintf(ids.slot, sizeof(ids.slot), "%u", w->slot);
    return ids;
}

static void put_workers(const struct agent *a, struct exposition *e)
{
    uint64_t rss, cpu_ms;
    for (const struct worker *w = workers_first(a->workers); w; w = w->next) {
        const struct worker_ids ids = ids_of(w);
        if (!w->reported && worker_process_state(w->stat_fd, &rss, &cpu_ms))
            PUT(e, titan_worker_resident_bytes, (double)rss, ids.job, ids.worker, ids.slot);
    }
    for (const struct worker *w = workers_first(a->workers); w; w = w->next) {
        const struct worker_ids ids = ids_of(w);
        if (!w->reported && worker_process_state(w->stat_fd, &rss, &cpu_ms))
            PUT(e, titan_worker_cpu_seconds_total, (double)cpu_ms / 1000, ids.job, ids.worker, ids.slot);
    }
    for (const struct worker *w = workers_first(a->workers); w; w = w->next) {
        const struct worker_ids ids = ids_of(w);
        if (!w->reported && w->page)
            PUT(e, titan_worker_step, (double)atomic_load(&w->page->step), ids.job, ids.worker, ids.slot);
    }
}

static void put_gpus(const struct agent *a, struct exposition *e)
{
    for (int metric = 0; metric < 3; metric++)
        for (uint32_t i = 0; i < a->settings.slots; i++) {
            struct gpu_state gpu;
            char slot[16];
            if (!gpu_watch_get(a->gpus, i, &gpu))
                return;
            (void)snprintf(slot, sizeof(slot), "%u", i);
            if (metric == 0)
                PUT(e, titan_gpu_out_of_use, gpu.health == GPU_OUT, slot, gpu.uuid);
            else if (metric == 1 && gpu.ecc)
                PUT(e, titan_gpu_ecc_errors_total, (double)gpu.ecc_errors, slot, gpu.uuid);
            else if (metric == 2)
                PUT(e, titan_gpu_xid, gpu.xid, slot, gpu.uuid);
        }
}

void agent_scrape(const struct agent *a, struct exposition *e)
{
    const struct agent_counters *n = agent_core_counters(a->core);
    PUT(e, titan_agent_coordinator_connected, agent_core_registered(a->core));
    PUT(e, titan_agent_term, (double)agent_core_term(a->core));
    PUT(e, titan_agent_slots, a->settings.slots);
    PUT(e, titan_agent_workers, workers_count(a->workers));
    PUT(e, titan_agent_worker_starts_total, (double)a->counts.starts);
    PUT(e, titan_agent_worker_start_failures_total, (double)a->counts.start_failures);
    PUT(e, titan_agent_worker_ends_total, (double)a->counts.clean, "clean");
    PUT(e, titan_agent_worker_ends_total, (double)a->counts.failed, "failed");
    PUT(e, titan_agent_worker_ends_total, (double)a->counts.signalled, "signal");
    PUT(e, titan_agent_worker_ends_total, (double)a->counts.out_of_memory, "memory");
    PUT(e, titan_agent_hangs_total, (double)n->stalls);
    PUT(e, titan_agent_refused_total, (double)n->fenced_terms, "old_term");
    PUT(e, titan_agent_refused_total, (double)n->fenced_epochs, "old_epoch");
    PUT(e, titan_agent_refused_total, (double)n->refused, "other_epoch");
    PUT(e, titan_agent_refused_total, (double)n->forged, "forged");
    PUT(e, titan_agent_refused_total, (double)n->out_of_range, "out_of_range");
    PUT(e, titan_agent_refused_total, (double)n->unproved, "unproved");
    put_workers(a, e);
    put_gpus(a, e);
}
