/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.jsonl as a job's folder may hold it: read back into the store's metrics, and opened again by the job's next
 * worker, which goes on behind what is there. */
#include "tests/fuzz/common.h"

#include "state/metric.h"
#include "state/schema.h"
#include "worker/metrics/metrics.h"

static struct db *db;

static bool each(const struct metric *m, void *data)
{
    uint64_t *last = data;
    fuzz_assert(m->step > *last);
    *last = m->step;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[160];
    struct titan_error err = {0};
    struct metrics m = {.fd = -1};
    struct metric newest;
    uint64_t last = 0;
    (void)snprintf(path, sizeof(path), "%s/metrics.jsonl", fuzz_folder());
    fuzz_file(path, data, size);
    if (!db) {
        fuzz_assert(db_open(":memory:", DB_WRITER, false, &db, &err) == TITAN_OK);
        fuzz_assert(schema_migrate(&schema_metrics, db, &err) == TITAN_OK);
    }
    fuzz_assert(db_exec(db, "SAVEPOINT input", &err) == TITAN_OK);
    const struct buf text = {.data = (char *)(uintptr_t)data, .len = size};
    titan_status status = metric_backfill(db, 1, &text, &newest, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    err = (struct titan_error){0};
    fuzz_assert(metric_list(db, &(struct metric_filter){1, 0, 1 << 20}, each, &last, &err) == TITAN_OK);
    fuzz_assert(db_exec(db, "ROLLBACK TO input; RELEASE input", &err) == TITAN_OK);
    metrics_open(&m, fuzz_folder(), 0, 1, 10);
    metrics_close(&m);
    return 0;
}
