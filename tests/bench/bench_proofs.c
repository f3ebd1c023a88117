/* SPDX-License-Identifier: Apache-2.0 */
/* bench_proofs.c - what the proof of a datagram takes: to make one, and to check it. Of a heartbeat, under one key.
 * Prints one JSON object with nanoseconds, the least of some rounds. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "daemon/common/proof.h"

enum { ROUNDS = 20, TIMES = 5000 };

int main(void)
{
    struct proof_keys keys = {.n = 1};
    memset(keys.key[0], 0x5a, MAC_BYTES);
    Titan__Internal__PeerHeartbeat heartbeat = TITAN__INTERNAL__PEER_HEARTBEAT__INIT;
    heartbeat.incarnation = UINT64_MAX / 3;
    heartbeat.hears = true;
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    m.from = (char *)"node-0001.cluster.example";
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_HEARTBEAT;
    m.heartbeat = &heartbeat;
    m.term = 12;
    uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES];
    double make_ns = 1e9, check_ns = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t begin = clock_mono_ns();
        for (int i = 0; i < TIMES; i++) {
            heartbeat.number++;
            proof_make(&m, &keys, proofs);
        }
        const int64_t made = clock_mono_ns();
        for (int i = 0; i < TIMES; i++) {
            size_t at;
            titan_assert(proof_find(&m, &keys, &at) == 0);
        }
        const double one = (double)(made - begin) / TIMES, other = (double)(clock_mono_ns() - made) / TIMES;
        make_ns = one < make_ns ? one : make_ns;
        check_ns = other < check_ns ? other : check_ns;
    }
    printf("{\"make_ns\": %.0f, \"check_ns\": %.0f}\n", make_ns, check_ns);
    return 0;
}
