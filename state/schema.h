/* SPDX-License-Identifier: Apache-2.0 */
/* schema.h - the tables of the job store, and migrations from older stores.
 *
 * titan.db has the data that must survive; metrics.db (a second file, cheaper durability) has one row per training step
 * and per evaluation. Each file has its kind (application_id) and its version (user_version). A file of a newer Titan
 * is refused and stays unchanged; an older file is migrated step by step, each step in one transaction. */
#ifndef TITAN_STATE_SCHEMA_H
#define TITAN_STATE_SCHEMA_H

#include "state/db.h"

#define SCHEMA_VERSION 10        /* version of the job store */
#define SCHEMA_CHAINED 3         /* version since which events form a chain */
#define SCHEMA_FACTS 8           /* version since which rows can be compared with events' facts */
#define SCHEMA_MACHINE 10        /* version since which table `machine` has what belongs to one machine */
#define SCHEMA_METRICS_VERSION 6 /* version of the metrics */

struct schema {
    const char *what;
    int application_id, version;
    const char *const *migrations; /* migrations[v] brings version v to v+1 */
    /* Work that SQL cannot do, after migrations[v] in the same transaction; NULL = none. */
    titan_status (*after)(struct db *db, int v, struct titan_error *err);
};
extern const struct schema schema_store, schema_metrics;

/* May Titan open this file? A missing or empty file is allowed. TITAN_EVERSION: the file is of a newer Titan;
 * TITAN_ECORRUPT: it is damaged or not Titan's. Nothing is written. *ret_unclean (may be NULL): the last owner did not
 * close it. */
titan_status schema_probe(const struct schema *schema, const char *path, bool *ret_unclean,
                          struct titan_error *err) TITAN_MUST_USE;
/* Creates or migrates; the connection is the file's writer. */
titan_status schema_migrate(const struct schema *schema, struct db *db, struct titan_error *err) TITAN_MUST_USE;
/* Does the file have exactly the schema of the migrations up to its version? TITAN_ECORRUPT names an extra, missing or
 * different trigger, view, index or table, because its effect on writes is unknown. */
titan_status schema_compare(const struct schema *schema, struct db *db, struct titan_error *err) TITAN_MUST_USE;
/* PRAGMA quick_check: TITAN_ECORRUPT with its first finding. bounded: skips the big tables of a large file (recipes,
 * events, metrics), so that a start does not wait until all are read. */
titan_status schema_check(struct db *db, bool bounded, struct titan_error *err) TITAN_MUST_USE;

#endif
