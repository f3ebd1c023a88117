/* SPDX-License-Identifier: Apache-2.0 */
/* An agent's record of a job as its folder may hold it, under a right checksum: what is read is what a message could
 * say, and the next agent goes on with it. */
#include "tests/fuzz/message.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "daemon/agent/agent_core.h"
#include "daemon/agent/shell/records.h"
#include "proto/ranges.h"

static const char *const texts[] = {"here", "evil", "b", "", "127.0.0.1:7", "/c/step-00000005", NULL};

static void take(const Titan__Internal__AgentJobRecord *record, void *data)
{
    fuzz_assert(record->job_id == 1 && range_check(&record->base, NULL) == TITAN_OK);
    agent_core_restore_job(data, record);
}

static void go_on(struct agent_core *c)
{
    struct agent_actions out;
    for (int64_t now = 1000; now < 30000; now += 700) {
        agent_actions_init(&out);
        if (now == 1700)
            agent_core_session_up(c, now, &out);
        else if (now == 3100)
            agent_core_session_down(c, now, &out);
        else
            agent_core_tick(c, now, &out);
        agent_actions_free(&out);
    }
}

/* The first byte: 0 = the bytes as they are, 1 = under a checksum, else a record is made of them. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char jobs[128], path[160];
    struct titan_error err = {0};
    struct agent_core *c = NULL;
    struct fuzz_input in = {data, size};
    const uint64_t how = fuzz_take(&in, 1);
    const struct agent_core_options options = {.node = "here",
                                               .device = "cpu",
                                               .address = "10.0.0.1",
                                               .version = "1",
                                               .slots = 4,
                                               .incarnation = 5,
                                               .seed = 6,
                                               .peer_port = 7,
                                               .leader_lease_ms = 20000,
                                               .away_ms = 500};
    (void)snprintf(jobs, sizeof(jobs), "%s/jobs", fuzz_folder());
    (void)snprintf(path, sizeof(path), "%s/1.epoch", jobs);
    (void)mkdir(jobs, 0700);
    if (how > 1) {
        ProtobufCMessage *m = fuzz_message(&in, &titan__internal__agent_job_record__descriptor, texts, -1);
        fuzz_assert(record_write_job(fuzz_folder(), (Titan__Internal__AgentJobRecord *)m, &err) == TITAN_OK);
        if (((Titan__Internal__AgentJobRecord *)m)->job_id != 1)
            record_forget_job(fuzz_folder(), ((Titan__Internal__AgentJobRecord *)m)->job_id);
        protobuf_c_message_free_unpacked(m, NULL);
    } else {
        uint8_t *bytes = malloc(in.len + 5);
        fuzz_assert(bytes);
        const uint32_t crc = crc32c(0, in.data, in.len);
        for (int i = 0; i < 4; i++)
            bytes[i] = (uint8_t)(crc >> (8 * i));
        if (in.len)
            memcpy(bytes + 4, in.data, in.len);
        fuzz_file(path, how ? bytes : bytes + 4, in.len + (how ? 4 : 0));
        free(bytes);
    }
    fuzz_assert(agent_core_new(&options, &c, &err) == TITAN_OK);
    titan_status status = record_read_jobs(fuzz_folder(), take, c, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    go_on(c);
    agent_core_free(c);
    (void)unlink(path);
    return 0;
}
