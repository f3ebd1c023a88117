/* SPDX-License-Identifier: Apache-2.0 */
/* group.h - group commit: several writes in one transaction, one fsync, and none spoils another.
 *
 * The whole of writing to a store, without threads: store.c runs it on its writer thread, tests step by step. */
#ifndef TITAN_STATE_GROUP_H
#define TITAN_STATE_GROUP_H

#include "state/db.h"

/* Runs inside a transaction, possibly more than once (when the whole of it had to be undone: for a write that failed
 * after it had changed something, or by a full disk): it must only touch db and arg. */
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

/* Write the list in order. Of a write that fails nothing is kept; what has no error is durable on return. After a
 * failed fsync (db_sync_failed) nothing is written any more: every write fails. */
void group_commit(struct db *db, struct group_write *list, struct group_stats *stats);
/* Move what is in the WAL into the database file, when there is enough of it. Apart from group_commit, so that no
 * writer waits for it. Failing is harmless (it is done again next time) unless db_sync_failed() says otherwise. */
void group_checkpoint(struct db *db);

#endif
