/* SPDX-License-Identifier: Apache-2.0 */
/* member.h - one of several coordinators that keep the same titan.db: libraft's state machine, the number of the last
 * record, the coordinator's term, and the lease. Everything except network, disk and clock; those are given, so a
 * simulator can run members (tests/ha).
 *
 * A member follows first: it owns titan.db and applies the log's records (state/changeset.h) to it. When libraft has
 * made it the leader, and every earlier record is applied, the member closes titan.db and calls leads(). The owner then
 * opens the store with store_open_led(), whose first record raises the term. The store writes each group with
 * member_append(). A leader never follows again: it calls over(), and the process starts anew.
 *
 * Lease (Gray and Cheriton, SOSP 1989; Ongaro's thesis, 6.4.1). The leader asks all members each lease_ms / 4. A member
 * that answers promises: for lease_ms from the receipt it sends no request for votes and grants no vote. The leader may
 * answer calls until lease_ms minus a margin after it sent the newest request that a majority has answered. So a new
 * leader is elected only after the old one has fallen silent. A member forgets its promises when it ends; so it behaves
 * as if it had just promised when it starts. A clock may be wrong by a tenth of lease_ms within lease_ms.
 *
 * Threads: all functions belong to the thread of libraft's loop, except where "any thread" is said. */
#ifndef TITAN_DAEMON_HA_MEMBER_H
#define TITAN_DAEMON_HA_MEMBER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/ha/libraft.h"

struct member;

enum { MEMBER_MESSAGE_MAX = 32 }; /* bytes of a member's own messages */

struct member_options {
    const char *dir;      /* folder of titan.db; copied */
    uint64_t id;          /* this member's id in the log's configuration; never 0 */
    const char *address;  /* for other members; copied */
    unsigned election_ms; /* libraft's election timeout: between 1 and 2 times this */
    unsigned lease_ms;    /* < election_ms */
    /* A clock that also counts suspended time (CLOCK_BOOTTIME). Any thread. */
    int64_t (*now_ns)(void *data);
    /* Sends an own message to a member; it may be lost or come late. len <= MEMBER_MESSAGE_MAX. */
    void (*send)(void *data, uint64_t to, const uint8_t *bytes, size_t len);
    /* Asks for a member_run() on libraft's thread, soon. Any thread. */
    void (*wake)(void *data);
    /* This member leads, with the coordinator's term `term`. titan.db is closed and holds all records up to number. */
    void (*leads)(void *data, uint64_t term, uint64_t number);
    /* The member does nothing any more, never answers again, and wants to be closed, later and not in this call: the
     * leadership is lost, or err says what is wrong with its disk or records. TITAN_ECONFLICT, TITAN_ECORRUPT: its
     * titan.db differs from the log; it has to join with an empty disk. */
    void (*over)(void *data, const struct titan_error *err);
    void *data;
};

/* Opens titan.db as follower; `io` is given to libraft and must stay until member_close() is done. The member puts its
 * own functions before io->start, io->send and io->snapshot_put. TITAN_EVERSION, TITAN_ECORRUPT: as store_open(). */
titan_status member_open(struct raft_io *io, const struct member_options *options, struct member **ret,
                         struct titan_error *err) TITAN_MUST_USE;
/* Before member_start(), once in the life of a cluster, at one member: the log begins with titan.db as it is, and this
 * member as the only voter. Others may be added when member_based() is true. */
titan_status member_bootstrap(struct member *m, struct titan_error *err) TITAN_MUST_USE;
titan_status member_start(struct member *m, struct titan_error *err) TITAN_MUST_USE;
/* Fails what waits, closes libraft and titan.db, then calls done(data) and frees the member. */
void member_close(struct member *m, void (*done)(void *data), void *data);

/* Call it after wake(), and at least each lease_ms / 4: renews the lease, takes over appended records. */
void member_run(struct member *m);
/* An own message of the member with this id. The bytes are untrusted. */
void member_receive(struct member *m, uint64_t from, const uint8_t *bytes, size_t len);
/* Is the log compacted over the state at the bootstrap? Earlier a new member would lack that state. */
bool member_based(const struct member *m);
/* Gives up the lease for good, tells the others, and asks libraft to make `to` (0: any voter) the leader. Then the
 * member's owner waits for over(). Call it when nothing is to be written any more. */
titan_status member_hand_over(struct member *m, uint64_t to, struct titan_error *err) TITAN_MUST_USE;
/* For raft_add(), raft_assign(), raft_remove(), raft_leader() and their like. */
struct raft *member_raft(struct member *m);
uint64_t member_number(const struct member *m); /* of the last record that this member's titan.db is known to hold */

/* May this process answer as the coordinator now? Any thread. */
bool member_may_answer(const struct member *m);
/* struct group_log.append, data is the member: any thread but libraft's. Returns when the record is committed
 * (TITAN_OK) or the leadership is lost (TITAN_ECANCELLED): other members may still commit the record, or never. */
titan_status member_append(void *data, uint64_t number, const void *bytes, size_t len, struct titan_error *err);
/* The same without waiting, on libraft's thread: calls done() later, unless it returns an error. */
titan_status member_propose(struct member *m, uint64_t number, const void *bytes, size_t len,
                            void (*done)(void *data, titan_status status), void *data,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
