/* SPDX-License-Identifier: Apache-2.0 */
/* libraft.h - libraft 0.15 (canonical's) and 0.22 (cowsql's): what differs between them. */
#ifndef TITAN_DAEMON_HA_LIBRAFT_H
#define TITAN_DAEMON_HA_LIBRAFT_H

#include <raft.h>
#include <raft/uv.h>
#include <stdint.h>

#ifdef RAFT_UV_TRACER_WRITE_SUBMIT /* only 0.22 has this */
#define RAFT_IO_REQUEST_VOTE RAFT_REQUEST_VOTE
#define RAFT_IO_REQUEST_VOTE_RESULT RAFT_REQUEST_VOTE_RESULT
#define LIBRAFT_TRANSPORT_VERSION .version = 1,
#else
#define LIBRAFT_TRANSPORT_VERSION
#endif

/* The last entry that a server of the configuration has confirmed to this leader. */
static inline uint64_t libraft_confirmed(const struct raft *raft, unsigned server)
{
#ifdef RAFT_UV_TRACER_WRITE_SUBMIT
    raft_index index = 0;
    return raft_match_index(raft, raft->configuration.servers[server].id, &index) == 0 ? index : 0;
#else
    return raft->leader_state.progress ? raft->leader_state.progress[server].match_index : 0;
#endif
}

#endif
