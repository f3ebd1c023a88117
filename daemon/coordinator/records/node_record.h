/* SPDX-License-Identifier: Apache-2.0 */
/* node_record.h - nodes: the table of them, and what can be asked of one. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_NODE_RECORD_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_NODE_RECORD_H

#include "base/mac.h"
#include "state/node.h"
#include "state/node_policy.h"
#include "titan/internal/agent.pb-c.h"

struct core;
struct core_time;

#define NODE_CRASHES 16 /* that are remembered */
/* Others are asked whether they reach a silent node. */
#define PROBE_ASKED_MAX 3
struct probe {
    uint64_t id;
    int64_t at;                         /* when they were asked; 0 = it is not suspected */
    uint64_t sessions[PROBE_ASKED_MAX]; /* of those that were asked; 0 = it has answered */
    uint32_t asked, reached, denied;
    bool held; /* the round before had reached it */
};

struct noderec {
    struct noderec *next, *hash_next;
    char *name, *device, *address, *version;
    char *identity; /* of the sender of its last registration; "" = not known */
    enum node_state state;
    uint64_t session; /* 0 = not connected */
    uint32_t slots, used;
    uint64_t memory_bytes, incarnation;
    uint8_t installation[NODE_INSTALLATION]; /* zeros = not known */
    uint32_t peer_port;                      /* UDP; 0 = none */
    bool unchecked;                          /* it has not said yet whether jobs can have their folders there */
    char *unfit;                             /* ... why they cannot; "" or NULL = they can */
    bool silent;                     /* a command to start a worker was not answered, nor anything said of one since */
    Titan__Internal__NodeGpus *gpus; /* of its slots, as its agent said last; owned. NULL = nothing is known */
    bool lifting;                    /* its agent is asked to look at them again, and has not said anything since */
    bool awaited;                    /* it has not registered since the coordinator's start */
    int64_t seen_mono, seen_wall;
    /* For its datagrams: of the newest session; and the newest that it is known to have, as its acknowledgement may be
     * late. */
    bool keyed, key_had, unkeyed; /* unkeyed: its agent is of an older version, and proves nothing */
    uint8_t key[MAC_BYTES], had[MAC_BYTES];
    int64_t stream_mono, datagram_mono; /* a message of its stream, a heartbeat as a datagram, last */
    struct node_policy policy;          /* name is ours; the texts are owned */
    bool in_window;                     /* its maintenance window, or the drain ahead of it, is in force */
    bool said_drained;
    bool ephemeral;         /* its record goes by itself when it is gone */
    bool given_up;          /* an operator has said that it is gone for good */
    int64_t drain_at;       /* what is still there then is stopped; INT64_MAX = never */
    uint64_t leaving;       /* incarnation of the agent that is told to stop; 0 = none */
    int64_t leave_at;       /* workers that are still there then are stopped */
    int64_t quarantine_end; /* 0 = it is not in quarantine */
    struct crash {
        int64_t at;
        uint64_t job_id;
    } crashes[NODE_CRASHES]; /* the last ones, as a ring */
    uint64_t n_crashes;
    int64_t answered_mono; /* a heartbeat of it, last */
    bool unconfirmed; /* no heartbeat has followed its registration, which may be older than what the agent has done */
    struct noderec *session_next;
    struct probe probe;
    int64_t lost_mono;           /* last; 0 = never */
    int64_t steady_at, quiet_ms; /* no new work until its heartbeats have come well until then; 0 = it gets work */
    uint32_t flaps;
    int64_t said_mono; /* a refusal was last logged */
    struct node_refusals {
        uint64_t old_terms, old_epochs, other_epochs, forged, out_of_range, unproved;
    } refusals;     /* of its agent, as that reports them */
    uint64_t round; /* in which it was sent something, see send_to_members */
    uint32_t mine;  /* workers of the job that is being placed */
    uint32_t first; /* of the members of the epoch that is being formed, the first on it */
};

struct noderec *core_find_node(const struct core *c, const char *name);
struct noderec *core_find_session(const struct core *c, uint64_t session);
struct noderec *core_add_node(struct core *c, const char *name, enum node_state state);
struct noderec *core_expect_node(struct core *c, const char *name); /* found, or one that is to register yet */
void node_free(struct noderec *n);
/* It has no session, and nothing points to it. */
void core_drop_node(struct core *c, struct noderec *n);
void core_set_session(struct core *c, struct noderec *n, uint64_t session); /* 0 = none */
bool node_name_ok(const char *name);
bool node_leaves(const struct noderec *n);             /* its agent is told to stop: what ends there is drained */
bool node_empties(const struct noderec *n);            /* workers on it have to go */
bool node_unfit(const struct noderec *n);              /* jobs cannot have their folders there, or no worker starts */
const char *node_unfit_words(const struct noderec *n); /* why */
bool node_accepts(const struct noderec *n);            /* new workers may start there */
/* It has some time to come back before its workers count as lost. */
void node_awaited(struct core *c, struct noderec *n, struct core_time now);
void node_is(struct noderec *n,
             const struct node *is); /* what its agent says of it; name, state and times are not taken */
void node_take_policy(struct noderec *n, const struct node_policy *is);

#endif
