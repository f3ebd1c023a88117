/* SPDX-License-Identifier: Apache-2.0 */
/* history.h - the parts of a job's event log that charts show: notable events, checkpoints, world sizes, and durations
 * of losses and resizes. The lists are bounded: they keep the newest entries, but of the checkpoints every second,
 * every fourth, and so on. */
#ifndef TITAN_PROTO_HISTORY_H
#define TITAN_PROTO_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "titan/v1/titan.pb-c.h"

enum {
    HISTORY_MOST = 1000,
    HISTORY_PAGE_MOST = 200,
    HISTORY_RANKS = 1024, /* nodes of higher ranks are not kept */
};

struct history_event {
    int64_t at_ms;
    uint64_t epoch, step;
    int32_t rank;     /* -1 = none */
    const char *kind; /* "loss", "recovery", "resize", "warning", "state" */
    char type[40], message[240];
};

struct history_world {
    int64_t at_ms;
    uint64_t epoch, step;
    int64_t world; /* 0: no epoch is running */
};

struct history_change {
    int64_t at_ms;
    bool resize; /* true: planned; false: after a loss */
    int64_t from_step, resume_step, world, epochs;
    char source[24];
    double ms, detect_ms, decide_ms, quiet_ms, form_ms, state_ms, step_ms; /* NaN: not reported */
};

struct history_checkpoint {
    int64_t at_ms;
    uint64_t step;
};

struct history_node {
    char *name;
    uint32_t workers; /* number of workers ever started there */
};

struct history_worker {
    uint64_t id;
    const char *node; /* points to the name of a node in `nodes` */
};

struct history {
    struct history_event *events;
    struct history_world *worlds;
    struct history_change *changes;
    struct history_checkpoint *checkpoints;
    struct history_node *nodes;
    struct history_worker *workers;        /* present workers */
    const char *rank_nodes[HISTORY_RANKS]; /* the present or last node of each rank; NULL: unknown */
    size_t n_events, n_worlds, n_changes, n_checkpoints, n_nodes, n_workers;
    size_t cap_events, cap_worlds, cap_changes, cap_checkpoints, cap_nodes, cap_workers;
    uint64_t all_events, all_changes, all_checkpoints; /* including entries that were dropped */
    uint64_t recoveries, resizes;
    double recovery_ms, resize_ms; /* sums */
};

/* A zeroed struct is empty. Events come in order. False: out of memory. */
bool history_add(struct history *t, const Titan__V1__Event *event);
/* Call after the last event: cuts each list to HISTORY_MOST entries. */
void history_end(struct history *t);
/* The last node of a rank; "": unknown. */
const char *history_node_of(const struct history *t, uint32_t rank);
void history_free(struct history *t);
/* Writes the members "worlds", "events" and "checkpoints", lists of objects, into an object that the caller has begun:
 * times are "at_ms", since begin_ms. */
void history_put(const struct history *t, int64_t begin_ms, struct json_writer *w);
/* Writes the same for a page that shows many jobs: times are "at", in ms since 1970; of events and changes the newest
 * HISTORY_PAGE_MOST; events have where they were, and "changes" are recoveries and resizes with their parts. */
void history_put_page(const struct history *t, struct json_writer *w);

#endif
