/* SPDX-License-Identifier: Apache-2.0 */
/* stall_read.c - parses the text of a flight recorder's dump. The text comes from a worker through files, so everything
 * is checked. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "ctl/stall.h"

#define EXACT_MAX ((INT64_C(1) << 53) - 1)

static titan_status bad(const char *what, struct titan_error *err)
{
    return titan_fail(err, TITAN_ECORRUPT, "the dump of a flight recorder has no right %s", what);
}

static titan_status get_int(const struct json *object, const char *key, int64_t from, int64_t to, int64_t *ret,
                            struct titan_error *err)
{
    const struct json *value = json_get(object, key);
    titan_assert(from <= to);
    if (!value || value->type != JSON_INT || value->integer < from || value->integer > to)
        return bad(key, err);
    *ret = value->integer;
    return TITAN_OK;
}

/* Copies a string of the object. Terminal control characters in it become '?'. */
static titan_status get_text(const struct json *object, const char *key, char *out, size_t size,
                             struct titan_error *err)
{
    const char *text = json_string(object, key, NULL);
    titan_assert(size > 1);
    if (!text || strlen(text) >= size)
        return bad(key, err);
    memcpy(out, text, strlen(text) + 1);
    for (char *c = out; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    return TITAN_OK;
}

static const struct json *get_array(const struct json *object, const char *key)
{
    const struct json *value = json_get(object, key);
    return value && value->type == JSON_ARRAY ? value : NULL;
}

static titan_status read_entry(const struct json *object, const struct stall_dump *d, struct flight_entry *e,
                               struct titan_error *err)
{
    static const char *const kinds[FLIGHT_KINDS] = {"action", "collective", "send", "receive"};
    const char *kind = json_string(object, "kind", "");
    int64_t step, microbatch, ended;
    int k = 0;
    while (k < FLIGHT_KINDS && strcmp(kinds[k], kind) != 0)
        k++;
    if (k == FLIGHT_KINDS)
        return bad("kind", err);
    *e = (struct flight_entry){.kind = (enum flight_kind)k, .peer = -1};
    TRY(get_text(object, "op", e->op, sizeof e->op, err));
    TRY(get_text(object, "place", e->place, sizeof e->place, err));
    TRY(get_text(object, "phase", e->phase, sizeof e->phase, err));
    TRY(get_int(object, "step", 0, EXACT_MAX, &step, err));
    TRY(get_int(object, "microbatch", -1, INT32_MAX, &microbatch, err));
    TRY(get_int(object, "began_ns", 1, d->now_ns, &e->began_ns, err));
    TRY(get_int(object, "ended_ns", 0, d->now_ns, &ended, err));
    if (ended && ended < e->began_ns)
        return bad("ended_ns", err);
    e->step = (uint64_t)step;
    e->microbatch = (int32_t)microbatch;
    e->ended_ns = ended;
    if (e->kind == FLIGHT_ACTION)
        return TITAN_OK;

    int64_t group, number, bytes, peer;
    const struct flight_copy *copy = d->copy;
    TRY(get_int(object, "group", 0, FLIGHT_GROUPS - 1, &group, err));
    TRY(get_int(object, "number", 1, UINT32_MAX, &number, err));
    TRY(get_int(object, "bytes", 0, EXACT_MAX, &bytes, err));
    TRY(get_int(object, "peer", e->kind == FLIGHT_COLLECTIVE ? -1 : 0, copy->world - 1, &peer, err));
    if (!copy->groups[group].name[0])
        return bad("group", err);
    e->group = (int)group;
    e->number = (uint32_t)number;
    e->bytes = (uint64_t)bytes;
    e->peer = (int32_t)peer;
    return TITAN_OK;
}

static titan_status read_root(const struct json *root, struct stall_dump *d, struct titan_error *err)
{
    const struct json *groups = get_array(root, "groups"), *records = get_array(root, "records");
    int64_t format, worker, epoch, rank, world, damaged;
    TRY(get_int(root, "flight", 1, 1, &format, err));
    TRY(get_int(root, "worker", 0, EXACT_MAX, &worker, err));
    TRY(get_int(root, "now_ns", 1, INT64_MAX, &d->now_ns, err));
    TRY(get_int(root, "time_ms", 0, EXACT_MAX, &d->time_ms, err));
    TRY(get_int(root, "epoch", 0, EXACT_MAX, &epoch, err));
    TRY(get_int(root, "world", 1, FLIGHT_RANKS_MAX, &world, err));
    TRY(get_int(root, "rank", 0, world - 1, &rank, err));
    TRY(get_int(root, "damaged", 0, FLIGHT_RECORDS, &damaged, err));
    TRY(get_text(root, "cause", d->cause, sizeof d->cause, err));
    TRY(get_text(root, "detail", d->detail, sizeof d->detail, err));
    TRY(get_text(root, "node", d->node, sizeof d->node, err));
    d->worker = (uint64_t)worker;
    d->copy->epoch = (uint64_t)epoch;
    d->copy->rank = (int)rank;
    d->copy->world = (int)world;
    d->copy->damaged = (int)damaged;

    if (!groups || !records)
        return bad(groups ? "records" : "groups", err);
    for (const struct json *of = groups->first; of; of = of->next) {
        const struct json *members = get_array(of, "members");
        int64_t group;
        TRY(get_int(of, "group", 0, FLIGHT_GROUPS - 1, &group, err));
        struct flight_group *g = &d->copy->groups[group];
        TRY(get_text(of, "name", g->name, sizeof g->name, err));
        if (!members || !g->name[0])
            return bad("groups", err);
        for (const struct json *m = members->first; m; m = m->next) {
            if (m->type != JSON_INT || m->integer < 0 || m->integer >= d->copy->world)
                return bad("members", err);
            g->members[m->integer / 64] |= UINT64_C(1) << m->integer % 64;
        }
    }
    for (const struct json *r = records->first; r; r = r->next) {
        if (d->copy->n == FLIGHT_RECORDS)
            return bad("number of records", err);
        TRY(read_entry(r, d, &d->copy->entries[d->copy->n], err));
        d->copy->entries[d->copy->n].ticket = (uint64_t)d->copy->n + 1;
        d->copy->n++;
    }
    return TITAN_OK;
}

titan_status stall_read(const char *text, size_t len, struct stall_dump *ret, struct titan_error *err)
{
    struct json *root = NULL;
    *ret = (struct stall_dump){.copy = calloc(1, sizeof *ret->copy)};
    if (!ret->copy)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    titan_status status = json_parse(text, len, &root, err);
    if (status != TITAN_OK)
        status = titan_fail(err, TITAN_ECORRUPT, "the dump of a flight recorder is no JSON");
    else
        status = read_root(root, ret, err);
    json_free(root);
    if (status != TITAN_OK)
        stall_dump_free(ret);
    return status;
}

void stall_dump_free(struct stall_dump *dump)
{
    free(TAKE(dump->copy));
}
