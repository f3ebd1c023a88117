/* SPDX-License-Identifier: Apache-2.0 */
/* handshake.c - see handshake.h. Numbers are little-endian:
 *   0 magic, 8 version (2), 10 purpose (1), 11 zeros (5), 16 id, 24 members, 32 store_id, 40 name with zeros, 104 zeros
 */
#include "daemon/ha/handshake.h"

#include <endian.h>
#include <inttypes.h>
#include <string.h>

static const char magic[8] = {'T', 'I', 'T', 'A', 'N', '-', 'H', 'A'};
enum { AT_VERSION = 8, AT_PURPOSE = 10, AT_ID = 16, AT_MEMBERS = 24, AT_STORE = 32, AT_NAME = 40 };
enum { AT_END = AT_NAME + HA_NAME_MAX };
_Static_assert((int)AT_END <= (int)HANDSHAKE_BYTES, "a handshake has room for its name");

static void put64(uint8_t *at, uint64_t v)
{
    v = htole64(v);
    memcpy(at, &v, sizeof(v));
}

static uint64_t get64(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof(v));
    return le64toh(v);
}

void handshake_encode(const struct handshake *handshake, uint8_t out[HANDSHAKE_BYTES])
{
    titan_assert(handshake->id > 0 && handshake->name[0] && strlen(handshake->name) < HA_NAME_MAX);
    memset(out, 0, HANDSHAKE_BYTES);
    memcpy(out, magic, sizeof(magic));
    out[AT_VERSION] = (uint8_t)handshake->version;
    out[AT_VERSION + 1] = (uint8_t)(handshake->version >> 8);
    out[AT_PURPOSE] = (uint8_t)handshake->purpose;
    put64(out + AT_ID, handshake->id);
    put64(out + AT_MEMBERS, handshake->members);
    put64(out + AT_STORE, handshake->store_id);
    memcpy(out + AT_NAME, handshake->name, strlen(handshake->name));
}

titan_status handshake_decode(const uint8_t bytes[HANDSHAKE_BYTES], struct handshake *ret, struct titan_error *err)
{
    uint8_t again[HANDSHAKE_BYTES];
    *ret = (struct handshake){.version = (uint16_t)(bytes[AT_VERSION] | bytes[AT_VERSION + 1] << 8)};
    if (memcmp(bytes, magic, sizeof(magic)) != 0)
        return titan_fail(err, TITAN_EINVAL, "its first bytes are no coordinator's");
    if (ret->version != HANDSHAKE_VERSION)
        return TITAN_OK; /* the rest may mean something else */
    ret->purpose = bytes[AT_PURPOSE];
    ret->id = get64(bytes + AT_ID);
    ret->members = get64(bytes + AT_MEMBERS);
    ret->store_id = get64(bytes + AT_STORE);
    memcpy(ret->name, bytes + AT_NAME, HA_NAME_MAX);
    const bool known = ret->purpose == HANDSHAKE_FRAMES || ret->purpose == HANDSHAKE_RAFT;
    if (known && ret->id > 0 && !ret->name[HA_NAME_MAX - 1] && ha_name_ok(ret->name)) {
        handshake_encode(ret, again); /* no byte is left without a meaning */
        if (memcmp(again, bytes, HANDSHAKE_BYTES) == 0)
            return TITAN_OK;
    }
    *ret = (struct handshake){0};
    return titan_fail(err, TITAN_EINVAL, "its handshake is damaged");
}

titan_status handshake_compare(const struct handshake *own, const struct ha_members *members,
                               const struct handshake *theirs, struct titan_error *err)
{
    if (theirs->version != own->version)
        return titan_fail(err, TITAN_EINVAL, "it speaks version %u between coordinators, this one version %u",
                          theirs->version, own->version);
    if (theirs->members != own->members)
        return titan_fail(err, TITAN_EINVAL, "its config has other members in [ha] ('%s')", theirs->name);
    if (ha_members_find(members, theirs->name) < 0)
        return titan_fail(err, TITAN_EINVAL, "its name '%s' is not in members of [ha]", theirs->name);
    if (strcmp(theirs->name, own->name) == 0)
        return titan_fail(err, TITAN_EINVAL, "it has this member's own name '%s'", theirs->name);
    if (theirs->id == own->id)
        return titan_fail(err, TITAN_EINVAL, "'%s' runs on a copy of this member's state directory", theirs->name);
    if (theirs->store_id && own->store_id && theirs->store_id != own->store_id)
        return titan_fail(err, TITAN_EINVAL, "'%s' has another job store: %016" PRIx64 ", this member has %016" PRIx64,
                          theirs->name, theirs->store_id, own->store_id);
    return TITAN_OK;
}
