/* SPDX-License-Identifier: Apache-2.0 */
/* backup.h - copies of titan.db: made from one that is in use, checked, put back in place of a lost or damaged one. */
#ifndef TITAN_STATE_BACKUP_H
#define TITAN_STATE_BACKUP_H

#include "state/event.h"
#include "state/replay.h"

/* A consistent copy of the store at `from`, which may be written meanwhile (that goes on; the copy is of one moment).
 * `to` is replaced; it is one whole file, synced with its folder. Any thread: opens connections of its own, which only
 * read. */
titan_status backup_copy(const char *from, const char *to, struct titan_error *err) TITAN_MUST_USE;

/* Its newest event. */
titan_status backup_head(const char *path, struct event_head *ret, struct titan_error *err) TITAN_MUST_USE;

struct backup_report {
    int64_t schema, jobs, last_job, last_event, term;
    uint64_t chained; /* events in the chain that was checked */
    struct event_head head;
    uint64_t heads; /* of the checks' that are in the log */
    struct replay_report replay;
};

struct backup_checks {
    bool rederive;                  /* also everything that follows from the log (replay.h) */
    const struct event_head *heads; /* that were written down elsewhere: they have to be in the log */
    size_t n_heads;
    bool of_its_time; /* heads of events behind its last one are not looked at: it is a backup */
    /* Gets a line for each of the first differences, and for heads that were lost with a restore; may be NULL. */
    void (*print)(const char *line, void *data);
    void *data;
};
/* Is it sound? Pages, tables, the whole event chain and what `checks` has. Reads only; of a store in use a copy is made
 * in $TMPDIR and looked at. A store of an older schema has no chain yet; then only its pages are looked at.
 * TITAN_ENOTFOUND, TITAN_EVERSION, TITAN_ECORRUPT with what is damaged. */
titan_status backup_verify(const char *path, const struct backup_checks *checks, struct backup_report *ret,
                           struct titan_error *err) TITAN_MUST_USE;

struct restore_report {
    struct backup_report backup;
    int64_t term;     /* of the last coordinator, as agents will see it; the next start is one above */
    int64_t next_job; /* lowest number the next submit can get */
    char aside[512];  /* where the store lies that was there; "" = there was none */
};

/* Put a backup into a state directory that the caller has locked. It is verified first (with rederive); nothing is
 * touched when it is not sound. What was there is moved aside, not removed.
 *
 * Its term is raised above the backup's, that of the store that was there, that of an agent over the same directory,
 * and `above`, by BACKUP_TERM_STEP: agents obey it, and fence a coordinator that still runs on an older one. Numbers
 * that may have been given out since the backup are not given again: events and workers go on BACKUP_ID_STEP later,
 * jobs behind the last one the old store or a job's folder knows. The event store.restored says all this. */
titan_status backup_restore(const char *backup, const char *state_dir, uint64_t above, int64_t now_ms,
                            struct restore_report *ret, struct titan_error *err) TITAN_MUST_USE;

/* What a coordinator has to know of that. */
struct backup_origin {
    uint64_t term;                       /* that the restored store was given; 0 = it was not restored */
    uint64_t backup_worker, gone_worker; /* highest ids in the backup, and that can have been given out since */
    bool settled;                        /* what agents knew better has been taken over */
};
titan_status backup_origin(struct db *db, struct backup_origin *ret, struct titan_error *err) TITAN_MUST_USE;
titan_status backup_settle(struct db *db, const struct event *event, struct titan_error *err) TITAN_MUST_USE;

#define BACKUP_TERM_STEP 1000000
#define BACKUP_ID_STEP 1000000

#endif
