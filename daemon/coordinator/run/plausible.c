/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/plausible.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/run/kept_epochs.h"
#include "daemon/common/epochs.h"

#define STEPS_PER_MS 50    /* upper bound: no step is shorter */
#define STEPS_AT_ONCE 1000 /* tolerance for clocks and for a first step under way */

bool plausible_step(const struct jobrec *j, uint64_t step)
{
    return step <= MAX(j->spec.steps, MAX(j->status.step, j->source.resume_step)) || MUTANT(STEP_UNBOUNDED);
}

bool plausible_reached(const struct core *c, const struct jobrec *j, uint64_t step)
{
    const uint64_t from = MAX(j->source.resume_step, j->source.origin_known ? j->source.origin.step : 0);
    if (!plausible_step(j, step))
        return false;
    if (!j->clock.formed_mono || step <= from || MUTANT(STEP_UNBOUNDED))
        return true;
    const uint64_t ms = (uint64_t)MAX(c->now.mono_ms - j->clock.formed_mono, 0);
    return step - from <= STEPS_AT_ONCE + STEPS_PER_MS * ms;
}

bool plausible_epoch(const struct core *c, const struct jobrec *j, uint64_t epoch)
{
    uint64_t known = MAX(j->status.epoch, core_first_epoch(c));
    return epoch <= known || epoch - known <= EPOCH_STEP_MAX || MUTANT(EPOCH_UNBOUNDED);
}

bool plausible_part(const struct jobrec *j, const struct noderec *n)
{
    return job_on_node(j, n) || kept_any_on(j, n) || MUTANT(PART_UNCHECKED);
}

static bool lists(const struct jobrec *j, const struct noderec *n, Titan__Internal__Member **list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct workrec *w = job_worker(j, list[i]->worker_id);
        const struct noderec *where = w ? w->node : kept_node(j, list[i]->worker_id);
        if (where ? where == n : strcmp(list[i]->node, n->name) == 0)
            return true;
    }
    return false;
}

bool plausible_member(const struct jobrec *j, const struct noderec *n, const Titan__Internal__FormEpoch *f)
{
    return lists(j, n, f->members, f->n_members) || lists(j, n, f->departing, f->n_departing) || MUTANT(PART_UNCHECKED);
}

bool core_wants_folder(const struct core *c, uint64_t job_id)
{
    const struct jobrec *j = core_find_job(c, job_id);
    return j && !j->folder;
}

void core_set_folder(struct core *c, uint64_t job_id, const char *folder)
{
    struct jobrec *j = core_find_job(c, job_id);
    if (j)
        core_set_string(&j->folder, folder);
}

bool plausible_path(const struct jobrec *j, uint64_t step, const char *path)
{
    size_t len = j->folder ? strlen(j->folder) : 0;
    uint64_t named = 0;
    int end = 0;
    if (!j->folder || MUTANT(PATH_UNCHECKED))
        return true;
    while (len > 1 && j->folder[len - 1] == '/')
        len--;
    const char *name = strncmp(path, j->folder, len) == 0 && path[len] == '/' ? strrchr(path, '/') : NULL;
    return name && !strstr(path + len, "/../") && sscanf(name, "/step-%20" SCNu64 "%n", &named, &end) == 1 && end > 0 &&
           !name[end] && (step == UINT64_MAX || named == step);
}
