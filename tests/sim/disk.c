/* What the coordinator stores on: always the image, for some schedules also a real store. */
#include "tests/sim/sim.h"

#include <string.h>

#include "base/error.h"
#include "daemon/coordinator/restore.h"
#include "state/replay.h"
#include "state/schema.h"

void disk_open(bool store)
{
    struct titan_error err = {0};
    if (!store)
        return;
    titan_assert(db_open(":memory:", DB_WRITER, false, &S->disk.db, &err) == TITAN_OK);
    titan_assert(schema_migrate(&schema_store, S->disk.db, &err) == TITAN_OK);
}

void disk_close(void)
{
    db_close(S->disk.db);
    S->disk.db = NULL;
}

usec disk_commit_takes(void)
{
    if (S->now < S->disk.slow_until)
        return between(CHANCE_DISK, 50 * MS, 400 * MS);
    return chance(CHANCE_DISK, 5) ? between(CHANCE_DISK, 5 * MS, 100 * MS) : between(CHANCE_DISK, 100, 2 * MS);
}

bool disk_accepts(void)
{
    return S->now >= S->disk.full_until && S->now >= S->disk.error_until;
}

static void store_submit(const struct job *job)
{
    uint64_t existing = 0;
    struct titan_error err = {0};
    CHECK("I5", job_submit(S->disk.db, job, "recipe", &existing, &err) == TITAN_OK, "store: %s", err.msg);
}

void disk_apply(int submit, const struct change *list)
{
    if (submit) {
        image_submit(submit);
        if (S->disk.db)
            store_submit(&S->image.jobs[submit].job);
    }
    for (const struct change *c = list; c; c = c->next)
        image_apply(c);
    if (!S->disk.db || !list)
        return;
    struct titan_error err = {0};
    titan_assert(db_exec(S->disk.db, "BEGIN", &err) == TITAN_OK);
    CHECK("I6", change_apply(S->disk.db, list, &err) == TITAN_OK, "store: %s", err.msg);
    titan_assert(db_exec(S->disk.db, "COMMIT", &err) == TITAN_OK);
}

void disk_restore(struct core *core, struct core_time now)
{
    struct titan_error err = {0};
    if (!S->disk.db) {
        image_restore(core, now);
        return;
    }
    CHECK("I5", event_verify(S->disk.db, 0, NULL, &err) == TITAN_OK, "store: %s", err.msg);
    CHECK("I6", replay_check(S->disk.db, NULL, NULL, NULL, &err) == TITAN_OK, "store: %s", err.msg);
    CHECK("I5", core_restore(core, S->disk.db, now, &err) == TITAN_OK, "restore: %s", err.msg);
}
