/* SPDX-License-Identifier: Apache-2.0 */
/* schema.h - the tables of the job store, and how an older store becomes a newer one.
 *
 * titan.db holds what must survive; metrics.db (a second file, cheaper durability) holds one row per training step, and
 * per evaluation. Each file says which store it is (application_id) and how new (user_version). A file of a newer Titan
 * is refused and left alone; an older one is migrated step by step, each step in one transaction. */
#ifndef TITAN_STATE_SCHEMA_H
#define TITAN_STATE_SCHEMA_H

#include "state/db.h"

#define SCHEMA_VERSION 9         /* of the job store */
#define SCHEMA_CHAINED 3         /* ... since which its events are a chain */
#define SCHEMA_FACTS 8           /* ... since which rows can be compared with the facts of events */
#define SCHEMA_METRICS_VERSION 6 /* of the metrics */

struct schema {
    const char *what;
    int application_id, version;
    const char *const *migrations; /* migrations[v] brings version v to v+1 */
    /* What SQL cannot do, after migrations[v] and in its transaction; NULL = nothing. */
    titan_status (*after)(struct db *db, int v, struct titan_error *err);
};
extern const struct schema schema_store, schema_metrics;

/* May this file be opened by us? A file that does not exist or is empty may. TITAN_EVERSION: of a newer Titan;
 * TITAN_ECORRUPT: damaged or not ours. Nothing is written either way. *ret_unclean (may be NULL): the last owner did
 * not close it. */
titan_status schema_probe(const struct schema *schema, const char *path, bool *ret_unclean,
                          struct titan_error *err) TITAN_MUST_USE;
/* Create or migrate; the connection is the file's writer. */
titan_status schema_migrate(const struct schema *schema, struct db *db, struct titan_error *err) TITAN_MUST_USE;
/* Has the file what the migrations up to its version make, and nothing else? TITAN_ECORRUPT names a trigger, view,
 * index or table that is more, less or another: what such a one does when the store is written is not known. */
titan_status schema_compare(const struct schema *schema, struct db *db, struct titan_error *err) TITAN_MUST_USE;
/* PRAGMA quick_check: TITAN_ECORRUPT with its first finding. bounded: of a large file without the tables that make it
 * large (recipes, events, metrics), so that a start does not wait for all of it to be read. */
titan_status schema_check(struct db *db, bool bounded, struct titan_error *err) TITAN_MUST_USE;

#endif
