/* SPDX-License-Identifier: Apache-2.0 */
/* stall.h - what holds up the ranks of an epoch, from the dumps of their flight recorders: which rank is missing in
 * which collective. Functions of their arguments: no server, no clock.
 *
 * A rank waits in a collective that it has begun and not ended. It is missing in one that others wait in, where the
 * last of that group that it has begun has a lower number. Of the waits, those are told first that are explained by a
 * rank that does not itself wait for others. */
#ifndef TITAN_CTL_STALL_H
#define TITAN_CTL_STALL_H

#include "base/buf.h"
#include "base/flight.h"
#include "base/json.h"

/* Of one worker in one epoch. */
struct stall_dump {
    uint64_t worker;
    char cause[16];              /* "request", "revoke", "hang", "exit" */
    char detail[160], node[256]; /* detail: what is wrong with this worker itself; "" nothing is known */
    int64_t now_ns, time_ms;     /* when it was read: on the clock of its records; since 1970 */
    struct flight_copy *copy;    /* owned */
};
/* The text of a dump (daemon/agent/shell/flight_dumps.h). Every field is checked; TITAN_ECORRUPT: it is none. */
titan_status stall_read(const char *text, size_t len, struct stall_dump *ret, struct titan_error *err) TITAN_MUST_USE;
void stall_dump_free(struct stall_dump *dump);

enum stall_kind {
    STALL_MISSING,   /* some have begun a collective, others have not */
    STALL_DIFFERENT, /* at the same number of a group, different collectives */
    STALL_SIZES,     /* the same one, of different sizes */
    STALL_UNSENT,    /* a receive that the peer has not sent to */
    STALL_UNTAKEN,   /* a send that the peer does not take */
    STALL_HELD,      /* all have begun it, and one that something is wrong with is in it: that one is missing */
    STALL_UNDER_WAY, /* all have begun it, and some are in it still */
    STALL_BUSY,      /* an operation of a rank that does not end, while none waits */
    STALL_KINDS
};
struct stall_rank {
    int rank;
    const struct stall_dump *dump; /* NULL: there is none */
    const struct flight_entry
        *entry;     /* waiting: the operation; missing: what it is in, or was in last; NULL: nothing */
    double older_s; /* its dump is not of the same moment, but so much older than the newest; 0: it is */
};
struct stall {
    enum stall_kind kind;
    bool root; /* what it waits for does not wait itself */
    const char *group;
    const struct flight_entry *what;      /* as the first of the waiting has it */
    struct stall_rank *waiting, *missing; /* by rank */
    int n_waiting, n_missing, cap_waiting, cap_missing;
    double waited_s; /* the longest */
};
struct stall_report {
    uint64_t epoch, step;           /* step: the latest of any record */
    int ranks, damaged;             /* dumps; records that were left out of them */
    bool circle;                    /* each wait is explained by another one: the ranks' orders differ */
    bool requested;                 /* nothing was wrong when they were made: waits below a second are left out */
    const struct stall_dump *ended; /* the first that has ended by itself; NULL: none */
    struct stall *stalls;           /* roots first, then the longest wait */
    int n, cap;
};
/* The dumps of one epoch, which stay as long as the report. */
titan_status stall_find(const struct stall_dump *dumps, int n, struct stall_report *ret,
                        struct titan_error *err) TITAN_MUST_USE;
void stall_report_free(struct stall_report *report);

/* The rank that comes last into the collectives, of those that all members' dumps have from begin to end: it is the one
 * that is in them shortest, whatever the ranks' clocks say. */
struct stall_slowest {
    int rank;              /* -1: none, or none that the others notably wait for, and more than for the rest */
    int collectives, last; /* in the dumps; of those, that it came into last */
    double share, others;  /* of its records' time, it was in some collective; the others, on average */
};
titan_status stall_slowest(const struct stall_dump *dumps, int n, struct stall_slowest *ret,
                           struct titan_error *err) TITAN_MUST_USE;

/* One line without its end. */
void stall_print(const struct stall_report *report, const struct stall *stall, struct buf *out);
/* What there is to say where there are no stalls. */
void stall_print_none(const struct stall_report *report, struct buf *out);
void stall_print_slowest(const struct stall_slowest *slowest, struct buf *out);
/* As an object. */
void stall_put(const struct stall_report *report, const struct stall_slowest *slowest, const struct stall_dump *dumps,
               int n, struct json_writer *w);

#endif
