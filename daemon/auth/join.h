/* SPDX-License-Identifier: Apache-2.0 */
/* join.h - everything a node needs to get its certificate, in one file: the coordinator's address, the CA, and the
 * one-time token of this node. TOML, so that a person can read it. */
#ifndef TITAN_DAEMON_AUTH_JOIN_H
#define TITAN_DAEMON_AUTH_JOIN_H

#include "daemon/auth/pki.h"
#include "proto/rpc/targets.h"

#define JOIN_FILE_MAX (128 * 1024)
#define JOIN_ADDRESS_MAX RPC_TARGETS_TEXT
#define JOIN_TOKEN_MAX 256

struct join_file {
    char node[PKI_NAME_MAX + 1], token[JOIN_TOKEN_MAX];
    char coordinator[JOIN_ADDRESS_MAX]; /* one address, or a list of possible addresses */
    char agents[JOIN_ADDRESS_MAX];      /* addresses for its session; "" = as coordinator */
    struct buf ca;
    int64_t expires_at_ms;
};

void join_print(const struct join_file *join, struct buf *out);
/* path: for messages. The text is untrusted. */
titan_status join_parse(const char *text, size_t len, const char *path, struct join_file *ret,
                        struct titan_error *err) TITAN_MUST_USE;
/* TITAN_EPERM: others than the owner may read the file. */
titan_status join_load(const char *path, struct join_file *ret, struct titan_error *err) TITAN_MUST_USE;
/* Prints only the fields node, coordinator and agents, which a node keeps after the join. They hold no secret. */
#define JOIN_PLACE_FILE "cluster.toml" /* beside its certificate */
void join_print_place(const struct join_file *join, struct buf *out);
titan_status join_load_place(const char *path, struct join_file *ret, struct titan_error *err) TITAN_MUST_USE;
void join_free(struct join_file *join);

#endif
