/* SPDX-License-Identifier: Apache-2.0 */
/* test_message_json.c - API messages as JSON. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "proto/message_json.h"
#include "titan/v1/titan.pb-c.h"

static void json_is(const ProtobufCMessage *message, const char *expected)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text};
    message_json(&w, NULL, message);
    assert_string_equal(text.data, expected);
    struct json *parsed = NULL;
    assert_int_equal(json_parse(text.data, text.len, &parsed, NULL), TITAN_OK);
    json_free(parsed);
}

static void test_job(void **state)
{
    (void)state;
    Titan__V1__Job job = TITAN__V1__JOB__INIT;
    job.id = 12;
    job.name = "a \"name\"";
    job.state = TITAN__V1__JOB_STATE__RUNNING;
    job.step = 3;
    job.steps = 10;
    job.loss = NAN;
    job.tokens_per_second = 1500.5;
    job.world_size = 4;
    job.submitted_at_ms = INT64_C(1763668800123);
    json_is(&job.base,
            "{\"id\":12,\"name\":\"a \\\"name\\\"\",\"state\":\"RUNNING\",\"reason\":null,\"step\":3,"
            "\"steps\":10,\"loss\":null,\"tokens_per_second\":1500.5,\"mfu\":0.0,\"world_size\":4,"
            "\"epoch\":0,\"restarts\":0,\"submitted_at\":\"2025-11-20T20:00:00.123Z\",\"started_at\":null,"
            "\"finished_at\":null,\"checkpoint\":null,\"user\":null,\"min_workers\":0,\"max_workers\":0,"
            "\"directory\":null,\"priority\":0,\"wanted_min\":0,\"wanted_max\":0,\"preemptions\":0,"
            "\"losses\":[],\"uid\":0,\"checkpoint_failures\":0,\"validation\":null,\"labels\":[],\"nodes\":[]}");
}

static void test_event(void **state)
{
    (void)state;
    Titan__V1__Event event = TITAN__V1__EVENT__INIT;
    event.id = 7;
    event.type = "worker.exited";
    event.message = "gone";
    event.rank = -1;
    event.at_ms = 1;
    event.detail = "{\"worker\":3}";
    json_is(&event.base, "{\"id\":7,\"job_id\":0,\"at\":\"1970-01-01T00:00:00.001Z\",\"type\":\"worker.exited\","
                         "\"message\":\"gone\",\"epoch\":0,\"step\":0,\"rank\":-1,\"node\":null,"
                         "\"detail\":{\"worker\":3},\"actor\":null}");
    event.detail = "{\n\"worker\":\"\177\"}"; /* JSON, but no line: as it is it would be two */
    json_is(&event.base, "{\"id\":7,\"job_id\":0,\"at\":\"1970-01-01T00:00:00.001Z\",\"type\":\"worker.exited\","
                         "\"message\":\"gone\",\"epoch\":0,\"step\":0,\"rank\":-1,\"node\":null,"
                         "\"detail\":\"{\\n\\\"worker\\\":\\\"\\u007f\\\"}\",\"actor\":null}");
    event.detail = "{broken"; /* not JSON: a string, so that the line stays JSON */
    json_is(&event.base, "{\"id\":7,\"job_id\":0,\"at\":\"1970-01-01T00:00:00.001Z\",\"type\":\"worker.exited\","
                         "\"message\":\"gone\",\"epoch\":0,\"step\":0,\"rank\":-1,\"node\":null,"
                         "\"detail\":\"{broken\",\"actor\":null}");
}

/* Log bytes are whatever a worker wrote. */
static void test_bytes(void **state)
{
    (void)state;
    Titan__V1__LogChunk chunk = TITAN__V1__LOG_CHUNK__INIT;
    uint8_t bytes[] = {'a', '\n', 0xff, 0, 0xc3, 0xa9, 0xc3};
    chunk.data.data = bytes;
    chunk.data.len = sizeof(bytes);
    json_is(
        &chunk.base,
        "{\"rank\":0,\"worker_id\":0,\"data\":\"a\\n\xef\xbf\xbd\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\",\"position\":0}");
}

static void test_lists(void **state)
{
    (void)state;
    Titan__V1__ListCheckpointsResponse list = TITAN__V1__LIST_CHECKPOINTS_RESPONSE__INIT;
    json_is(&list.base, "{\"checkpoints\":[]}");
    Titan__V1__Checkpoint one = TITAN__V1__CHECKPOINT__INIT, two = TITAN__V1__CHECKPOINT__INIT;
    Titan__V1__Checkpoint *both[] = {&one, &two};
    one.step = 1;
    two.step = 2;
    list.checkpoints = both;
    list.n_checkpoints = 2;
    json_is(&list.base, "{\"checkpoints\":[{\"step\":1,\"epoch\":0,\"path\":null,\"bytes\":0,\"committed_at\":null,"
                        "\"world_size\":0},{\"step\":2,\"epoch\":0,\"path\":null,\"bytes\":0,\"committed_at\":null,"
                        "\"world_size\":0}]}");
    Titan__V1__ListJobsRequest states = TITAN__V1__LIST_JOBS_REQUEST__INIT;
    Titan__V1__JobState wanted[] = {TITAN__V1__JOB_STATE__PENDING, TITAN__V1__JOB_STATE__FAILED};
    states.states = wanted;
    states.n_states = 2;
    json_is(&states.base, "{\"states\":[\"PENDING\",\"FAILED\"],\"user\":null,\"page_size\":0,\"page_token\":null,"
                          "\"name\":null,\"labels\":[],\"count\":false}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job),
        cmocka_unit_test(test_event),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_lists),
    };
    return cmocka_run_group_tests_name("message_json", tests, NULL, NULL);
}
