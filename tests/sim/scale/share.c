/* SPDX-License-Identifier: Apache-2.0 */
/* What thousands of agents and workers of one epoch keep alike is kept once: each of them holds the order to form it,
 * which names every member, so that their own copies would take the square of their number. The linker puts these in
 * the place of the routines that copy and free messages (mk/sim.mk, --wrap); the code that calls them is the real
 * one. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "daemon/agent/core/agent_core_internal.h"
#include "tests/sim/sim.h"
#include "titan/internal/worker.pb-c.h"

#define FORMS_MAX 64 /* different orders of one run */
#define LARGE 16384  /* bytes; no other message of the coordinator or to a worker is as long */

void *__real_agent_message_copy(const ProtobufCMessage *m);
void *__wrap_agent_message_copy(const ProtobufCMessage *m);
void *__real_agent_action_copy(struct agent_actions *out, const ProtobufCMessage *m);
void *__wrap_agent_action_copy(struct agent_actions *out, const ProtobufCMessage *m);
form_epoch *__real_titan__internal__form_epoch__unpack(ProtobufCAllocator *a, size_t len, const uint8_t *bytes);
form_epoch *__wrap_titan__internal__form_epoch__unpack(ProtobufCAllocator *a, size_t len, const uint8_t *bytes);
void __real_titan__internal__form_epoch__free_unpacked(form_epoch *m, ProtobufCAllocator *a);
void __wrap_titan__internal__form_epoch__free_unpacked(form_epoch *m, ProtobufCAllocator *a);
void __real_titan__internal__agent_job_record__free_unpacked(job_record *m, ProtobufCAllocator *a);
void __wrap_titan__internal__agent_job_record__free_unpacked(job_record *m, ProtobufCAllocator *a);

/* Never given back: there are as many as there are epochs. */
static struct {
    uint8_t *bytes;
    size_t len;
    form_epoch *form;
} forms[FORMS_MAX];
static size_t n_forms;

static bool is_shared(const form_epoch *m)
{
    for (size_t i = 0; i < n_forms; i++)
        if (forms[i].form == m)
            return true;
    return false;
}

static form_epoch *shared_by_bytes(const uint8_t *bytes, size_t len)
{
    for (size_t i = n_forms; i-- > 0;)
        if (forms[i].len == len && memcmp(forms[i].bytes, bytes, len) == 0)
            return forms[i].form;
    titan_assert(n_forms < FORMS_MAX);
    form_epoch *m = __real_titan__internal__form_epoch__unpack(NULL, len, bytes);
    uint8_t *copy = malloc(len + 1);
    titan_assert(m && copy);
    memcpy(copy, bytes, len);
    forms[n_forms].bytes = copy;
    forms[n_forms].len = len;
    forms[n_forms++].form = m;
    return m;
}

static form_epoch *shared(const form_epoch *m)
{
    if (!m || is_shared(m))
        return (form_epoch *)m;
    const size_t len = titan__internal__form_epoch__get_packed_size(m);
    _cleanup_free_ uint8_t *bytes = malloc(len + 1);
    titan_assert(bytes);
    (void)titan__internal__form_epoch__pack(m, bytes);
    return shared_by_bytes(bytes, len);
}

/* The forms of record `from` into `to`, which has none; room: for as many pointers as from->n_before. */
static void share_forms(job_record *to, const job_record *from, form_epoch **room)
{
    to->accepted = shared(from->accepted);
    to->n_before = from->n_before;
    to->before = from->n_before ? room : NULL;
    for (size_t i = 0; i < from->n_before; i++)
        room[i] = shared(from->before[i]);
}

static job_record without_forms(const job_record *m)
{
    job_record bare = *m;
    bare.accepted = NULL;
    bare.n_before = 0;
    bare.before = NULL;
    return bare;
}

void *__wrap_agent_message_copy(const ProtobufCMessage *m)
{
    if (m->descriptor == &titan__internal__form_epoch__descriptor)
        return shared((const form_epoch *)m);
    if (m->descriptor != &titan__internal__agent_job_record__descriptor)
        return __real_agent_message_copy(m);
    const job_record *record = (const job_record *)m;
    const job_record bare = without_forms(record);
    job_record *copy = __real_agent_message_copy(&bare.base);
    form_epoch **room = record->n_before ? malloc(record->n_before * sizeof(form_epoch *)) : NULL;
    titan_assert(room || !record->n_before);
    share_forms(copy, record, room);
    return copy;
}

void *__wrap_agent_action_copy(struct agent_actions *out, const ProtobufCMessage *m)
{
    if (m->descriptor == &titan__internal__agent_job_record__descriptor) {
        const job_record *record = (const job_record *)m;
        const job_record bare = without_forms(record);
        job_record *copy = __real_agent_action_copy(out, &bare.base);
        share_forms(copy, record, agent_action_alloc(out, (record->n_before + 1) * sizeof(form_epoch *)));
        return copy;
    }
    const command_to_worker *order = (const command_to_worker *)m;
    if (m->descriptor != &titan__internal__agent_to_worker__descriptor ||
        order->kind_case != TITAN__INTERNAL__AGENT_TO_WORKER__KIND_FORM)
        return __real_agent_action_copy(out, m);
    command_to_worker *copy = agent_action_alloc(out, sizeof(*copy));
    *copy = *order;
    copy->form = shared(order->form);
    return copy;
}

/* Large messages as they come, which carry such an order: unpacked once, like the order itself. They are not changed.
 */
#define UNPACK_ONCE(Type, name)                                                                                        \
    Type *__real_##name##__unpack(ProtobufCAllocator *a, size_t len, const uint8_t *bytes);                            \
    Type *__wrap_##name##__unpack(ProtobufCAllocator *a, size_t len, const uint8_t *bytes);                            \
    Type *__wrap_##name##__unpack(ProtobufCAllocator *a, size_t len, const uint8_t *bytes)                             \
    {                                                                                                                  \
        static struct {                                                                                                \
            uint8_t *bytes;                                                                                            \
            size_t len;                                                                                                \
            Type *message;                                                                                             \
        } known[FORMS_MAX];                                                                                            \
        static size_t n;                                                                                               \
        if (len < LARGE)                                                                                               \
            return __real_##name##__unpack(a, len, bytes);                                                             \
        for (size_t i = n; i-- > 0;)                                                                                   \
            if (known[i].len == len && memcmp(known[i].bytes, bytes, len) == 0)                                        \
                return known[i].message;                                                                               \
        titan_assert(n < FORMS_MAX);                                                                                   \
        known[n].bytes = malloc(len);                                                                                  \
        known[n].message = __real_##name##__unpack(NULL, len, bytes);                                                  \
        titan_assert(known[n].bytes &&known[n].message &&known[n].message->form);                                      \
        memcpy(known[n].bytes, bytes, len);                                                                            \
        known[n].len = len;                                                                                            \
        known[n].message->form = shared(known[n].message->form);                                                       \
        return known[n++].message;                                                                                     \
    }
UNPACK_ONCE(coordinator_message, titan__internal__coordinator_message)
UNPACK_ONCE(command_to_worker, titan__internal__agent_to_worker)

/* --- the same packed: an order by itself, to a worker, in the record of an agent that has promised nothing -------- */

size_t __real_titan__internal__form_epoch__get_packed_size(const form_epoch *m);
size_t __wrap_titan__internal__form_epoch__get_packed_size(const form_epoch *m);
size_t __real_titan__internal__form_epoch__pack(const form_epoch *m, uint8_t *out);
size_t __wrap_titan__internal__form_epoch__pack(const form_epoch *m, uint8_t *out);
void *__real_packed(const ProtobufCMessage *m, uint32_t *ret_len);
void *__wrap_packed(const ProtobufCMessage *m, uint32_t *ret_len);

size_t __wrap_titan__internal__form_epoch__get_packed_size(const form_epoch *m)
{
    for (size_t i = 0; i < n_forms; i++)
        if (forms[i].form == m)
            return forms[i].len;
    return __real_titan__internal__form_epoch__get_packed_size(m);
}

size_t __wrap_titan__internal__form_epoch__pack(const form_epoch *m, uint8_t *out)
{
    for (size_t i = 0; i < n_forms; i++)
        if (forms[i].form == m) {
            memcpy(out, forms[i].bytes, forms[i].len);
            return forms[i].len;
        }
    return __real_titan__internal__form_epoch__pack(m, out);
}

/* All there is in such a message. */
struct content {
    const ProtobufCMessageDescriptor *type;
    uint64_t job_id, term;
    const form_epoch *form, *before;
};

static bool content_of(const ProtobufCMessage *m, struct content *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->type = m->descriptor;
    if (m->descriptor == &titan__internal__agent_to_worker__descriptor) {
        const command_to_worker *order = (const command_to_worker *)m;
        ret->term = order->term;
        ret->form = order->kind_case == TITAN__INTERNAL__AGENT_TO_WORKER__KIND_FORM ? order->form : NULL;
    } else if (m->descriptor == &titan__internal__agent_job_record__descriptor) {
        const job_record *r = (const job_record *)m;
        if (r->promised_epoch || r->n_leader_epochs || r->n_before > 1)
            return false;
        ret->job_id = r->job_id;
        ret->term = r->term;
        ret->form = r->accepted;
        ret->before = r->n_before ? r->before[0] : NULL;
    }
    return is_shared(ret->form) && (!ret->before || is_shared(ret->before));
}

void *__wrap_packed(const ProtobufCMessage *m, uint32_t *ret_len)
{
    static struct {
        struct content content;
        void *bytes; /* a reference */
        uint32_t len;
    } known[FORMS_MAX];
    static size_t n;
    struct content content;
    if (!content_of(m, &content))
        return __real_packed(m, ret_len);
    size_t i = n;
    while (i > 0 && memcmp(&known[i - 1].content, &content, sizeof(content)) != 0)
        i--;
    if (i == 0) {
        titan_assert(n < FORMS_MAX);
        known[n].content = content;
        known[n].bytes = __real_packed(m, &known[n].len);
        i = ++n;
    }
    *ret_len = known[i - 1].len;
    return bytes_keep(known[i - 1].bytes);
}

form_epoch *__wrap_titan__internal__form_epoch__unpack(ProtobufCAllocator *a, size_t len, const uint8_t *bytes)
{
    return a ? __real_titan__internal__form_epoch__unpack(a, len, bytes) : shared_by_bytes(bytes, len);
}

void __wrap_titan__internal__form_epoch__free_unpacked(form_epoch *m, ProtobufCAllocator *a)
{
    if (!is_shared(m))
        __real_titan__internal__form_epoch__free_unpacked(m, a);
}

/* The agent's core moves forms within a record, from accepted to before. */
void __wrap_titan__internal__agent_job_record__free_unpacked(job_record *m, ProtobufCAllocator *a)
{
    if (m && is_shared(m->accepted))
        m->accepted = NULL;
    size_t own = 0;
    for (size_t i = 0; m && i < m->n_before; i++)
        if (!is_shared(m->before[i]))
            m->before[own++] = m->before[i];
    if (m && own == 0) {
        free(m->before);
        m->before = NULL;
    }
    if (m)
        m->n_before = own;
    __real_titan__internal__agent_job_record__free_unpacked(m, a);
}
