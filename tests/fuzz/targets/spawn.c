/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent sends titan-spawnd, which is root: a packet with any number of descriptors. What is parsed is within
 * its bounds, and packs to the same packet. */
#include "tests/fuzz/common.h"

#include <string.h>

#include "daemon/spawn/spawn_child.h"
#include "daemon/spawn/spawn_frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    const size_t n_fds = fuzz_take(&in, 1) % (SPAWN_FDS + 3);
    struct spawn_request r, again;
    struct titan_error err = {0};
    static char packed[SPAWN_FRAME_MAX];
    static const struct spawn_policy policy = {
        .agent = 900, .uid_min = 1000, .group = SPAWN_NO_GROUP, .worker = "/bin/true", .memory = 1 << 30, .cpus = 8};
    const titan_status status = spawn_request_parse(in.data, in.len, n_fds, &r, &err);
    if (status != TITAN_OK) {
        fuzz_error(status, &err);
        return 0;
    }
    fuzz_assert(r.kind == SPAWN_START || r.kind == SPAWN_SIGNAL || r.kind == SPAWN_ASK || r.kind == SPAWN_LIMITS);
    fuzz_assert((r.worker_id == 0) == (r.kind == SPAWN_LIMITS));
    if (r.kind == SPAWN_START) {
        fuzz_assert(r.uid != 0 && r.page[0] == '/' && r.directory[0] == '/' && n_fds >= SPAWN_FLIGHT);
        for (size_t i = 0; i < r.n_env; i++)
            fuzz_assert(strncmp(r.env[i], "LD_", 3) != 0 && strncmp(r.env[i], "PATH", 4) != 0 && strchr(r.env[i], '='));
        if (spawn_policy_check(&policy, &r, &err) == TITAN_OK)
            fuzz_assert(r.uid >= 1000 && r.memory <= policy.memory && r.cpus <= 8000);
    }
    const size_t len = spawn_request_pack(&r, packed, sizeof(packed));
    fuzz_assert(len > 0 && spawn_request_parse(packed, len, n_fds, &again, NULL) == TITAN_OK);
    fuzz_assert(again.uid == r.uid && again.n_env == r.n_env && again.signal == r.signal);
    return 0;
}
