/* SPDX-License-Identifier: Apache-2.0 */
/* group.h - group commit: several writes in one transaction with one fsync; a failed write does not affect others.
 *
 * This is all of the store's writing, without threads. store.c runs it on its writer thread. Tests run it step by step.
 */
#ifndef TITAN_STATE_GROUP_H
#define TITAN_STATE_GROUP_H

#include "state/db.h"

/* Runs inside a transaction, possibly more than once, so it must only touch db and arg. The transaction is rolled back
 * and repeated after a write that failed half-way, or after a full disk. */
typedef titan_status (*store_fn)(struct db *db, void *arg, struct titan_error *err);

struct group_write {
    struct group_write *next;
    store_fn fn;
    void *arg;
    struct titan_error err; /* out: TITAN_OK = durable */
};

struct group_stats {
    uint64_t writes, commits, failures;
};

/* Where the changes of each transaction go before its COMMIT: the log of several coordinators (state/changeset.h). */
struct group_log {
    /* Returns TITAN_OK when a majority of the coordinators has the record on disk. After any error the record may be
     * kept or lost. The bytes are valid during the call. */
    titan_status (*append)(void *data, uint64_t number, const void *bytes, size_t len, struct titan_error *err);
    void *data;
    /* out: append() or a COMMIT after it has failed, so the log may hold a record that the file lacks. Every later
     * write fails, too; only a new process that asks the log knows the state. */
    struct titan_error lost;
};
#define GROUP_RECORD_MAX (4 << 20) /* a larger record of several writes becomes one record for each */

/* Writes the list in order. A failed write leaves no trace; a write without an error is durable on return. After a
 * failed fsync (db_sync_failed) every write fails. log: NULL = none. */
void group_commit(struct db *db, struct group_log *log, struct group_write *list, struct group_stats *stats);
/* Moves a large WAL into the database file. Separate from group_commit, so that no writer waits for it. A failure is
 * harmless (the next call repeats it) unless db_sync_failed() reports an error. */
void group_checkpoint(struct db *db);

#endif
