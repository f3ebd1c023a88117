/* SPDX-License-Identifier: Apache-2.0 */
#include "state/job_removal.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "state/facts.h"
#include "state/job.h"

static void with_state(const struct job *job, void *data)
{
    titan_assert(job->state != JOB_NONE);
    *(enum job_state *)data = job->state;
}

titan_status job_remove(struct db *db, uint64_t id, const char *directory, const struct event *event,
                        struct titan_error *err)
{
    enum job_state state = JOB_NONE;
    int64_t user = 0;
    titan_assert(event && event->job_id == id && event->at_ms > 0);
    TRY(job_get(db, id, with_state, &state, err));
    if (!sm_final(&job_sm, (int)state)) {
        titan_fail(err, TITAN_ECONFLICT, "job %llu is %s", (unsigned long long)id, sm_name(&job_sm, (int)state));
        titan_error_hint(err, "titanctl cancel stops it");
        return TITAN_ECONFLICT;
    }

    /* Finds the first other job that needs files below the directory: its own checkpoints, or the checkpoint from which
     * it begins. */
    char below[PATH_MAX + 2];
    titan_assert(directory[0] == '/');
    (void)snprintf(below, sizeof(below), "%s/", directory);
    TRY(db_int(db, &user, err,
               "SELECT id FROM jobs WHERE id <> ?1 AND removed_at_ms = 0 AND substr(folder, 1, length(?2)) = ?2"
               " ORDER BY id LIMIT 1",
               "ut", id, below));
    if (!user)
        TRY(db_int(db, &user, err,
                   "SELECT jobs.id FROM jobs JOIN recipes ON job_id = jobs.id WHERE " JOB_IS_OPEN
                   " AND jobs.id <> ?1 AND instr(text, ?2) > 0 ORDER BY jobs.id LIMIT 1",
                   "ut", id, below));
    if (user)
        return titan_fail(err, TITAN_ECONFLICT, "job %lld uses checkpoints of job %llu", (long long)user,
                          (unsigned long long)id);
    TRY(db_run(db, err, "UPDATE jobs SET removed_at_ms = ? WHERE id = ?", "iu", event->at_ms, id));
    TRY(db_run(db, err, "DELETE FROM recipes WHERE job_id = ?", "u", id));
    TRY(db_run(db, err, "DELETE FROM job_keys WHERE job_id = ?", "u", id));
    TRY(db_run(db, err, "DELETE FROM losses WHERE job_id = ?", "u", id));
    struct event e = *event;
    char key[24];
    _cleanup_(facts_free) struct facts facts = {.text = BUF_INIT};
    (void)snprintf(key, sizeof(key), "%llu", (unsigned long long)id);
    facts_begin(&facts, "job", key);
    facts_number(&facts, "removed_at_ms", event->at_ms);
    TRY(facts_end(&facts, &e.facts, err));
    return event_add(db, &e, err);
}

titan_status job_remove_metrics(struct db *db, uint64_t id, struct titan_error *err)
{
    titan_assert(id > 0);
    TRY(db_run(db, err, "DELETE FROM metrics WHERE job_id = ?", "u", id));
    return db_run(db, err, "DELETE FROM evaluations WHERE job_id = ?", "u", id);
}
