/* SPDX-License-Identifier: Apache-2.0 */
/* transport.h - connections between the coordinators of one cluster: libraft's, and frames of our own on the same port.
 *
 * Each connection begins with handshakes (handshake.h). With TLS both sides prove a coordinator's certificate of the
 * cluster. A wrong peer gets no connection; it is logged once a minute and counted. The transport keeps one outgoing
 * connection for frames to each other member, and opens it anew when it ends. Everything runs on one loop's thread. */
#ifndef TITAN_DAEMON_HA_TRANSPORT_H
#define TITAN_DAEMON_HA_TRANSPORT_H

#include "daemon/ha/handshake.h"
#include "daemon/ha/libraft.h"
#include "proto/rpc/tls.h"

enum { TRANSPORT_FRAME_MAX = 512 };

struct transport;

struct transport_options {
    const struct ha_members *members; /* copied */
    const char *name;                 /* this member's */
    const char *listen;               /* HOST:PORT */
    const struct rpc_tls *tls;        /* NULL: no TLS */
    uint64_t id, store_id;            /* as in struct handshake */
    /* A frame of another member. */
    void (*frame)(void *data, int member, const uint8_t *bytes, size_t len);
    /* Frames to this member pass from now on, or no longer. May be NULL. */
    void (*reached)(void *data, int member, bool reached);
    void *data;
};

struct transport_counters {
    uint64_t accepted, connected; /* connections that began with two right handshakes */
    uint64_t refused;             /* wrong peers, garbage, connections beyond the limit */
    uint64_t dropped;             /* frames to a member that takes none */
};

/* Listens and connects from now on. TITAN_EEXIST: the address is taken. After a failure the loop frees what was opened.
 * */
titan_status transport_open(uv_loop_t *loop, const struct transport_options *options, struct transport **ret,
                            struct titan_error *err) TITAN_MUST_USE;
/* After libraft has closed its side. Calls done(data) on the loop; the transport is freed before. */
void transport_close(struct transport *t, void (*done)(void *), void *data);
/* libraft's view; valid until transport_close(). */
struct raft_uv_transport *transport_raft(struct transport *t);
/* Sends len <= TRANSPORT_FRAME_MAX bytes. A frame may be lost, as a datagram may; frames that arrive are in order. */
void transport_send(struct transport *t, int member, const void *bytes, size_t len);
/* The id of the member's newest handshake; 0: it has never connected. */
uint64_t transport_id(const struct transport *t, int member);
bool transport_reached(const struct transport *t, int member);
struct transport_counters transport_counters(const struct transport *t);

#endif
