/* SPDX-License-Identifier: Apache-2.0 */
/* The flight recorder of a worker, which writes there what it likes: its head, and records at places of the input's
 * choice. What the agent takes of it has names that end, numbers within their range, and is in order. */
#include "tests/fuzz/common.h"

#include "base/flight.h"

enum { NOW = 1000000 };

static void is_text(const char *text, size_t size)
{
    fuzz_assert(memchr(text, 0, size));
    for (; *text; text++)
        fuzz_assert((unsigned char)*text >= 0x20 && (unsigned char)*text < 0x7f);
}

static void look(const struct flight_copy *c)
{
    fuzz_assert(c->n >= 0 && c->damaged >= 0 && c->n + c->damaged <= FLIGHT_RECORDS);
    fuzz_assert(c->world >= 0 && c->world <= FLIGHT_RANKS_MAX && (c->world == 0 || c->rank < c->world));
    for (int g = 0; g < FLIGHT_GROUPS; g++) {
        is_text(c->groups[g].name, sizeof(c->groups[g].name));
        for (int rank = c->world; rank < FLIGHT_RANKS_MAX; rank++)
            fuzz_assert(!(c->groups[g].members[rank / 64] >> rank % 64 & 1));
    }
    for (int i = 0; i < c->n; i++) {
        const struct flight_entry *e = &c->entries[i];
        fuzz_assert(i == 0 || e[-1].ticket <= e->ticket);
        fuzz_assert(e->kind < FLIGHT_KINDS && e->group >= 0 && e->group < FLIGHT_GROUPS);
        fuzz_assert(e->began_ns <= NOW && e->ended_ns <= NOW && e->peer < FLIGHT_RANKS_MAX);
        is_text(e->op, sizeof(e->op));
        is_text(e->place, sizeof(e->place));
        is_text(e->phase, sizeof(e->phase));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static _Alignas(struct flight_ring) struct flight_ring ring;
    static struct flight_copy copy;
    struct titan_error err = {0};
    struct fuzz_input in = {data, size};
    const int changed = (int)(fuzz_take(&in, 1) % 4);
    memset(&ring, 0, sizeof(ring));
    ring.magic = changed == 3 ? fuzz_take(&in, 8) : FLIGHT_MAGIC;
    ring.epoch = fuzz_take(&in, changed == 2 ? 8 : 1);
    ring.rank = (int32_t)fuzz_take(&in, changed == 2 ? 4 : 1);
    ring.world = (int32_t)fuzz_take(&in, changed == 2 ? 4 : 1);
    for (int g = 0; g < FLIGHT_GROUPS && (fuzz_take(&in, 1) & 1); g++) {
        struct fuzz_input group = fuzz_piece(&in);
        memcpy(&ring.groups[g], group.data, MIN(group.len, sizeof(ring.groups[g])));
    }
    while (in.len > 0) {
        struct flight_record *r = &ring.records[fuzz_take(&in, 2) % FLIGHT_RECORDS];
        struct fuzz_input record = fuzz_piece(&in);
        memcpy(r, record.data, MIN(record.len, sizeof(*r)));
        if (fuzz_take(&in, 1) & 1) { /* it was written to its end, in this epoch */
            r->epoch = ring.epoch;
            r->again = (uint32_t)r->ticket;
        }
    }
    const titan_status status = flight_check(&ring, NOW, &copy, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    else
        look(&copy);
    return 0;
}
