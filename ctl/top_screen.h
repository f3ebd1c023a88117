/* SPDX-License-Identifier: Apache-2.0 */
/* top_screen.h - one frame of `titanctl top` as lines of text; uses neither server nor terminal. */
#ifndef TITAN_CTL_TOP_SCREEN_H
#define TITAN_CTL_TOP_SCREEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "ctl/split_window.h"
#include "titan/v1/titan.pb-c.h"

enum { TOP_LOSSES = 64, TOP_EVENTS = 8 };

/* Strings are cut to the sizes of these fields, and have no characters that change the terminal's display. */
struct top_job {
    uint64_t id, epoch, step, steps;
    Titan__V1__JobState state;
    char name[128], user[64], reason[256];
    double loss, tokens_per_second, mfu;
    uint32_t workers, restarts;
    const double *losses; /* the newest losses, the oldest of them first */
    size_t n_losses;
    const struct split_mean *split; /* split of the newest steps; NULL: not measured */
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
    const struct top_job *jobs; /* one page of jobs */
    size_t n_jobs, selected, page;
    bool more;      /* more jobs follow this page */
    uint64_t rest;  /* number of jobs after this page; 0: unknown */
    bool uncounted; /* `rest` is a lower bound */
    const struct top_node *nodes;
    size_t n_nodes;
    const struct top_worker *workers; /* workers of the selected job */
    size_t n_workers;
    char events[TOP_EVENTS][256]; /* the job's newest events, the newest last; "" = none */
};

/* Number of jobs that fit a screen of this height; the server is asked for this many. */
size_t top_screen_jobs(int height);
/* Writes lines, each ended by a newline, within the terminal's width and height. live: shows the step times of the
 * selected job, and a last line with the keys; else the step times of all running jobs. */
void top_screen_put(const struct top_screen *s, struct buf *out);

#endif
