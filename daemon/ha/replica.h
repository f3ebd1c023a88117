/* SPDX-License-Identifier: Apache-2.0 */
/* replica.h - one of several coordinators, on a thread of its own: member.h over libraft's disk and transport.h.
 *
 * It begins as a follower of the cluster's log. The first start of a cluster needs all members; later a majority is
 * enough. A member with an empty disk, or whose log is older than what it once confirmed, joins as a new one.
 *
 * titand loads this as a plug-in (replica_plugin), so that an installation without [ha] needs no libraft. This header
 * names nothing of libraft. */
#ifndef TITAN_DAEMON_HA_REPLICA_H
#define TITAN_DAEMON_HA_REPLICA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/common/ha_members.h"
#include "proto/rpc/tls.h"

struct replica;

struct replica_options {
    const char *state_dir;            /* of titan.db; the log is in its folder ha */
    const struct ha_members *members; /* copied, as all of this */
    const char *name, *listen;
    const struct rpc_tls *tls; /* NULL: no TLS */
    uint32_t election_ms;
    /* This member leads. titan.db is closed: the owner opens it with store_open_led(), this term and append(). Called
     * on the replica's thread, as over(). */
    void (*leads)(void *data, uint64_t term);
    /* The member does nothing any more; the process has to start anew. err->status TITAN_OK: it no longer leads. */
    void (*over)(void *data, const struct titan_error *err);
    void *data;
};

enum replica_role { REPLICA_ABSENT, REPLICA_JOINING, REPLICA_STAND_BY, REPLICA_VOTER };

/* What a member knows of the cluster, at most a second old. */
struct replica_view {
    int self, leader; /* positions in the list of members; leader -1: not known */
    bool leads;       /* this member leads and holds the lease */
    uint64_t last;    /* the last entry of this member's log */
    uint64_t number;  /* of the last record in its titan.db */
    uint64_t refused; /* wrong peers so far */
    struct {
        bool reached;
        enum replica_role role;
        uint64_t lag; /* entries that it has not confirmed; at the leader only */
    } members[HA_MEMBERS_MAX];
};

#define REPLICA_ABI 1

struct replica_plugin {
    uint32_t abi;
    /* TITAN_EEXIST: the address is taken. */
    titan_status (*open)(const struct replica_options *options, struct replica **ret, struct titan_error *err);
    /* Ends the thread, and waits for it. Nothing is called afterwards. */
    void (*close)(struct replica *r);
    /* Any thread. */
    bool (*may_answer)(const struct replica *r);
    void (*view)(struct replica *r, struct replica_view *ret);
    /* struct group_log.append with the replica as data: for the store's writer. */
    titan_status (*append)(void *data, uint64_t number, const void *bytes, size_t len, struct titan_error *err);
    /* Makes another member the leader, -1: any. over() follows. Nothing may be written any more. */
    void (*hand_over)(struct replica *r, int to);
};
/* Found by its name in the plug-in. */
typedef const struct replica_plugin *(*replica_plugin_fn)(void);
const struct replica_plugin *titan_replica_plugin(void);

#endif
