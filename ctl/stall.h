/* SPDX-License-Identifier: Apache-2.0 */
/* stall.h - finds what holds up the ranks of an epoch, from dumps of their flight recorders: the rank missing from a
 * collective. Pure functions: no server, no clock.
 *
 * A rank waits in a collective that it has begun and not ended. A rank is missing from a collective if others wait in
 * it and the rank's last collective of that group has a lower number. Waits for a rank that does not wait itself are
 * reported first. */
#ifndef TITAN_CTL_STALL_H
#define TITAN_CTL_STALL_H

#include "base/buf.h"
#include "base/flight.h"
#include "base/json.h"

/* The dump of one worker in one epoch. */
struct stall_dump {
    uint64_t worker;
    char cause[16];              /* "request", "revoke", "hang", "exit" */
    char detail[160], node[256]; /* detail: the fault of this worker itself; "": none is known */
    int64_t now_ns, time_ms;     /* time of reading: on the clock of the records; since 1970 */
    struct flight_copy *copy;    /* owned */
};
/* Parses the text of a dump (daemon/agent/shell/flight_dumps.h). Every field is checked; TITAN_ECORRUPT: the text is no
 * dump. */
titan_status stall_read(const char *text, size_t len, struct stall_dump *ret, struct titan_error *err) TITAN_MUST_USE;
void stall_dump_free(struct stall_dump *dump);

enum stall_kind {
    STALL_MISSING,   /* some ranks have begun a collective, others have not */
    STALL_DIFFERENT, /* different collectives with the same number in a group */
    STALL_SIZES,     /* the same collective with different sizes */
    STALL_UNSENT,    /* a receive without the peer's send */
    STALL_UNTAKEN,   /* a send without the peer's receive */
    STALL_HELD,      /* all have begun the collective, but one rank has a fault: that rank counts as missing */
    STALL_UNDER_WAY, /* all have begun the collective, and some have not ended it */
    STALL_BUSY,      /* an operation of one rank that does not end, while no rank waits */
    STALL_KINDS
};
struct stall_rank {
    int rank;
    const struct stall_dump *dump;    /* NULL: no dump */
    const struct flight_entry *entry; /* waiting: the operation; missing: its present or last operation; NULL: none */
    double older_s;                   /* age of its dump relative to the newest dump; 0: the same moment */
};
struct stall {
    enum stall_kind kind;
    bool root; /* a missing rank does not itself wait in another stall */
    const char *group;
    const struct flight_entry *what;      /* the collective or message, as the first waiting rank recorded it */
    struct stall_rank *waiting, *missing; /* ordered by rank */
    int n_waiting, n_missing, cap_waiting, cap_missing;
    double waited_s; /* the longest wait */
};
struct stall_report {
    uint64_t epoch, step;           /* step: the latest of all records */
    int ranks, damaged;             /* number of dumps; number of damaged records left out */
    bool circle;                    /* every wait is explained by another wait: the ranks' orders differ */
    bool requested;                 /* made on request, without a fault: waits below a second are left out */
    const struct stall_dump *ended; /* the first worker that ended by itself; NULL: none */
    struct stall *stalls;           /* roots first, then by longest wait */
    int n, cap;
};
/* Finds the stalls of one epoch. The dumps must outlive the report. */
titan_status stall_find(const struct stall_dump *dumps, int n, struct stall_report *ret,
                        struct titan_error *err) TITAN_MUST_USE;
void stall_report_free(struct stall_report *report);

/* The rank that enters collectives last. Of a collective's members, the last to enter spends the least time inside, so
 * the ranks' clocks need not agree. Only collectives with complete records from all members count. */
struct stall_slowest {
    int rank;              /* -1: none: the others' waits are short, or are not mainly for one rank */
    int collectives, last; /* collectives in the dumps; number of the collective that this rank entered last */
    double share, others;  /* share of its records' time inside collectives; mean of the others */
};
titan_status stall_slowest(const struct stall_dump *dumps, int n, struct stall_slowest *ret,
                           struct titan_error *err) TITAN_MUST_USE;

/* Writes one line without its newline. */
void stall_print(const struct stall_report *report, const struct stall *stall, struct buf *out);
/* Writes the text for a report without stalls. */
void stall_print_none(const struct stall_report *report, struct buf *out);
void stall_print_slowest(const struct stall_slowest *slowest, struct buf *out);
/* Writes an object. */
void stall_put(const struct stall_report *report, const struct stall_slowest *slowest, const struct stall_dump *dumps,
               int n, struct json_writer *w);

#endif
