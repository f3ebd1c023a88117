/* SPDX-License-Identifier: Apache-2.0 */
/* top_screen.h - one frame of `titanctl top` as lines of text; it asks nothing of the server and nothing of the
 * terminal. */
#ifndef TITAN_CTL_TOP_SCREEN_H
#define TITAN_CTL_TOP_SCREEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "ctl/split_window.h"
#include "titan/v1/titan.pb-c.h"

enum { TOP_LOSSES = 64, TOP_EVENTS = 8 };

/* Strings are cut to what fits; none has characters that change how a terminal shows it. */
struct top_job {
    uint64_t id, epoch, step, steps;
    Titan__V1__JobState state;
    char name[128], user[64], reason[256];
    double loss, tokens_per_second, mfu;
    uint32_t workers, restarts;
    const double *losses; /* the newest, oldest first */
    size_t n_losses;
    const struct split_mean *split; /* of its newest steps; NULL: not measured */
};

struct top_node {
    char name[128], state[32], device[16], reason[128];
    uint32_t slots, slots_used;
};

struct top_worker {
    uint64_t id;
    int32_t rank; /* -1 = none yet */
    char node[128], note[128];
    const char *state;
    int64_t since_ms;
};

struct top_screen {
    int width, height; /* of the terminal */
    bool color, unicode, live;
    const char *server;
    const char *trouble; /* NULL: the server answers */
    int64_t now_ms;
    const struct top_job *jobs; /* a page of them */
    size_t n_jobs, selected, page;
    bool more;      /* there are jobs behind this page, */
    uint64_t rest;  /* so many; 0: not known */
    bool uncounted; /* more than that */
    const struct top_node *nodes;
    size_t n_nodes;
    const struct top_worker *workers; /* of the selected job */
    size_t n_workers;
    char events[TOP_EVENTS][256]; /* its newest, the last one last; "" = none */
};

/* How many jobs a screen of this height has room for: that many are asked of the server. */
size_t top_screen_jobs(int height);
/* Lines, each ended by a newline, none wider than the terminal, no more than its height. live: where the time of
 * steps went is said of the selected job, and a last line says which keys there are; else of all that run. */
void top_screen_put(const struct top_screen *s, struct buf *out);

#endif
