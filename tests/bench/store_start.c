/* SPDX-License-Identifier: Apache-2.0 */
/* store_start.c - how long a coordinator needs from an unclean stop to being ready, with many jobs in its store.
 *
 *   store_start DIR JOBS OPEN
 *
 * Makes a store with JOBS jobs in DIR (emptied), the newest OPEN of them waiting, the others completed, each with a
 * recipe as submit keeps it and its events; leaves it as a kill does; opens a coordinator over it. Prints one JSON
 * object. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "daemon/api/methods.h"
#include "state/group.h"
#include "state/job.h"
#include "state/schema.h"

static void die(const struct titan_error *err)
{
    (void)fprintf(stderr, "store_start: %s\n", err->msg);
    exit(1);
}

static titan_status write_job(struct db *db, uint64_t id, bool ends, const char *recipe, struct titan_error *err)
{
    struct job job = {.id = id, .name = "load", .user = "bench", .submitted_at_ms = 1, .status.loss = 1};
    struct event e = {.job_id = id, .at_ms = 2, .type = "job.state", .message = "pending -> forming", .rank = -1};
    uint64_t existing = 0;
    strcpy(job.spec.device, "cpu");
    job.spec.steps = 100;
    job.spec.min_workers = job.spec.max_workers = 1;
    world_set_add(&job.spec.worlds, 1);
    TRY(job_submit(db, &job, recipe, &existing, err));
    if (!ends)
        return TITAN_OK;
    TRY(job_move(db, &(struct job){.id = id, .state = JOB_FORMING, .status = job.status}, &e, err));
    TRY(job_move(db, &(struct job){.id = id, .state = JOB_RUNNING, .status = job.status}, &e, err));
    return job_move(db, &(struct job){.id = id, .state = JOB_COMPLETED, .status = job.status}, &e, err);
}

static void fill(const char *path, uint64_t jobs, uint64_t open, struct titan_error *err)
{
    static char recipe[2600]; /* a resolved recipe has about as many bytes */
    struct db *db = NULL;
    memset(recipe, 'r', sizeof(recipe) - 1);
    if (db_open(path, DB_WRITER, false, &db, err) != TITAN_OK || schema_migrate(&schema_store, db, err) != TITAN_OK)
        die(err);
    for (uint64_t id = 1; id <= jobs;) {
        if (db_exec(db, "BEGIN", err) != TITAN_OK)
            die(err);
        for (int i = 0; i < 1000 && id <= jobs; i++, id++)
            if (write_job(db, id, id + open <= jobs, recipe, err) != TITAN_OK)
                die(err);
        if (db_exec(db, "COMMIT", err) != TITAN_OK)
            die(err);
        group_checkpoint(db);
    }
    if (db_exec(db, "INSERT INTO meta VALUES ('term', 1); UPDATE machine SET clean = 0", err) != TITAN_OK)
        die(err);
    db_close(db);
}

int main(int argc, char **argv)
{
    struct titan_error err = {0};
    char path[4096];
    if (argc != 4) {
        (void)fprintf(stderr, "usage: store_start DIR JOBS OPEN\n");
        return 2;
    }
    uint64_t jobs = strtoull(argv[2], NULL, 10), open = strtoull(argv[3], NULL, 10);
    (void)snprintf(path, sizeof(path), "%s/titan.db", argv[1]);
    if (dir_remove(argv[1], NULL) != TITAN_OK || dir_make(argv[1], &err) != TITAN_OK)
        die(&err);
    fill(path, jobs, open, &err);
    uv_loop_t loop;
    struct coordinator *c = NULL;
    (void)uv_loop_init(&loop);
    int64_t begin = clock_mono_ns();
    if (coordinator_open(&loop, &(struct coordinator_options){.observer = &api_observer, .state_dir = argv[1]}, &c,
                         &err) != TITAN_OK)
        die(&err);
    int64_t ready = clock_mono_ns();
    (void)printf("{\"jobs\": %llu, \"waiting\": %llu, \"open_ms\": %.1f}\n", (unsigned long long)jobs,
                 (unsigned long long)open, (double)(ready - begin) / 1e6);
    coordinator_close(c, NULL, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    return 0;
}
