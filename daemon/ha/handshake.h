/* SPDX-License-Identifier: Apache-2.0 */
/* handshake.h - the first bytes of each connection between two coordinators of one cluster.
 *
 * The side that connects sends its handshake, the other side answers with its own. Each side compares both and closes
 * the connection if they do not belong together, so each side can say why. */
#ifndef TITAN_DAEMON_HA_HANDSHAKE_H
#define TITAN_DAEMON_HA_HANDSHAKE_H

#include <stdint.h>

#include "base/error.h"
#include "daemon/common/ha_members.h"

enum { HANDSHAKE_VERSION = 1, HANDSHAKE_BYTES = 112 };

enum handshake_purpose {
    HANDSHAKE_FRAMES = 1,
    HANDSHAKE_RAFT
}; /* what follows: frames of transport.h, or libraft's bytes */

struct handshake {
    uint16_t version;
    enum handshake_purpose purpose;
    uint64_t id;       /* of the sender's log; never 0 */
    uint64_t members;  /* ha_members_hash() */
    uint64_t store_id; /* 0: the sender has no store yet */
    char name[HA_NAME_MAX];
};

void handshake_encode(const struct handshake *handshake, uint8_t out[HANDSHAKE_BYTES]);
/* The bytes are untrusted. TITAN_EINVAL: no handshake. Another version's handshake is decoded, too, for
 * handshake_compare(). */
titan_status handshake_decode(const uint8_t bytes[HANDSHAKE_BYTES], struct handshake *ret,
                              struct titan_error *err) TITAN_MUST_USE;
/* May `theirs` be the handshake of another member of this member's cluster? Else the reason, and TITAN_EINVAL. */
titan_status handshake_compare(const struct handshake *own, const struct ha_members *members,
                               const struct handshake *theirs, struct titan_error *err) TITAN_MUST_USE;

#endif
