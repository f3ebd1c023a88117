/* SPDX-License-Identifier: Apache-2.0 */
/* store.h - the job store: two SQLite files, one writer thread, group commit.
 *
 * All writing is done by one thread on one connection per file. Writes queue up while a commit is under way; the next
 * transaction then takes all of them, undoes those that fail, commits once (one fsync), and hands the results back to
 * the loop. So the number of durable writes per second is not bound by the disk's, and a write that fails spoils no
 * other.
 *
 * The loop thread reads through connections that cannot write and never checkpoint; they see what is committed. */
#ifndef TITAN_STATE_STORE_H
#define TITAN_STATE_STORE_H

#include <uv.h>

#include "state/group.h"

struct store;

/* Runs on the loop thread after the write is durable, or has failed: err->status. Results come in queueing order. */
typedef void (*store_done)(void *arg, const struct titan_error *err);

/* Opens or creates DIR/titan.db and DIR/metrics.db; waits for up to 10 s for another process that has one of them open
 * (TITAN_EAGAIN then; of metrics.db as below). TITAN_EVERSION, TITAN_ECORRUPT: see schema_probe; after an unclean
 * stop the store is checked (PRAGMA quick_check, bounded) before it is used, and the chain of the newest events always.
 * Damaged metrics are moved away; metrics that cannot be opened are gone without. */
titan_status store_open(uv_loop_t *loop, const char *dir, struct store **ret, struct titan_error *err) TITAN_MUST_USE;
/* Commits what is queued, calls every done, closes, then calls done(data) on the loop. */
void store_close(struct store *s, void (*done)(void *), void *data);

void store_write(struct store *s, store_fn fn, void *arg, store_done done);
/* The same into metrics.db (synchronous=NORMAL: survives a crash of the process, the last rows may be lost with power).
 */
void store_write_metrics(struct store *s, store_fn fn, void *arg, store_done done);
/* For start-up: runs fn at once, on this thread, as a transaction of its own. Only before the first store_write. */
titan_status store_write_now(struct store *s, store_fn fn, void *arg, struct titan_error *err) TITAN_MUST_USE;
/* What to do when an fsync of titan.db has failed: called on the loop instead of any further result. It is unknown
 * what of the last transaction is on the disk, and the kernel may take for written what is not; only a new process,
 * which opens the store afresh, knows again (docs/coordinator.md, "When the disk fails"). failed() should end this one.
 */
void store_on_failure(struct store *s, void (*failed)(void *data, const struct titan_error *err), void *data);
/* Called on the loop each time that writes of titan.db were called back, also by store_close(). Whatever committed()
 * reads, it is durable. */
void store_on_commit(struct store *s, void (*committed)(void *data), void *data);
struct db *store_reader(struct store *s);
struct db *store_metrics_reader(struct store *s); /* NULL: metrics.db could not be opened */

/* Age of the oldest write that is not back yet, in ms; 0 when there is none. */
int64_t store_lag_ms(const struct store *s);
/* Number of the writer's term: increases with every open of the store. */
uint64_t store_term(const struct store *s);
/* Drawn when the store was made: no two have the same, but a copy and a backup have that of their original. */
uint64_t store_id(const struct store *s);
/* MAC_BYTES at random, of the same: what its coordinators prove their terms with (daemon/common/proof.h). */
const uint8_t *store_secret(const struct store *s);
struct store_stats {
    uint64_t writes, commits, failures;
};
struct store_stats store_stats(const struct store *s);

#endif
