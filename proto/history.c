/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/history.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "base/vec.h"

/* Keeps the newest `most` entries. A list grows to twice as many before it is cut, so that each entry moves once. */
static void drop_oldest(void *entries, size_t *n, size_t size, size_t most)
{
    titan_assert(most > 0 && size > 0);
    if (*n <= most)
        return;
    memmove(entries, (char *)entries + (*n - most) * size, most * size);
    *n = most;
}

static const char *kind_of(const Titan__V1__Event *event, const struct json *detail)
{
    static const struct {
        const char *type, *kind;
    } kinds[] = {{"worker.lost", "loss"},        {"worker.stalled", "loss"},        {"worker.device_failed", "loss"},
                 {"epoch.failed", "loss"},       {"recovery.finished", "recovery"}, {"resize.finished", "resize"},
                 {"resize.requested", "resize"}, {"checkpoint.failed", "warning"},  {"worker.straggler", "warning"},
                 {"job.waiting", "warning"},     {"job.squeezed", "warning"},       {"job.preempted", "warning"},
                 {"job.refused", "warning"},     {"epoch.delegated", "warning"},    {"job.state", "state"},
                 {"job.submitted", "state"}};
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (strcmp(kinds[i].type, event->type) == 0)
            return kinds[i].kind;
    if (strcmp(event->type, "worker.exited") == 0 && !json_get(detail, "asked") &&
        (json_int(detail, "exit_code", 0) != 0 || json_int(detail, "signal", 0) != 0))
        return "loss";
    return NULL;
}

static bool add_world(struct history *t, const Titan__V1__Event *event, int64_t world)
{
    if (t->n_worlds > 0 && t->worlds[t->n_worlds - 1].world == 0 && world == 0)
        return true;
    if (t->n_worlds == 2 * HISTORY_MOST)
        drop_oldest(t->worlds, &t->n_worlds, sizeof(*t->worlds), HISTORY_MOST);
    return VEC_PUSH(t->worlds, t->n_worlds, t->cap_worlds,
                    (struct history_world){MAX(event->at_ms, 0), event->epoch, event->step, world});
}

static bool add_change(struct history *t, const Titan__V1__Event *event, const struct json *detail)
{
    const bool resize = strcmp(event->type, "resize.finished") == 0;
    struct history_change c = {
        .at_ms = MAX(event->at_ms, 0),
        .resize = resize,
        .from_step = json_int(detail, "from_step", -1),
        .resume_step = json_int(detail, "resume_step", -1),
        .world = json_int(detail, "world", 0),
        .epochs = json_int(detail, "epochs", 0),
        .ms = json_real(detail, resize ? "resize_ms" : "recovery_ms", (double)NAN),
        .detect_ms = json_real(detail, "detect_ms", (double)NAN),
        .decide_ms = json_real(detail, "decide_ms", (double)NAN),
        .quiet_ms = json_real(detail, "quiet_ms", (double)NAN),
        .form_ms = json_real(detail, "form_ms", (double)NAN),
        .state_ms = json_real(detail, "state_ms", (double)NAN),
        .step_ms = json_real(detail, "step_ms", (double)NAN),
    };
    (void)snprintf(c.source, sizeof(c.source), "%s", json_string(detail, "rung", ""));
    if (resize) {
        t->resizes++;
        t->resize_ms += isfinite(c.ms) ? c.ms : 0;
    } else {
        t->recoveries++;
        t->recovery_ms += isfinite(c.ms) ? c.ms : 0;
    }
    t->all_changes++;
    if (t->n_changes == 2 * HISTORY_MOST)
        drop_oldest(t->changes, &t->n_changes, sizeof(*t->changes), HISTORY_MOST);
    return VEC_PUSH(t->changes, t->n_changes, t->cap_changes, c);
}

/* Leaves out nodes beyond HISTORY_MOST and workers beyond HISTORY_RANKS. */
static bool add_worker(struct history *t, const char *name, uint64_t id)
{
    size_t i = 0;
    while (i < t->n_nodes && strcmp(t->nodes[i].name, name) != 0)
        i++;
    if (i == HISTORY_MOST)
        return true;
    if (i == t->n_nodes) {
        char *copy = strdup(name);
        if (!copy || !VEC_PUSH(t->nodes, t->n_nodes, t->cap_nodes, (struct history_node){.name = copy})) {
            free(copy);
            return false;
        }
    }
    t->nodes[i].workers++;
    return t->n_workers == HISTORY_RANKS ||
           VEC_PUSH(t->workers, t->n_workers, t->cap_workers, (struct history_worker){id, t->nodes[i].name});
}

const char *history_node_of(const struct history *t, uint32_t rank)
{
    return rank < HISTORY_RANKS && t->rank_nodes[rank] ? t->rank_nodes[rank] : "";
}

bool history_add(struct history *t, const Titan__V1__Event *event)
{
    struct json *detail = NULL;
    const char *type = event->type;
    bool ok = true;
    (void)!json_parse(event->detail, strlen(event->detail), &detail, NULL);
    const uint64_t worker = (uint64_t)json_int(detail, "worker", 0);
    if (strcmp(type, "epoch.formed") == 0 || strcmp(type, "epoch.restored") == 0 ||
        strcmp(type, "epoch.delegated") == 0)
        ok = add_world(t, event, json_int(detail, "world", 0));
    else if (strcmp(type, "epoch.revoked") == 0 || strcmp(type, "epoch.ended") == 0)
        ok = add_world(t, event, 0);
    else if (strcmp(type, "recovery.finished") == 0 || strcmp(type, "resize.finished") == 0)
        ok = add_change(t, event, detail);
    else if (strcmp(type, "checkpoint.committed") == 0) {
        t->all_checkpoints++;
        if (t->n_checkpoints == HISTORY_MOST) { /* drops every second checkpoint, so that spacing stays even */
            for (size_t i = 0; i < HISTORY_MOST / 2; i++)
                t->checkpoints[i] = t->checkpoints[2 * i];
            t->n_checkpoints = HISTORY_MOST / 2;
        }
        ok = VEC_PUSH(t->checkpoints, t->n_checkpoints, t->cap_checkpoints,
                      (struct history_checkpoint){MAX(event->at_ms, 0), (uint64_t)json_int(detail, "step", 0)});
    } else if (strcmp(type, "worker.started") == 0 && *event->node)
        ok = add_worker(t, event->node, worker);
    else if (strcmp(type, "worker.exited") == 0 || strcmp(type, "worker.lost") == 0) {
        size_t i = 0;
        while (i < t->n_workers && t->workers[i].id != worker)
            i++;
        if (i < t->n_workers)
            VEC_REMOVE(t->workers, t->n_workers, i);
    }

    /* The events of an epoch list its workers, and thus the nodes, in the order of their ranks. */
    const struct json *ids = strncmp(type, "epoch.", 6) == 0 ? json_get(detail, "workers") : NULL;
    if (ids && ids->type == JSON_ARRAY) {
        const struct json *id = ids->first;
        memset(t->rank_nodes, 0, sizeof(t->rank_nodes));
        for (size_t rank = 0; id && rank < HISTORY_RANKS; id = id->next, rank++)
            for (size_t i = 0; i < t->n_workers && !t->rank_nodes[rank]; i++)
                if (id->type == JSON_INT && (uint64_t)id->integer == t->workers[i].id)
                    t->rank_nodes[rank] = t->workers[i].node;
    }
    const char *kind = kind_of(event, detail);
    if (ok && kind) {
        struct history_event e = {MAX(event->at_ms, 0), event->epoch, event->step, event->rank, kind, "", ""};
        (void)snprintf(e.type, sizeof(e.type), "%s", event->type);
        (void)snprintf(e.message, sizeof(e.message), "%s", event->message);
        e.message[utf8_check(e.message, strlen(e.message))] = '\0'; /* drops a character that was cut */
        titan_assert(t->n_events <= (size_t)2 * HISTORY_MOST);
        t->all_events++;
        if (t->n_events == 2 * HISTORY_MOST)
            drop_oldest(t->events, &t->n_events, sizeof(*t->events), HISTORY_MOST);
        ok = VEC_PUSH(t->events, t->n_events, t->cap_events, e);
    }
    json_free(detail);
    return ok;
}

void history_end(struct history *t)
{
    drop_oldest(t->events, &t->n_events, sizeof(*t->events), HISTORY_MOST);
    drop_oldest(t->worlds, &t->n_worlds, sizeof(*t->worlds), HISTORY_MOST);
    drop_oldest(t->changes, &t->n_changes, sizeof(*t->changes), HISTORY_MOST);
    titan_assert(t->n_checkpoints <= HISTORY_MOST && t->n_nodes <= HISTORY_MOST);
}

static size_t first_of(size_t n, bool page)
{
    return page && n > HISTORY_PAGE_MOST ? n - HISTORY_PAGE_MOST : 0;
}

static void put(const struct history *t, int64_t begin_ms, bool page, struct json_writer *w)
{
    const char *const at = page ? "at" : "at_ms";
    json_begin_array(w, "worlds");
    for (size_t i = 0; i < t->n_worlds; i++) {
        json_begin_object(w, NULL);
        json_put_int(w, at, t->worlds[i].at_ms - begin_ms);
        json_put_int(w, "world", t->worlds[i].world);
        json_put_uint(w, "epoch", t->worlds[i].epoch);
        if (page)
            json_put_uint(w, "step", t->worlds[i].step);
        json_end_object(w);
    }
    json_end_array(w);
    json_begin_array(w, "events");
    for (size_t i = first_of(t->n_events, page); i < t->n_events; i++) {
        const struct history_event *e = &t->events[i];
        json_begin_object(w, NULL);
        json_put_int(w, at, e->at_ms - begin_ms);
        json_put_string(w, "kind", e->kind);
        json_put_string(w, "type", e->type);
        json_put_string(w, "message", e->message);
        if (page) {
            json_put_uint(w, "epoch", e->epoch);
            json_put_uint(w, "step", e->step);
            json_put_int(w, "rank", e->rank);
        }
        json_end_object(w);
    }
    json_end_array(w);
    json_begin_array(w, "checkpoints");
    for (size_t i = 0; i < t->n_checkpoints; i++) {
        json_begin_object(w, NULL);
        json_put_int(w, at, t->checkpoints[i].at_ms - begin_ms);
        json_put_uint(w, "step", t->checkpoints[i].step);
        json_end_object(w);
    }
    json_end_array(w);
}

void history_put(const struct history *t, int64_t begin_ms, struct json_writer *w)
{
    put(t, begin_ms, false, w);
}

void history_put_page(const struct history *t, struct json_writer *w)
{
    put(t, 0, true, w);
    json_begin_array(w, "changes");
    for (size_t i = first_of(t->n_changes, true); i < t->n_changes; i++) {
        const struct history_change *c = &t->changes[i];
        json_begin_object(w, NULL);
        json_put_int(w, "at", c->at_ms);
        json_put_string(w, "kind", c->resize ? "resize" : "recovery");
        json_put_int(w, "from_step", c->from_step);
        json_put_int(w, "resume_step", c->resume_step);
        json_put_int(w, "world", c->world);
        json_put_string(w, "source", c->source);
        json_put_real(w, "ms", c->ms);
        json_put_real(w, "detect_ms", c->detect_ms);
        json_put_real(w, "decide_ms", c->decide_ms);
        json_put_real(w, "quiet_ms", c->quiet_ms);
        json_put_real(w, "form_ms", c->form_ms);
        json_put_real(w, "state_ms", c->state_ms);
        json_put_real(w, "step_ms", c->step_ms);
        json_end_object(w);
    }
    json_end_array(w);
}

void history_free(struct history *t)
{
    for (size_t i = 0; i < t->n_nodes; i++)
        free(t->nodes[i].name);
    free(t->events);
    free(t->worlds);
    free(t->changes);
    free(t->checkpoints);
    free(t->nodes);
    free(t->workers);
    *t = (struct history){0};
}
