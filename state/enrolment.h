/* SPDX-License-Identifier: Apache-2.0 */
/* enrolment.h - machines that may become nodes, and certificates that are revoked.
 *
 * A join token admits one node, once, until it expires; the store has the SHA-256 of its secret. The first use binds
 * the token to a key. If the reply was lost, the same node may ask again with this key. Revoking a name revokes all its
 * certificates that begin at or before that moment. */
#ifndef TITAN_STATE_ENROLMENT_H
#define TITAN_STATE_ENROLMENT_H

#include "state/db.h"

#define ENROLMENT_HASH 32  /* bytes of a secret's and of a key's hash */
#define ENROLMENT_NODE 256 /* bytes of a node's name */

struct join {
    const char *id, *node, *created_by;
    const unsigned char *hash;
    int64_t created_at_ms, expires_at_ms;
    int64_t used_at_ms; /* 0 = unused */
};

/* Records the event node.invited; removes tokens that expired more than a day ago. */
titan_status enrolment_join_add(struct db *db, const struct join *join, struct titan_error *err) TITAN_MUST_USE;
/* Oldest first; hash is not read. */
titan_status enrolment_join_list(struct db *db, bool (*each)(const struct join *join, void *data), void *data,
                                 struct titan_error *err) TITAN_MUST_USE;
/* Revokes a join token. Records node.uninvited. ret_node gets the node's name. TITAN_ENOTFOUND. */
titan_status enrolment_join_revoke(struct db *db, const char *id, const char *by, int64_t now_ms,
                                   char ret_node[ENROLMENT_NODE], struct titan_error *err) TITAN_MUST_USE;
/* Does this join token exist with this secret? Read-only. TITAN_EPERM: no. */
titan_status enrolment_join_find(struct db *db, const char *id, const unsigned char hash[ENROLMENT_HASH],
                                 struct titan_error *err) TITAN_MUST_USE;
/* A machine that wants to become a node. */
struct join_use {
    const char *id, *node;
    const unsigned char *hash, *key_hash; /* of the token's secret, and of the machine's key: ENROLMENT_HASH bytes */
    int64_t now_ms;
};
/* Uses a join token. ret_made_ms: time of its creation. refusal: TITAN_OK, or TITAN_EPERM with the reason: the token or
 * its secret is wrong (same text for both), the token is of another node or expired, or another key has used it.
 * Records node.enrolled, or node.enrol_refused if the secret was right. */
titan_status enrolment_join_use(struct db *db, const struct join_use *use, int64_t *ret_made_ms,
                                struct titan_error *refusal, struct titan_error *err) TITAN_MUST_USE;

struct revocation {
    const char *uri, *reason, *by;
    const char *node; /* NULL = not a node's certificate; set for listed revocations */
    int64_t at_ms;
};
/* Records certificate.revoked. A later revocation of the same name replaces the earlier revocation. Join tokens of the
 * node, used or not, become void. */
titan_status revocation_put(struct db *db, const struct revocation *r, struct titan_error *err) TITAN_MUST_USE;
titan_status revocation_list(struct db *db, bool (*each)(const struct revocation *r, void *data), void *data,
                             struct titan_error *err) TITAN_MUST_USE;

#endif
