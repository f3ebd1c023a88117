/* SPDX-License-Identifier: Apache-2.0 */
/* flight.h - the flight recorder: the last actions and collectives of a worker, in a file that the worker and its agent
 * both have open. The worker writes through a mapping, so its records survive any end of the worker; the agent reads
 * the file.
 *
 * The recorder is a ring of FLIGHT_RECORDS records. Any thread may write, without locks: a thread takes a place, and
 * marks its record complete with a ticket. A record that has begun and not ended is not overwritten within its epoch,
 * so a hanging operation stays visible despite later records. A process without a ring records nothing, at the cost of
 * one load.
 *
 * The reader trusts nothing: it reads a copy, skips impossible records and counts them. */
#ifndef TITAN_BASE_FLIGHT_H
#define TITAN_BASE_FLIGHT_H

#include <assert.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define PAGES_FOLDERS "/dev/shm/titan-"           /* prefix of folders with workers' pages and flight recorders */
#define FLIGHT_MAGIC UINT64_C(0x31746867696c4674) /* "tFlight1" */
#define FLIGHT_RECORDS 1024                       /* a power of two */
#define FLIGHT_GROUPS 16
#define FLIGHT_RANKS_MAX 1024

enum flight_kind { FLIGHT_ACTION, FLIGHT_COLLECTIVE, FLIGHT_SEND, FLIGHT_RECEIVE, FLIGHT_KINDS };

struct flight_record {
    _Atomic uint64_t ticket;  /* 0: never written; odd: being written; each write increases it */
    _Atomic int64_t ended_ns; /* clock_mono_ns; 0: not ended */
    int64_t began_ns;
    _Atomic uint64_t epoch;
    uint64_t step, bytes;
    uint32_t number;          /* in its group, from 1; sends and receives count separately. 0: an action */
    int32_t microbatch, peer; /* microbatch: index in the rank's share; peer: a rank of the epoch; -1: none */
    uint8_t kind, group;      /* group: index; 0 for an action */
    char op[20], place[32];   /* "ALL_REDUCE"; "layers.7" */
    char phase[10];           /* "dgrad" */
    /* the ticket's lower half again; a difference shows that the copy was made during a write */
    _Atomic uint32_t again;
};
static_assert(sizeof(struct flight_record) == 128, "two cache lines");

struct flight_group {
    char name[32];
    uint64_t members[FLIGHT_RANKS_MAX / 64]; /* one bit per rank */
};

struct flight_ring {
    uint64_t magic;
    _Atomic uint64_t next; /* next ticket */
    _Atomic uint64_t epoch;
    _Atomic int32_t rank, world; /* world 0: no epoch yet, or flight_epoch() is writing one */
    struct flight_group groups[FLIGHT_GROUPS];
    _Alignas(128) struct flight_record records[FLIGHT_RECORDS];
};
static_assert((FLIGHT_RECORDS & (FLIGHT_RECORDS - 1)) == 0, "places are taken modulo");

/* --- the agent makes the file, the worker maps it ----------------------------------------------------------------- */

/* The ring's path beside a worker's page: w7.page has w7.flight. */
void flight_path(const char *page, char out[PATH_MAX]);
/* Creates path (mode 0600, replacing an older file) and allocates all its blocks. */
titan_status flight_create(const char *path, struct titan_error *err) TITAN_MUST_USE;
/* From now on this process records into path, until the process ends. fd: the open file for a process that may not open
 * the path; the call takes ownership; 0 = none. TITAN_ECORRUPT: the file is no ring. */
titan_status flight_attach(const char *path, int fd, struct titan_error *err) TITAN_MUST_USE;
bool flight_attached(void);

/* --- one thread: the one that trains ------------------------------------------------------------------------------ */

/* Begins an epoch: older records may be overwritten, groups are cleared, numbers begin at 1. */
void flight_epoch(uint64_t epoch, int rank, int world);
void flight_group(int group, const char *name, const int *members, int n);
/* The current step, for records that begin from now on. */
void flight_step(uint64_t step);
/* The number of the group's next operation of this kind. */
uint32_t flight_number(int group, enum flight_kind kind);

/* --- any thread --------------------------------------------------------------------------------------------------- */

struct flight_what {
    const char *op, *place, *phase; /* static, or valid until the record is written; NULL: none */
    uint64_t step, bytes;
    uint32_t number;
    int32_t microbatch, peer;
    uint8_t kind, group;
};
struct flight_mark {
    struct flight_record *record; /* NULL: nothing is recorded */
    uint64_t ticket;
};
struct flight_mark flight_begin(const struct flight_what *what);
void flight_end(struct flight_mark mark);
/* The step last passed to flight_step(), for what->step. */
uint64_t flight_steps(void);

/* --- reading ------------------------------------------------------------------------------------------------------ */

struct flight_entry {
    uint64_t ticket, step, bytes;
    int64_t began_ns, ended_ns; /* ended 0: not ended */
    uint32_t number;
    int32_t microbatch, peer;
    enum flight_kind kind;
    int group;
    char op[20], place[32], phase[10];
};
struct flight_copy {
    uint64_t epoch;
    int rank, world;                           /* world 0: the worker was in no epoch */
    struct flight_group groups[FLIGHT_GROUPS]; /* name "": none; members are below world */
    int n, damaged; /* n: valid entries of the epoch; damaged: impossible records, which are not in entries */
    struct flight_entry entries[FLIGHT_RECORDS]; /* ordered by ticket */
};
/* Reads the current bytes of path, unchecked. *ret: owned (free). TITAN_ECORRUPT: the file is no ring. */
titan_status flight_read(const char *path, struct flight_ring **ret, struct titan_error *err) TITAN_MUST_USE;
/* Checks and decodes a ring that nothing writes to. now_ns: clock_mono_ns at the time of reading; no record begins or
 * ends later. TITAN_ECORRUPT: no record is credible. */
titan_status flight_check(const struct flight_ring *ring, int64_t now_ns, struct flight_copy *ret,
                          struct titan_error *err) TITAN_MUST_USE;

/* Write and parse the name of the file with a worker's printed recorder; the name is below the job's folder. false: the
 * name has another form. */
#define FLIGHT_NAME_BYTES 96
void flight_name(uint64_t worker_id, uint64_t epoch, char ret[FLIGHT_NAME_BYTES]);
bool flight_parse_name(const char *name, uint64_t *ret_worker, uint64_t *ret_epoch);

#endif
