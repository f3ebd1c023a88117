/* SPDX-License-Identifier: Apache-2.0 */
/* flight.h - the flight recorder: the last actions and collectives of a worker, in a file that both it and its agent
 * have open. The worker writes through a mapping, so what it wrote is there however it ends; the agent reads the file.
 *
 * A ring of FLIGHT_RECORDS records. Any thread may write, without locks: it takes a place, and gives its record a
 * ticket when it is complete. A record that has begun and not ended is not written over in its epoch, so what hangs
 * stays, however much goes on beside it. Nothing is recorded in a process that has no ring, at the cost of one load.
 *
 * The reader believes nothing: it reads a copy, and leaves out, and counts, records that cannot be. */
#ifndef TITAN_BASE_FLIGHT_H
#define TITAN_BASE_FLIGHT_H

#include <assert.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define PAGES_FOLDERS "/dev/shm/titan-"           /* folders with workers' pages and flight recorders begin so */
#define FLIGHT_MAGIC UINT64_C(0x31746867696c4674) /* "tFlight1" */
#define FLIGHT_RECORDS 1024                       /* a power of two */
#define FLIGHT_GROUPS 16
#define FLIGHT_RANKS_MAX 1024

enum flight_kind { FLIGHT_ACTION, FLIGHT_COLLECTIVE, FLIGHT_SEND, FLIGHT_RECEIVE, FLIGHT_KINDS };

struct flight_record {
    _Atomic uint64_t ticket;  /* 0: never written, odd: being written; then it counts up */
    _Atomic int64_t ended_ns; /* clock_mono_ns; 0: it has not */
    int64_t began_ns;
    _Atomic uint64_t epoch;
    uint64_t step, bytes;
    uint32_t number;          /* of what its group does, from 1; sends and receives are counted apart. 0: an action */
    int32_t microbatch, peer; /* a slot of the rank's share; a rank of the epoch; -1: none */
    uint8_t kind, group;      /* group: index, of an action 0 */
    char op[20], place[32];   /* "ALL_REDUCE"; "layers.7" */
    char phase[10];           /* "dgrad" */
    _Atomic uint32_t again;   /* the ticket's lower half: a copy in which they differ was made while it was written */
};
static_assert(sizeof(struct flight_record) == 128, "two cache lines");

struct flight_group {
    char name[32];
    uint64_t members[FLIGHT_RANKS_MAX / 64]; /* a bit a rank */
};

struct flight_ring {
    uint64_t magic;
    _Atomic uint64_t next; /* ticket */
    _Atomic uint64_t epoch;
    _Atomic int32_t rank, world; /* world 0: no epoch yet, or one is being noted */
    struct flight_group groups[FLIGHT_GROUPS];
    _Alignas(128) struct flight_record records[FLIGHT_RECORDS];
};
static_assert((FLIGHT_RECORDS & (FLIGHT_RECORDS - 1)) == 0, "places are taken modulo");

/* --- the agent makes the file, the worker maps it ----------------------------------------------------------------- */

/* The ring's path beside a worker's page: w7.page has w7.flight. */
void flight_path(const char *page, char out[PATH_MAX]);
/* Create path (0600, replaced if there), all blocks of it. */
titan_status flight_create(const char *path, struct titan_error *err) TITAN_MUST_USE;
/* From now on this process records into path, until it ends. fd: the file, open, where this process may not open it,
 * and taken; 0 = none. TITAN_ECORRUPT: it is no ring. */
titan_status flight_attach(const char *path, int fd, struct titan_error *err) TITAN_MUST_USE;
bool flight_attached(void);

/* --- one thread: the one that trains ------------------------------------------------------------------------------ */

/* An epoch begins: older records may be written over, groups are forgotten, numbers begin at 1. */
void flight_epoch(uint64_t epoch, int rank, int world);
void flight_group(int group, const char *name, const int *members, int n);
/* The step under way, for the records that begin. */
void flight_step(uint64_t step);
/* The number of the group's next operation of this kind. */
uint32_t flight_number(int group, enum flight_kind kind);

/* --- any thread --------------------------------------------------------------------------------------------------- */

struct flight_what {
    const char *op, *place, *phase; /* static, or as long as the record is being written; NULL: none */
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
/* What flight_step was given, for what->step. */
uint64_t flight_steps(void);

/* --- reading ------------------------------------------------------------------------------------------------------ */

struct flight_entry {
    uint64_t ticket, step, bytes;
    int64_t began_ns, ended_ns; /* ended 0: it has not */
    uint32_t number;
    int32_t microbatch, peer;
    enum flight_kind kind;
    int group;
    char op[20], place[32], phase[10];
};
struct flight_copy {
    uint64_t epoch;
    int rank, world;                           /* world 0: it was in no epoch */
    struct flight_group groups[FLIGHT_GROUPS]; /* name "": none; members below world */
    int n, damaged; /* entries of the epoch; records that cannot be, and are not among them */
    struct flight_entry entries[FLIGHT_RECORDS]; /* by ticket */
};
/* What path holds now, as it lies there. *ret: owned (free). TITAN_ECORRUPT: it is no ring. */
titan_status flight_read(const char *path, struct flight_ring **ret, struct titan_error *err) TITAN_MUST_USE;
/* What a ring that nothing writes to says, checked. now_ns: clock_mono_ns when it was read; nothing begins or ends
 * later. TITAN_ECORRUPT: no record of it can be believed. */
titan_status flight_check(const struct flight_ring *ring, int64_t now_ns, struct flight_copy *ret,
                          struct titan_error *err) TITAN_MUST_USE;

/* The name of the file that a worker's recorder is printed into, below the job's folder, and back; false: it is no such
 * name. */
#define FLIGHT_NAME_BYTES 96
void flight_name(uint64_t worker_id, uint64_t epoch, char ret[FLIGHT_NAME_BYTES]);
bool flight_parse_name(const char *name, uint64_t *ret_worker, uint64_t *ret_epoch);

#endif
