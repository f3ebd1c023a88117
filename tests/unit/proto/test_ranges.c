/* SPDX-License-Identifier: Apache-2.0 */
/* Every internal message and every client's request has ranges, and what is outside of them is found. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/labels.h"
#include "proto/ranges.h"
#include "state/job.h"
#include "titan/internal/agent.pb-c.h"
#include "titan/internal/enrol.pb-c.h"
#include "titan/internal/worker.pb-c.h"
#include "titan/v1/titan.pb-c.h"

#define DESCRIPTORS_MAX 128

/* All messages that one of the roots can carry, the roots too. */
struct found {
    const ProtobufCMessageDescriptor *of[DESCRIPTORS_MAX];
    size_t n;
};

static void find(struct found *f, const ProtobufCMessageDescriptor *d)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->of[i] == d)
            return;
    assert_true(f->n < DESCRIPTORS_MAX);
    f->of[f->n++] = d;
    for (unsigned i = 0; i < d->n_fields; i++)
        if (d->fields[i].type == PROTOBUF_C_TYPE_MESSAGE)
            find(f, d->fields[i].descriptor);
}

/* What clients send: the requests of a service's methods, but streams between daemons. */
static void find_requests(struct found *f, const ProtobufCServiceDescriptor *service)
{
    for (unsigned i = 0; i < service->n_methods; i++)
        find(f, service->methods[i].input);
}

static void find_all(struct found *f)
{
    f->n = 0;
    find_requests(f, &titan__v1__titan__descriptor);
    find_requests(f, &titan__internal__enrolment__descriptor);
    find(f, &titan__internal__agent_message__descriptor);
    find(f, &titan__internal__coordinator_message__descriptor);
    find(f, &titan__internal__peer_message__descriptor);
    find(f, &titan__internal__worker_to_agent__descriptor);
    find(f, &titan__internal__agent_to_worker__descriptor);
    find(f, &titan__internal__agent_job_record__descriptor);
}

static const struct range_table *table_of(const ProtobufCMessageDescriptor *d)
{
    for (size_t i = 0; i < n_range_tables; i++)
        if (range_tables[i].of == d)
            return &range_tables[i];
    fail_msg("%s has no table: proto/ranges.py passes it over", d->name);
    return NULL;
}

/* The build refuses a field without a range; that each message has its table, with its fields, it does not see. */
static void test_every_message_has_a_table(void **state)
{
    struct found f;
    (void)state;
    find_all(&f);
    for (size_t m = 0; m < f.n; m++) {
        const struct range_table *t = table_of(f.of[m]);
        assert_int_equal(t->n, f.of[m]->n_fields);
        for (size_t i = 0; i < t->n; i++)
            assert_int_equal(f.of[m]->fields[i].label == PROTOBUF_C_LABEL_REPEATED, t->rows[i].count > 0);
    }
    assert_int_equal(RANGE_WORKERS_MAX, JOB_WORKERS_MAX);
    assert_int_equal(RANGE_LABELS_COUNT, LABELS_MAX);
    assert_int_equal(RANGE_LABELS_MAX, LABEL_KEY_MAX + 1 + LABEL_VALUE_MAX);
}

/* --- a message with every field at an edge ------------------------------------------------------------------------ */

static void **owned; /* freed at the end of a test */
static size_t n_owned;

static void *own(size_t bytes)
{
    owned = realloc(owned, (n_owned + 1) * sizeof(*owned));
    assert_non_null(owned);
    owned[n_owned] = calloc(1, bytes + 1);
    assert_non_null(owned[n_owned]);
    return owned[n_owned++];
}

static int free_owned(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_owned; i++)
        free(owned[i]);
    free(owned);
    owned = NULL;
    n_owned = 0;
    return 0;
}

static ProtobufCMessage *new_message(const ProtobufCMessageDescriptor *d);

static char *text_of(size_t len)
{
    return memset(own(len), 'a', len);
}

/* The least that is allowed. */
static void set_least(const ProtobufCFieldDescriptor *f, const struct range *r, void *at)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_ENUM:
        *(int32_t *)at = (int32_t)r->min;
        break;
    case PROTOBUF_C_TYPE_INT64:
        *(int64_t *)at = r->min;
        break;
    case PROTOBUF_C_TYPE_UINT32:
        *(uint32_t *)at = (uint32_t)r->min;
        break;
    case PROTOBUF_C_TYPE_UINT64:
        *(uint64_t *)at = (uint64_t)r->min;
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)at = (double)r->min;
        break;
    case PROTOBUF_C_TYPE_STRING:
        *(char **)at = text_of((size_t)r->min);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        ((ProtobufCBinaryData *)at)->len = (size_t)r->min;
        ((ProtobufCBinaryData *)at)->data = r->min ? own((size_t)r->min) : NULL;
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        *(ProtobufCMessage **)at = r->min ? new_message(f->descriptor) : NULL;
        break;
    default:
        break;
    }
}

static void choose(ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
    *(uint32_t *)((char *)m + f->quantifier_offset) = f->id;
    memset((char *)m + f->offset, 0, sizeof(void *));
    if (f->type == PROTOBUF_C_TYPE_MESSAGE)
        *(ProtobufCMessage **)((char *)m + f->offset) = new_message(f->descriptor);
}

/* A oneof has its first member. */
static ProtobufCMessage *new_message(const ProtobufCMessageDescriptor *d)
{
    const struct range *rows = table_of(d)->rows;
    ProtobufCMessage *m = own(d->sizeof_message);
    bool chosen = false;
    protobuf_c_message_init(d, m);
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
            if (!chosen)
                choose(m, f);
            chosen = true;
        } else if (f->label == PROTOBUF_C_LABEL_REPEATED && f->type == PROTOBUF_C_TYPE_MESSAGE && rows[i].min) {
            ProtobufCMessage **list = own(sizeof(ProtobufCMessage *));
            list[0] = new_message(f->descriptor);
            *(size_t *)((char *)m + f->quantifier_offset) = 1;
            *(ProtobufCMessage ***)((char *)m + f->offset) = list;
        } else if (f->label != PROTOBUF_C_LABEL_REPEATED) {
            set_least(f, &rows[i], (char *)m + f->offset);
        }
    }
    return m;
}

static void must_pass(const ProtobufCMessage *m)
{
    struct titan_error err = {0};
    if (range_check(m, &err) != TITAN_OK)
        fail_msg("%s is refused: %s", m->descriptor->name, err.msg);
}

static void must_fail(const ProtobufCMessage *m, const char *field)
{
    struct titan_error err = {0};
    if (range_check(m, &err) != TITAN_EINVAL)
        fail_msg("%s: a %s outside of its range passes", m->descriptor->name, field);
    if (!strstr(err.msg, field))
        fail_msg("%s.%s is refused without its name: %s", m->descriptor->name, field, err.msg);
}

/* One value below, one above, and for a real what is no number. Returns with the least value again. */
static void try_number(ProtobufCMessage *m, const ProtobufCFieldDescriptor *f, const struct range *r, void *at)
{
    const uint64_t top32 = f->type == PROTOBUF_C_TYPE_UINT32 ? UINT32_MAX : INT32_MAX;
    switch (f->type) {
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_ENUM:
        *(uint32_t *)at = (uint32_t)r->max;
        must_pass(m);
        if (r->max < top32) {
            *(uint32_t *)at = (uint32_t)r->max + 1;
            must_fail(m, f->name);
            *(uint32_t *)at = (uint32_t)top32;
            must_fail(m, f->name);
        }
        if (r->min) {
            *(uint32_t *)at = (uint32_t)r->min - 1;
            must_fail(m, f->name);
        }
        if (f->type == PROTOBUF_C_TYPE_ENUM) {
            *(int32_t *)at = -1;
            must_fail(m, f->name);
        }
        break;
    case PROTOBUF_C_TYPE_UINT64:
        *(uint64_t *)at = r->max;
        must_pass(m);
        if (r->max < UINT64_MAX) {
            *(uint64_t *)at = r->max + 1;
            must_fail(m, f->name);
            *(uint64_t *)at = UINT64_MAX;
            must_fail(m, f->name);
        }
        if (r->min) {
            *(uint64_t *)at = (uint64_t)r->min - 1;
            must_fail(m, f->name);
        }
        break;
    case PROTOBUF_C_TYPE_INT32:
        *(int32_t *)at = (int32_t)r->max;
        must_pass(m);
        if (r->max < INT32_MAX) {
            *(int32_t *)at = INT32_MAX;
            must_fail(m, f->name);
        }
        if (r->min > INT32_MIN) {
            *(int32_t *)at = (int32_t)r->min - 1;
            must_fail(m, f->name);
        }
        break;
    case PROTOBUF_C_TYPE_INT64:
        *(int64_t *)at = (int64_t)r->max + 1;
        must_fail(m, f->name);
        *(int64_t *)at = r->min - 1;
        must_fail(m, f->name);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)at = NAN;
        if (r->any) {
            must_pass(m);
        } else {
            must_fail(m, f->name);
            *(double *)at = INFINITY;
            must_fail(m, f->name);
            *(double *)at = (double)r->min - 1;
            must_fail(m, f->name);
            *(double *)at = (double)r->max * 2;
            must_fail(m, f->name);
        }
        break;
    default:
        break;
    }
}

static void try_text(ProtobufCMessage *m, const ProtobufCFieldDescriptor *f, const struct range *r, void *at)
{
    static const char *const controls[] = {"\x1b[2J", "a\x7f", "a\x01"};
    char *least = *(char **)at;
    *(char **)at = text_of(r->max);
    must_pass(m);
    *(char **)at = text_of(r->max + 1);
    must_fail(m, f->name);
    for (size_t i = 0; i < ARRAY_SIZE(controls) && !r->any; i++) {
        *(char **)at = (char *)(uintptr_t)controls[i];
        must_fail(m, f->name);
    }
    if (!r->path && !r->any) {
        *(char **)at = (char *)(uintptr_t) "a\xff";
        must_fail(m, f->name);
        *(char **)at = (char *)(uintptr_t) "a\u202eb";
        must_fail(m, f->name);
    }
    if (r->chars) {
        *(char **)at = (char *)(uintptr_t) "a/../b";
        must_fail(m, f->name);
    }
    if (r->min) {
        *(char **)at = (char *)(uintptr_t) "";
        must_fail(m, f->name);
    }
    *(char **)at = least;
}

static void try_bytes(ProtobufCMessage *m, const ProtobufCFieldDescriptor *f, const struct range *r, void *at)
{
    ProtobufCBinaryData *b = at;
    const size_t least = b->len; /* the bytes themselves are not looked at */
    b->len = r->max + 1;
    must_fail(m, f->name);
    if (r->min) {
        b->len = (size_t)r->min - 1;
        must_fail(m, f->name);
    }
    b->len = least;
}

/* A list with one entry too many, and one with the last entry outside of its range. */
static void try_list(ProtobufCMessage *m, const ProtobufCFieldDescriptor *f, const struct range *r)
{
    size_t *n = (size_t *)((char *)m + f->quantifier_offset), before = *n;
    void **list = (void **)((char *)m + f->offset), *kept = *list;
    *list = own(((size_t)r->count + 1) * sizeof(ProtobufCBinaryData));
    *n = (size_t)r->count + 1;
    must_fail(m, f->name);
    *n = 2;
    if (f->type == PROTOBUF_C_TYPE_UINT64) {
        ((uint64_t *)*list)[0] = r->max;
        ((uint64_t *)*list)[1] = r->max + 1;
        must_fail(m, f->name);
    } else if (f->type == PROTOBUF_C_TYPE_UINT32) {
        ((uint32_t *)*list)[0] = (uint32_t)r->max;
        ((uint32_t *)*list)[1] = (uint32_t)r->max + 1;
        must_fail(m, f->name);
    } else if (f->type == PROTOBUF_C_TYPE_STRING) {
        ((char **)*list)[0] = (char *)(uintptr_t) "a";
        ((char **)*list)[1] = (char *)(uintptr_t) "a\n";
        must_fail(m, f->name);
    } else if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
        ((ProtobufCMessage **)*list)[0] = ((ProtobufCMessage **)*list)[1] = new_message(f->descriptor);
        must_pass(m);
    }
    if (f->type == PROTOBUF_C_TYPE_MESSAGE && r->min) {
        *n = 0;
        *list = NULL;
        must_fail(m, f->name);
    }
    *n = before;
    *list = kept;
}

static void test_outside_is_found(void **state)
{
    struct found f;
    size_t fields = 0;
    (void)state;
    find_all(&f);
    for (size_t k = 0; k < f.n; k++) {
        const ProtobufCMessageDescriptor *d = f.of[k];
        const struct range_table *t = table_of(d);
        const struct range *rows = t->rows;
        ProtobufCMessage *m = new_message(d);
        must_pass(m);
        for (unsigned i = 0; i < t->n; i++, fields++) {
            const ProtobufCFieldDescriptor *field = &d->fields[i];
            void *at = (char *)m + field->offset;
            if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
                choose(m, field);
                must_pass(m);
            } else if (field->label == PROTOBUF_C_LABEL_REPEATED) {
                try_list(m, field, &rows[i]);
            } else if (field->type == PROTOBUF_C_TYPE_STRING) {
                try_text(m, field, &rows[i], at);
            } else if (field->type == PROTOBUF_C_TYPE_BYTES) {
                try_bytes(m, field, &rows[i], at);
            } else if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
                ProtobufCMessage *kept = *(ProtobufCMessage **)at;
                *(ProtobufCMessage **)at = NULL;
                if (rows[i].min)
                    must_fail(m, field->name);
                else
                    must_pass(m);
                *(ProtobufCMessage **)at = kept;
            } else {
                try_number(m, field, &rows[i], at);
                set_least(field, &rows[i], at);
            }
            must_pass(m);
        }
    }
    assert_true(fields > 200);
}

static void test_says_where(void **state)
{
    Titan__Internal__AgentMessage m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    Titan__Internal__LeaderEpoch d = TITAN__INTERNAL__LEADER_EPOCH__INIT;
    Titan__Internal__FormEpoch f = TITAN__INTERNAL__FORM_EPOCH__INIT;
    struct titan_error err = {0};
    (void)state;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_LEADER_EPOCH;
    m.leader_epoch = &d;
    d.epoch = &f;
    f.job_id = 1;
    f.epoch = UINT64_MAX;
    assert_int_equal(range_check(&m.base, &err), TITAN_EINVAL);
    assert_string_equal(err.msg,
                        "AgentMessage.leader_epoch.epoch.epoch = 18446744073709551615: 1 to 4611686018427387903");
}

/* One of a newer version is not a fault; one that says nothing is. */
static void test_unknown_kind(void **state)
{
    static const uint8_t newer[] = {0xfa, 0x3e, 0x00}; /* field 1007, empty */
    Titan__Internal__AgentMessage empty = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    Titan__Internal__AgentMessage *m = titan__internal__agent_message__unpack(NULL, sizeof(newer), newer);
    (void)state;
    assert_non_null(m);
    assert_int_equal(range_check(&m->base, NULL), TITAN_OK);
    titan__internal__agent_message__free_unpacked(m, NULL);
    assert_int_equal(range_check(&empty.base, NULL), TITAN_EINVAL);
}

/* Field number 0, written in two bytes: what protobuf-c reads, packs, and cannot read again. */
static void test_impossible_field_number(void **state)
{
    (void)state;
    static const uint8_t inner[] = {0x3a, 0x09, 0x08, 0x01, 0x80, 0x00, 0x80, 0x80, 0x80, 0x80, 0x10};
    struct titan_error err = {0};
    Titan__Internal__AgentMessage *m = titan__internal__agent_message__unpack(NULL, sizeof(inner), inner);
    assert_non_null(m);
    assert_int_equal(range_check(&m->base, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "impossible number"));
    titan__internal__agent_message__free_unpacked(m, NULL);
}

static void test_fit_text(void **state)
{
    char words[] = "disk\nis \x1b[1mfull\xff\xc3\xa9", cut[] = "ab\xc3\xa9", turned[] = "a\u202eb";
    (void)state;
    range_fit_text(words, sizeof(words));
    assert_string_equal(words, "disk?is ?[1mfull?\xc3\xa9");
    range_fit_text(turned, sizeof(turned));
    assert_string_equal(turned, "a?b");
    range_fit_text(cut, 4); /* in the middle of a character */
    assert_string_equal(cut, "ab?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_message_has_a_table),
        cmocka_unit_test_teardown(test_outside_is_found, free_owned),
        cmocka_unit_test(test_says_where),
        cmocka_unit_test(test_unknown_kind),
        cmocka_unit_test(test_impossible_field_number),
        cmocka_unit_test(test_fit_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
