/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded fuzzing of what comes in over gRPC: messages of every type out of changed bytes, and the descriptor set.
 * Whatever the bytes, the answer is a status with a message; what is accepted packs again, is UTF-8 throughout and was
 * decoded within its budget. FUZZ_SEED and FUZZ_ROUNDS repeat or lengthen a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "ctl/output.h"
#include "proto/message_json.h"
#include "proto/rpc/common.h"
#include "proto/rpc/services.h"
#include "titan/internal/agent.pb-c.h"
#include "titan/internal/enrol.pb-c.h"
#include "titan/internal/worker.pb-c.h"
#include "titan/v1/titan.pb-c.h"
#include "titan/wire/health.pb-c.h"
#include "titan/wire/reflection.pb-c.h"
#include "tests/support/seeded.h"
#include "tests/support/sets.h"

enum { BYTES_MAX = 4096, BUDGET = 64 * 1024 };

static long rounds;

static int set_up(void **state)
{
    (void)state;
    seeded_open("rpc fuzz", 0);
    rounds = seeded_rounds(2500, 20000);
    rpc_library_enter();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rpc_library_leave();
    return 0;
}

static const ProtobufCMessageDescriptor *const types[] = {
    &titan__v1__submit_request__descriptor,
    &titan__v1__list_jobs_request__descriptor,
    &titan__v1__list_jobs_response__descriptor,
    &titan__v1__event__descriptor,
    &titan__v1__log_chunk__descriptor,
    &titan__internal__agent_message__descriptor,
    &titan__internal__coordinator_message__descriptor,
    &titan__internal__worker_to_agent__descriptor,
    &titan__internal__agent_to_worker__descriptor,
    &titan__internal__peer_message__descriptor,
    &titan__internal__enroll_request__descriptor,
    &titan__internal__enroll_response__descriptor,
    &titan__internal__renew_request__descriptor,
    &grpc__health__v1__health_check_request__descriptor,
    &grpc__reflection__v1alpha__server_reflection_request__descriptor,
    &grpc__reflection__v1alpha__server_reflection_response__descriptor,
};

/* Wire format that is right more often than not: fields of the type with values of their kind, nested some levels. */
static size_t write_fields(const ProtobufCMessageDescriptor *type, uint8_t *out, size_t cap, int depth)
{
    size_t n = 0;
    for (uint32_t k = seeded_draw(6); k > 0 && type->n_fields > 0 && n + 32 < cap; k--) {
        const ProtobufCFieldDescriptor *field = &type->fields[seeded_draw(type->n_fields)];
        uint8_t body[BYTES_MAX];
        size_t len = 0;
        if (field->type == PROTOBUF_C_TYPE_MESSAGE && depth < 4) {
            len = write_fields(field->descriptor, body, MIN(cap - n - 16, sizeof(body)), depth + 1);
        } else if (field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_BYTES ||
                   field->type == PROTOBUF_C_TYPE_MESSAGE) {
            for (len = 0; len < seeded_draw(12); len++)
                body[len] = (uint8_t)(seeded_draw(10) ? 'a' + seeded_draw(26) : seeded_draw(256));
        } else {
            uint32_t wire = field->type == PROTOBUF_C_TYPE_DOUBLE ? 1 : 0;
            out[n++] = (uint8_t)((field->id & 15) << 3 | wire);
            for (uint32_t b = wire ? 8 : seeded_draw(9); b > 0; b--)
                out[n++] = (uint8_t)(seeded_draw(256) | (wire ? 0 : 0x80));
            if (!wire)
                out[n++] = (uint8_t)seeded_draw(128);
            continue;
        }
        if (field->id > 15 || n + len + 4 > cap)
            continue;
        out[n++] = (uint8_t)(field->id << 3 | 2);
        if (len >= 128)
            out[n++] = (uint8_t)(len | 0x80);
        out[n++] = (uint8_t)(len >= 128 ? len >> 7 : len);
        memcpy(out + n, body, len);
        n += len;
    }
    return n;
}

static void mutate(uint8_t *bytes, size_t *n)
{
    for (uint32_t k = seeded_draw(4); k > 0 && *n > 0; k--) {
        if (seeded_draw(4) == 0)
            *n = seeded_draw((uint32_t)*n + 1);
        else
            bytes[seeded_draw((uint32_t)*n)] = (uint8_t)seeded_draw(256);
    }
}

/* In one to four slices, as it comes off the wire. */
static grpc_byte_buffer *buffer_of(const uint8_t *bytes, size_t n)
{
    grpc_slice slices[4];
    size_t parts = 1 + seeded_draw(4), at = 0;
    for (size_t i = 0; i < parts; i++) {
        size_t len = i + 1 == parts ? n - at : seeded_draw((uint32_t)(n - at) + 1);
        slices[i] = grpc_slice_from_copied_buffer((const char *)bytes + at, len);
        at += len;
    }
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(slices, parts);
    for (size_t i = 0; i < parts; i++)
        grpc_slice_unref(slices[i]);
    return buffer;
}

static void test_messages(void **state)
{
    (void)state;
    long accepted = 0;
    for (long i = 0; i < rounds; i++) {
        const ProtobufCMessageDescriptor *type = types[seeded_draw(ARRAY_SIZE(types))];
        uint8_t bytes[BYTES_MAX];
        size_t n = write_fields(type, bytes, sizeof(bytes), 0);
        mutate(bytes, &n);
        grpc_byte_buffer *buffer = buffer_of(bytes, n);
        ProtobufCMessage *message = NULL;
        struct titan_error err = {0};
        titan_status status = rpc_unpack(buffer, type, BUDGET, &message, &err);
        grpc_byte_buffer_destroy(buffer);
        if (status != TITAN_OK) {
            assert_int_equal(status, TITAN_EINVAL);
            assert_null(message);
            assert_true(err.msg[0] != '\0');
            continue;
        }
        accepted++;
        buffer = rpc_pack(message);
        grpc_byte_buffer_destroy(buffer);
        /* What was accepted can be shown: strict JSON again. */
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        struct json_writer w = {.out = &text};
        message_json(&w, NULL, message);
        struct json *parsed = NULL;
        assert_int_equal(json_parse(text.data, text.len, &parsed, NULL), TITAN_OK);
        json_free(parsed);
        protobuf_c_message_free_unpacked(message, NULL);
    }
    printf("# %ld of %ld accepted\n", accepted, rounds);
    assert_true(accepted > rounds / 20 && accepted < rounds);
}

/* Many empty messages in few bytes: the budget ends it, not the machine's memory. */
static void test_budget(void **state)
{
    (void)state;
    uint8_t bytes[BYTES_MAX];
    for (size_t i = 0; i < sizeof(bytes); i += 2) {
        bytes[i] = 1 << 3 | 2; /* ListJobsResponse.jobs, of length 0 */
        bytes[i + 1] = 0;
    }
    grpc_byte_buffer *buffer = buffer_of(bytes, sizeof(bytes));
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_unpack(buffer, &titan__v1__list_jobs_response__descriptor, BUDGET, &message, NULL),
                     TITAN_EINVAL);
    assert_int_equal(rpc_unpack(buffer, &titan__v1__list_jobs_response__descriptor, SIZE_MAX, &message, NULL),
                     TITAN_OK);
    protobuf_c_message_free_unpacked(message, NULL);
    grpc_byte_buffer_destroy(buffer);
}

static const char *const symbols[] = {"titan.v1.Titan.Submit", "titan.v1.Titan", "titan.v1.Job.nodes",
                                      "grpc.health.v1.Health"};

/* A symbol that there is, a part of one, with dots and letters in the wrong place. */
static void write_symbol(char out[64])
{
    (void)snprintf(out, 64, "%s", symbols[seeded_draw(ARRAY_SIZE(symbols))]);
    for (uint32_t k = seeded_draw(4); k > 0; k--)
        out[seeded_draw((uint32_t)strlen(out) + 1)] = (char)(seeded_draw(3) ? '.' : seeded_draw(128));
}

static bool lies_in(struct rpc_wire file, struct rpc_wire set)
{
    return !file.at || (file.at >= set.at && file.at <= file.end && file.end <= set.end);
}

/* What clients ask of descriptors that are whole. */
static void test_symbols(void **state)
{
    (void)state;
    const struct rpc_wire set = {titan_descriptors, titan_descriptors + titan_descriptors_bytes};
    long found = 0;
    for (long i = 0; i < rounds / 20; i++) {
        char symbol[64 + 1] = "";
        write_symbol(symbol);
        const struct rpc_wire file = rpc_services_symbol(set, symbol);
        assert_true(lies_in(file, set));
        found += file.at != NULL;
        assert_null(rpc_services_file(set, symbol).at);
    }
    printf("# %ld of %ld found\n", found, rounds / 20);
    assert_true(found > 0 && found < rounds / 20);
}

static void test_descriptors(void **state)
{
    (void)state;
    uint8_t *copy = malloc(titan_descriptors_bytes);
    assert_non_null(copy);
    for (long i = 0; i < rounds / 100; i++) {
        size_t n = titan_descriptors_bytes;
        memcpy(copy, titan_descriptors, n);
        for (uint32_t k = seeded_draw(20); k > 0; k--)
            copy[seeded_draw((uint32_t)n)] = (uint8_t)seeded_draw(256);
        const struct rpc_wire set = {copy, copy + (seeded_draw(4) ? n : seeded_draw((uint32_t)n + 1))};
        assert_true(lies_in(rpc_services_symbol(set, "titan.v1.Titan.Submit"), set));
        assert_true(lies_in(rpc_services_file(set, "titan/v1/titan.proto"), set));
    }
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {longer(test_messages), quick(test_budget), longer(test_symbols),
                                       longer(test_descriptors)};
    return cmocka_run_group_tests_name("rpc fuzz", tests, set_up, tear_down);
}
