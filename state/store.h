/* SPDX-License-Identifier: Apache-2.0 */
/* store.h - the job store: two SQLite files, one writer thread, group commit.
 *
 * One thread does all writing, on one connection per file. Writes queue up during a commit; the next transaction takes
 * all of them, undoes failed writes, commits once (one fsync), and returns the results to the loop. So the disk's syncs
 * do not bound the rate of durable writes, and a failed write affects no other write.
 *
 * The loop thread reads through connections that cannot write and never checkpoint; they see committed data. */
#ifndef TITAN_STATE_STORE_H
#define TITAN_STATE_STORE_H

#include <uv.h>

#include "base/histogram.h"
#include "state/group.h"

struct store;

/* Called on the loop thread after the write is durable or has failed (err->status). Results come in queueing order. */
typedef void (*store_done)(void *arg, const struct titan_error *err);

/* Opens or creates DIR/titan.db and DIR/metrics.db; waits up to 10 s for another process that has a file open. After
 * this time titan.db gives TITAN_EAGAIN; for metrics.db see below. TITAN_EVERSION, TITAN_ECORRUPT: see schema_probe.
 * After an unclean stop the store is checked first (PRAGMA quick_check, bounded); the chain of the newest events is
 * always checked. Damaged metrics are moved away; if metrics cannot be opened, the store works without them. */
titan_status store_open(uv_loop_t *loop, const char *dir, struct store **ret, struct titan_error *err) TITAN_MUST_USE;
/* As store_open(), for the coordinator that leads: each group of titan.db goes to log->append() first, on the writer
 * thread, and the opening's own writes on this thread. The log's number must be the file's. The store begins the given
 * term instead of the next one; TITAN_EBUG: it is not above the store's. After an error of append() the group's writes
 * have TITAN_ECANCELLED (they may be kept or lost), and the store_on_failure() handler is called. */
titan_status store_open_led(uv_loop_t *loop, const char *dir, const struct group_log *log, uint64_t term,
                            struct store **ret, struct titan_error *err) TITAN_MUST_USE;
/* Opens DIR/titan.db as a coordinator that follows: as store_open() with its checks and migrations, but without a new
 * term, threads or metrics. The caller's thread writes (changeset_apply()). */
titan_status store_open_follower(const char *dir, struct db **ret, struct titan_error *err) TITAN_MUST_USE;
void store_close_follower(struct db *db); /* NULL is fine */
/* Commits queued writes, calls every done, closes, then calls done(data) on the loop. */
void store_close(struct store *s, void (*done)(void *), void *data);

void store_write(struct store *s, store_fn fn, void *arg, store_done done);
/* store_write() into metrics.db (synchronous=NORMAL: survives a crash of the process; a power loss may lose the last
 * rows). */
void store_write_metrics(struct store *s, store_fn fn, void *arg, store_done done);
/* For start-up: runs fn at once, on this thread, in its own transaction. Only before the first store_write. */
titan_status store_write_now(struct store *s, store_fn fn, void *arg, struct titan_error *err) TITAN_MUST_USE;
/* Sets the handler for a failed fsync of titan.db, called on the loop instead of any further result. The last
 * transaction's state on disk is then unknown, and the kernel may hold unwritten pages as written. Only a new process
 * that reopens the store knows its state (docs/coordinator.md, "When the disk fails"), so failed() should end this
 * process. */
void store_on_failure(struct store *s, void (*failed)(void *data, const struct titan_error *err), void *data);
/* Called on the loop after each group of results of titan.db, also by store_close(). Everything that committed() reads
 * is durable. */
void store_on_commit(struct store *s, void (*committed)(void *data), void *data);
struct db *store_reader(struct store *s);
struct db *store_metrics_reader(struct store *s); /* NULL: metrics.db could not be opened */

/* Age of the oldest unfinished write, in ms; 0: none. */
int64_t store_lag_ms(const struct store *s);
/* The writer's term: increases with every opening of the store. */
uint64_t store_term(const struct store *s);
/* A random id from the store's creation. It is unique, but copies and backups have their original's id. */
uint64_t store_id(const struct store *s);
/* MAC_BYTES random bytes from the store's creation, also the same in copies. Coordinators prove their terms with these
 * bytes (daemon/common/proof.h). */
const uint8_t *store_secret(const struct store *s);
enum { STORE_FILES = 4 };
extern const char *const store_files[STORE_FILES]; /* "titan.db", its log, "metrics.db", its log */
struct store_stats {
    uint64_t writes, commits, failures;
    struct histogram commit_seconds; /* group commits of titan.db */
    uint64_t bytes[STORE_FILES];     /* a second old at most while there are writes */
};
struct store_stats store_stats(const struct store *s);

#endif
