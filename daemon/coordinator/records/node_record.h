/* SPDX-License-Identifier: Apache-2.0 */
/* node_record.h - the table of nodes, and questions about one node. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_NODE_RECORD_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_NODE_RECORD_H

#include "base/mac.h"
#include "state/node.h"
#include "state/node_policy.h"
#include "titan/internal/agent.pb-c.h"

struct core;
struct core_time;

#define NODE_CRASHES 16 /* crashes remembered per node */
/* Most nodes asked to probe one silent node. */
#define PROBE_ASKED_MAX 3
struct probe {
    uint64_t id;
    int64_t at;                         /* start of the round; 0 = the node is not suspected */
    uint64_t sessions[PROBE_ASKED_MAX]; /* sessions of the probing nodes; 0 = answered */
    uint32_t asked, reached, denied;
    bool held; /* earlier rounds reached the node */
};

struct noderec {
    struct noderec *next, *hash_next;
    char *name, *device, *address, *version;
    char *identity; /* sender of its last registration; "" = unknown */
    enum node_state state;
    uint64_t session; /* 0 = not connected */
    uint32_t slots, used;
    uint64_t memory_bytes, incarnation;
    uint8_t installation[NODE_INSTALLATION]; /* zeros = unknown */
    uint32_t peer_port;                      /* UDP; 0 = none */
    bool unchecked; /* the node has not yet reported whether jobs can have their folders there */
    char *unfit;    /* why jobs cannot have their folders there; "" or NULL = they can */
    /* the node did not answer a command to start a worker, and has reported no worker since */
    bool silent;
    Titan__Internal__NodeGpus *gpus; /* GPUs of its slots, as last reported; owned; NULL = unknown */
    bool lifting;                    /* its agent was asked to check the GPUs again and has not answered */
    bool awaited;                    /* the node has not registered since the coordinator's start */
    int64_t seen_mono, seen_wall;
    /* Its silence may last so much longer, because its agent has no workers and promised rare heartbeats; 0 = it has
     * promised nothing. called_mono: when a worker was found that its agent may not know yet; 0 = none. */
    int64_t slack_ms, called_mono;
    /* Keys of the node's datagrams. key: the newest session's key. The agent may get its acknowledgement, with this
     * key, late. So `had` is the newest key that the agent is known to have. */
    bool keyed, key_had, unkeyed; /* unkeyed: an older agent, which proves nothing */
    uint8_t key[MAC_BYTES], had[MAC_BYTES];
    int64_t stream_mono, datagram_mono; /* last message of its stream; last heartbeat by datagram */
    struct node_policy policy;          /* name points to ours; the texts are owned */
    bool in_window;                     /* its maintenance window, or the drain before it, is in force */
    bool reported_drained;
    bool ephemeral;         /* its record is removed automatically once the node is gone */
    bool given_up;          /* an operator has declared it gone for good */
    int64_t drain_at;       /* time at which its remaining workers are stopped; INT64_MAX = never */
    uint64_t leaving;       /* incarnation of the agent told to stop; 0 = none */
    int64_t leave_at;       /* time at which the remaining workers of a leaving agent are stopped */
    int64_t quarantine_end; /* 0 = not in quarantine */
    struct crash {
        int64_t at;
        uint64_t job_id;
    } crashes[NODE_CRASHES]; /* ring of the last crashes */
    uint64_t n_crashes;
    int64_t answered_mono; /* last heartbeat or registration */
    bool unconfirmed; /* no heartbeat has followed its registration, which may be older than the agent's last acts */
    struct noderec *session_next;
    struct probe probe;
    int64_t lost_mono;           /* last loss; 0 = never */
    int64_t steady_at, quiet_ms; /* no new work until steady_at, if heartbeats come well until then; 0 = it gets work */
    uint32_t flaps;
    int64_t reported_mono; /* time of the last logged refusal */
    struct node_refusals {
        uint64_t old_terms, old_epochs, other_epochs, forged, out_of_range, unproved;
    } refusals;     /* refusals as its agent counts them */
    uint64_t round; /* the newest round of send_to_members that reached the node */
    uint32_t mine;  /* the node's workers of the job that is being placed */
    uint32_t first; /* index of the node's first member in the epoch being formed */
};

struct noderec *core_find_node(const struct core *c, const char *name);
struct noderec *core_find_session(const struct core *c, uint64_t session);
struct noderec *core_add_node(struct core *c, const char *name, enum node_state state);
struct noderec *core_expect_node(struct core *c, const char *name); /* finds the node, or adds an unregistered one */
void node_free(struct noderec *n);
/* Removes the node. It must have no session, and nothing may point to it. */
void core_drop_node(struct core *c, struct noderec *n);
void core_set_session(struct core *c, struct noderec *n, uint64_t session); /* 0 = none */
bool node_name_ok(const char *name);
/* its agent was told to stop, so workers that end on the node count as drained */
bool node_leaves(const struct noderec *n);
bool node_empties(const struct noderec *n);            /* workers on it have to go */
bool node_unfit(const struct noderec *n);              /* jobs cannot have their folders there, or no worker starts */
const char *node_unfit_words(const struct noderec *n); /* why the node is unfit */
bool node_accepts(const struct noderec *n);            /* new workers may start there */
/* The heartbeat interval that the node's agent may promise while it has no workers; 0 = it may not. */
uint32_t node_idle_ms(const struct core *c, const struct noderec *n);
/* Gives the node some time to return before its workers count as lost. */
void node_awaited(struct core *c, struct noderec *n, struct core_time now);
/* takes the agent's data from `is`; name, state and times stay */
void node_is(struct noderec *n, const struct node *is);
void node_take_policy(struct noderec *n, const struct node_policy *is);

#endif
