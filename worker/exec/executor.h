/* SPDX-License-Identifier: Apache-2.0 */
/* executor.h - what the files of exec/ share: exec.c (opening, and how each operation runs), step.c (a step's calls),
 * segments.c, lookahead.c, recorder.c, warmup.c and products.c. Private to the executor. */
#ifndef TITAN_WORKER_EXEC_EXECUTOR_H
#define TITAN_WORKER_EXEC_EXECUTOR_H

#include "base/flight.h"
#include "worker/exec/exec.h"

/* Where a step stands. Opened, it is idle; a failure leaves the stage it happened in. */
enum exec_stage {
    EXEC_IDLE,     /* no step has begun, or the last one's update is enqueued */
    EXEC_REDUCING, /* actions before AGREE are being enqueued */
    EXEC_REDUCED,  /* all of them have succeeded here */
    EXEC_PREPARED, /* nothing but the statistics are needed any more */
    EXEC_AGREED,   /* the statistics are here: the step is committed */
};

/* A gradient shard: the action that is the last to write to it, and the NORM that reads it. */
struct final {
    int writer, norm;
};

/* How far the host is ahead of a device that has a queue: a mark on the compute stream every so many actions, and at
 * each the host waits for the one before. So a launch never blocks, and little is left to run when an epoch ends. */
struct lookahead {
    struct event *marks[2]; /* NULL: the device has no queue */
    int every;              /* actions from mark to mark */
    int passed;             /* since the last mark */
    int placed;             /* marks in this step */
    int64_t reached_ns;     /* when the last one that was waited for was reached; 0: none was */
};

/* Actions of the compute stream that follow each other there and are launched as one (segments.c). What other streams
 * have between them in the program neither waits for one of them but the last, nor does one but the first wait for it.
 */
struct run {
    int first, last, n;
    struct segment *kept; /* NULL: not yet */
};

struct segments {
    bool on;
    bool found; /* runs are */
    int steps;  /* that have begun: in the first all is made that is made once, and pacing is measured */
    struct run *runs;
    int n;
    int *run_of; /* [n_actions] of the compute stream's actions; -1: none */
};

/* An action in the flight recorder. Its stream has run it before it is enqueued again. */
struct recorded {
    struct flight_what what;
    struct flight_mark mark;
};

/* What is timed of an action: itself, and what computing waits for at it. */
enum { TIME_BEGAN, TIME_ENDED, TIME_WAIT_BEGAN, TIME_WAIT_ENDED, TIME_COUNT };

struct exec {
    struct exec_options opt;
    const struct program *p;
    const struct device_ops *ops;
    int at[AXIS_COUNT]; /* this rank's place in the mesh */
    int64_t from;       /* first microbatch of its share */
    int64_t tokens;     /* of a microbatch on one cp rank */
    char *arena;        /* the lender's, where there is one */
    size_t arena_bytes;
    bool is_window;        /* the arena is the communicator's memory */
    void **address;        /* of every buffer */
    struct event **events; /* of every action that signals, otherwise NULL */
    struct event *joined[STREAM_COUNT];
    void *tables[TABLE_COUNT];
    int64_t *norms;            /* per unit: where its sums stand in the statistics */
    double *scratch;           /* device: partial sums of one operation of the compute stream */
    double *host_header;       /* counts, commands and values, out */
    double *statistics[2];     /* in: the last step's, and room for the next one's, which may fail on its way */
    float *host_expert_tokens; /* of the experts, from the statistics */
    int32_t *host_tokens;      /* [slot][BATCH_ROWS][N], pinned, as LOAD copies them; NULL: from the batch itself */
    int agree;                 /* index of AGREE; DECIDE follows it. n_actions: the program has none */
    int sync_point;            /* program_sync_point */
    struct final *finals;
    int n_finals;
    struct recorded *recorded;     /* [n_actions]; NULL: there is no flight recorder */
    struct timestamps *timestamps; /* [TIME_COUNT * n_actions] */

    /* --- written by step.c only */
    enum exec_stage stage;
    const struct exec_batch *batch; /* of the step under way */
    const struct update *update;    /* NULL: the step is skipped */
    int newest;                     /* which of statistics is the last step's */
    bool has_statistics;
    int next_final;
    int64_t waited_ns;
    struct lookahead lookahead;
    struct segments segments;
    int64_t *times; /* [TIME_COUNT][n_actions], as they were read last */
    bool timed;     /* this step's actions are */
    int done;       /* actions up to here have run, whatever their events say; -1: none */
};

/* One action about to run. */
struct call {
    struct exec *e;
    const struct action *a;
    const struct operand *o;
    const struct op_params *p;
    const struct device_ops *ops;
    struct stream *s;
    struct titan_error *err;
};

static inline struct call exec_call(struct exec *e, int index, struct titan_error *err)
{
    const struct action *const a = &e->p->actions[index];
    return (struct call){.e = e,
                         .a = a,
                         .o = action_operands(e->p, a),
                         .p = action_params(e->p, a),
                         .ops = e->ops,
                         .s = e->opt.streams[a->stream],
                         .err = err};
}
/* Enqueue the action's operation on its stream. */
titan_status exec_dispatch(const struct call *c) TITAN_MUST_USE;
/* warmup.c: where there are peers, call each different product and attention of the program once, on whatever the arena
 * holds. A library loads a kernel when that is first called, which waits for all that runs on the GPU: with a
 * collective among that, for a peer that may wait for this rank. Nothing is in flight meanwhile. */
titan_status exec_warm_up(struct exec *e, struct titan_error *err) TITAN_MUST_USE;
/* warmup.c, too: of the program's actions that are wanted, all on the compute stream, call the first of those that are
 * the same, and wait for that stream. */
titan_status exec_run_distinct(struct exec *e, bool (*wanted)(const struct action *a, const struct op_params *p),
                               bool (*same)(const struct exec *e, const struct action *a, const struct action *b),
                               struct titan_error *err) TITAN_MUST_USE;
/* recorder.c: around an action's operation, where there is a flight recorder. */
titan_status recorder_open(struct exec *e, struct titan_error *err) TITAN_MUST_USE;
void recorder_begin(const struct call *c, int index);
void recorder_end(const struct call *c, int index);
/* lookahead.c: so many actions have been enqueued. */
titan_status lookahead_bound(struct exec *e, int actions, struct titan_error *err) TITAN_MUST_USE;
void lookahead_begin(struct lookahead *p); /* a step begins */
titan_status lookahead_open(const struct device_handle *device, struct lookahead *ret,
                            struct titan_error *err) TITAN_MUST_USE;
void lookahead_close(const struct device_ops *ops, struct lookahead *p); /* the stream is idle */
/* segments.c: where they are wanted, and the device has some. */
titan_status segments_open(struct exec *e, struct titan_error *err) TITAN_MUST_USE;
void segments_close(struct exec *e);                                                 /* the stream is idle */
titan_status segments_begin(struct exec *e, struct titan_error *err) TITAN_MUST_USE; /* a step begins */
/* The run that an action is of; NULL: it is enqueued by itself. */
struct run *segments_run_of(const struct exec *e, int index);
/* Enqueue the run: kept before, or now. false: it cannot be kept, nothing has been enqueued, and from now on there are
 * none. */
titan_status segments_launch(struct exec *e, struct run *r, bool *ret_done, struct titan_error *err) TITAN_MUST_USE;

#endif
