/* SPDX-License-Identifier: Apache-2.0 */
/* backup.h - copies of titan.db: made from a store in use, verified, and restored in place of a lost or damaged
 * store. */
#ifndef TITAN_STATE_BACKUP_H
#define TITAN_STATE_BACKUP_H

#include "state/event.h"
#include "state/replay.h"

/* Makes a consistent copy of the store at `from`, as of one moment, also during writes. The copy replaces `to`: one
 * whole file, synced with its folder. Any thread: the function opens its own read-only connections. */
titan_status backup_copy(const char *from, const char *to, struct titan_error *err) TITAN_MUST_USE;

/* The newest event of the store. */
titan_status backup_head(const char *path, struct event_head *ret, struct titan_error *err) TITAN_MUST_USE;

struct backup_report {
    int64_t schema, jobs, last_job, last_event, term;
    uint64_t chained; /* events in the verified chain */
    struct event_head head;
    uint64_t heads; /* how many heads of `checks` the log contains */
    struct replay_report replay;
};

struct backup_checks {
    bool rederive;                  /* also verifies everything that follows from the log (replay.h) */
    const struct event_head *heads; /* heads recorded elsewhere: the log must contain them */
    size_t n_heads;
    bool of_its_time; /* the store is a backup, so heads of events after its last event are skipped */
    /* Called with a line for each of the first differences, and for heads lost with a restore; may be NULL. */
    void (*print)(const char *line, void *data);
    void *data;
};
/* Verifies pages, tables, the whole event chain and the content of `checks`. Read-only; a store in use is copied to
 * $TMPDIR first. A store of an older schema has no chain yet, so only its pages are verified. TITAN_ENOTFOUND,
 * TITAN_EVERSION, TITAN_ECORRUPT with the damage. */
titan_status backup_verify(const char *path, const struct backup_checks *checks, struct backup_report *ret,
                           struct titan_error *err) TITAN_MUST_USE;

struct restore_report {
    struct backup_report backup;
    int64_t term;     /* term of the last coordinator for agents; the next start uses the next higher term */
    int64_t next_job; /* lowest number for the next submit */
    char aside[512];  /* new location of the previous store; "" = there was none */
};

/* Restores a backup into a state directory that the caller has locked. The backup is verified first (with rederive); an
 * unsound backup changes nothing. The previous store is moved aside, not removed.
 *
 * The new term exceeds the terms of the backup, of the previous store, of an agent over the same directory, and
 * `above`, by BACKUP_TERM_STEP: agents then obey it, and fence a coordinator that still runs on an older term. Numbers
 * that may have been issued since the backup are not issued again. The ids of events and workers continue
 * BACKUP_ID_STEP later. The ids of jobs continue after the last job that the old store knows or that has a folder. The
 * event store.restored records all this. */
titan_status backup_restore(const char *backup, const char *state_dir, uint64_t above, int64_t now_ms,
                            struct restore_report *ret, struct titan_error *err) TITAN_MUST_USE;

/* What a coordinator needs to know about a restore. */
struct backup_origin {
    uint64_t term;                       /* term of the restored store; 0 = the store was not restored */
    uint64_t backup_worker, gone_worker; /* highest ids: in the backup, and possibly issued since */
    bool settled;                        /* the agents' newer knowledge has been stored */
};
titan_status backup_origin(struct db *db, struct backup_origin *ret, struct titan_error *err) TITAN_MUST_USE;
titan_status backup_settle(struct db *db, const struct event *event, struct titan_error *err) TITAN_MUST_USE;

#define BACKUP_TERM_STEP 1000000
#define BACKUP_ID_STEP 1000000

#endif
