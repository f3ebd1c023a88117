/* SPDX-License-Identifier: Apache-2.0 */
/* failover_internal.h - what the files of failover/ share; see failover.h. */
#ifndef TITAN_DAEMON_AGENT_FAILOVER_FAILOVER_INTERNAL_H
#define TITAN_DAEMON_AGENT_FAILOVER_FAILOVER_INTERNAL_H

#include "daemon/agent/core/agent_core_internal.h"
#include "daemon/agent/failover/failover.h"

#define ASKS_KEPT 4 /* questions that may still be answered */

/* One input's view of one job. */
struct failover {
    struct agent_core *core;
    struct agent_job *job; /* its accepted epoch is set */
    int64_t now;
    struct agent_actions *out;
};

/* The agent of one or more members of the epoch. */
struct peer {
    const char *node, *address; /* borrowed from the record */
    bool self, asked, received; /* asked: no answer since */
    bool barred;                /* it hears a coordinator or cannot promise */
    bool promised, finished;
    int64_t asked_at;
    uint64_t asks[ASKS_KEPT]; /* ids of the newest questions; answers to older questions do not count */
    size_t n_asks;
    uint64_t epoch;
    uint64_t *alive;
    size_t n_alive;
};

enum failover_stage { STAGE_WATCH, STAGE_PROPOSE, STAGE_REVOKE };

struct failover_state {
    uint64_t epoch; /* the accepted epoch that this state is about */
    enum failover_stage stage;
    size_t n_peers;
    struct peer *peers; /* ordered by lowest member rank */
    int64_t ask_at, again_at, until, rest_until;
    unsigned fails;
    uint64_t above; /* epoch numbers up to this number are taken */
    uint64_t message;
    form_epoch *proposal;                       /* NULL while watching; owned */
    size_t n_members;                           /* members of the epoch */
    Titan__Internal__WorkerQuiesced **quiesced; /* reports by rank in the epoch; owned */
};

/* --- failover_lease.c --------------------------------------------------------------------------------------------- */
/* Time when workers pause; INT64_MIN = there never was a coordinator. */
int64_t failover_lease_pause(const struct agent_core *c);
/* The coordinator is away and the lease lasts. */
bool failover_can_promise(const struct agent_core *c, int64_t now);
void failover_lease_tick(const struct failover *f);
int64_t failover_lease_deadline(const struct agent_core *c, const struct agent_job *j);

/* --- failover_epoch.c --------------------------------------------------------------------------------------------- */
bool failover_is_member(const form_epoch *form, uint64_t worker_id);
/* Does the worker take part, as a member or departing rank? */
bool failover_takes_part(const form_epoch *form, uint64_t worker_id);
size_t failover_ranks(const form_epoch *form); /* members and departing ranks */
/* members in rank order, then departing ranks */
const Titan__Internal__Member *failover_rank(const form_epoch *form, size_t i);
const Titan__Internal__Member *failover_member_on(const form_epoch *form, const char *node); /* NULL = none */
/* Are the ranks of form a majority of each quorum configuration? */
bool failover_has_quorum(const struct failover *f, const form_epoch *form);
bool failover_world_is_legal(const form_epoch *accepted, size_t n);
/* Was the accepted epoch formed by an acting leader? */
bool failover_by_leader(const struct failover *f);
/* Is form sound, with members of the accepted epoch only? */
bool failover_can_shrink(const struct failover *f, const form_epoch *form);
void failover_set_checkpoints(const struct failover *f, form_epoch *form);
void failover_set_worlds(const struct failover *f, form_epoch *form);

/* --- failover_messages.c ------------------------------------------------------------------------------------------ */
struct peer *failover_peer_of(const struct failover_state *s, const char *node); /* NULL = none */
/* Returns the address of the node's agent. NULL = the node has no rank in a quorum configuration, and its messages are
 * refused. */
const char *failover_address_of(const struct failover *f, const char *node);
void failover_keys(const struct failover *f, struct proof_keys *ret);
/* Sends m with proofs to that node's agent. Returns the message's id; 0 = the agent's address is unknown. */
uint64_t failover_send(const struct failover *f, const char *node, peer_message *m);
void failover_send_commit(const struct failover *f, const char *node);
void failover_report(const struct failover *f); /* sends the newest epoch of an acting leader to the coordinator */

/* --- failover_peers.c --------------------------------------------------------------------------------------------- */
void failover_ask_peers(const struct failover *f);
/* The first agent that answers and can promise; NULL = not known yet. */
const struct peer *failover_leader(const struct failover *f);
enum life { LIFE_UNKNOWN, LIFE_GONE, LIFE_THERE };
enum life failover_life_of(const struct failover *f, const Titan__Internal__Member *m);
void failover_on_ask(const struct failover *f, const peer_message *m);
void failover_on_state(const struct failover *f, const peer_message *m);

/* --- failover_propose.c ------------------------------------------------------------------------------------------- */
void failover_leader_tick(const struct failover *f); /* may free the state */
void failover_give_up(const struct failover *f);     /* ends the proposal; the next follows after a rest */
void failover_on_promise(const struct failover *f, const peer_message *m);
void failover_on_peer_quiesced(const struct failover *f, const peer_message *m);

/* --- failover_accept.c -------------------------------------------------------------------------------------------- */
void failover_on_propose(const struct failover *f, const peer_message *m);
void failover_on_revoke(const struct failover *f, const peer_message *m);
/* Handles a commit whose proof number `at` holds under key number `key` of keys. key -1 = an older version formed the
 * epoch, without a key. */
void failover_on_commit(const struct failover *f, const peer_message *m, const struct proof_keys *keys, int key,
                        size_t at);
void failover_relay(const struct failover *f, const Titan__Internal__WorkerQuiesced *q);

#endif
