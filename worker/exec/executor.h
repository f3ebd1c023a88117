/* SPDX-License-Identifier: Apache-2.0 */
/* executor.h - shared by the files of exec/: exec.c (opening, and how each operation runs), step.c (a step's calls),
 * segments.c, lookahead.c, recorder.c, warmup.c and products.c. Private to the executor. */
#ifndef TITAN_WORKER_EXEC_EXECUTOR_H
#define TITAN_WORKER_EXEC_EXECUTOR_H

#include "base/flight.h"
#include "worker/exec/exec.h"

/* The stage of a step, EXEC_IDLE after the open. After a failure the stage stays. */
enum exec_stage {
    EXEC_IDLE,     /* no step has begun, or the last step's update is enqueued */
    EXEC_REDUCING, /* actions before AGREE are being enqueued */
    EXEC_REDUCED,  /* all actions before AGREE have succeeded here */
    EXEC_DECIDED,  /* the statistics are here; the direction section and COMMIT follow */
    EXEC_PREPARED, /* only the numbers of the commit point are missing */
    EXEC_AGREED,   /* they are here: the step is committed */
};

/* Bounds how far the host is ahead of a device with a queue. The compute stream gets a mark after every `every`
 * actions. When the host places a mark, it waits for the previous mark. So a launch never blocks, and little work is
 * left when an epoch ends. */
struct lookahead {
    struct event *marks[2]; /* NULL: the device has no queue */
    int every;              /* actions between marks */
    int passed;             /* actions since the last mark */
    int placed;             /* marks in this step */
    int64_t reached_ns;     /* when the last awaited mark was reached; 0 = none */
};

/* Consecutive actions of the compute stream, launched as one (segments.c). Other streams wait only for the last action
 * of a run. Only the first action waits for other streams. */
struct run {
    int first, last, n;
    struct segment *kept; /* NULL = not kept yet */
};

struct segments {
    bool on;
    bool found; /* the runs are found */
    int steps;  /* number of begun steps; all one-time work, and the measurement of `every`, is in the first step */
    struct run *runs;
    int n;
    int *run_of; /* [n_actions], for actions of the compute stream; -1 = none */
};

/* An action in the flight recorder. There is one entry per action, because the stream has run an action before it is
 * enqueued again. */
struct recorded {
    struct flight_what what;
    struct flight_mark mark;
};

/* Timestamps of an action: the action itself, and the computation's wait before it. */
enum { TIME_BEGAN, TIME_ENDED, TIME_WAIT_BEGAN, TIME_WAIT_ENDED, TIME_COUNT };

struct exec {
    struct exec_options opt;
    const struct program *p;
    const struct device_ops *ops;
    int at[AXIS_COUNT]; /* this rank's coordinates in the mesh */
    int64_t from;       /* first microbatch of this rank's share */
    int64_t tokens;     /* per microbatch on one cp rank */
    char *arena;        /* the lender's, if any */
    size_t arena_bytes;
    bool is_window;        /* the arena is the communicator's memory */
    void **address;        /* per buffer */
    struct event **events; /* events of the actions that signal; NULL for other actions */
    struct event *joined[STREAM_COUNT];
    void *tables[TABLE_COUNT];
    int64_t *norms;            /* per unit: index of its sums in the statistics */
    double *scratch;           /* device memory: partial sums of one operation of the compute stream */
    double *host_header;       /* counts, commands and values to send */
    double *statistics[2];     /* received: the last step's, and space for the next step's, which may fail to arrive */
    float *host_expert_tokens; /* per expert, from the statistics */
    float *host_scales;        /* [tensors] of this step's held scales; NULL: the program holds none */
    int32_t *host_tokens;      /* [slot][batch_rows][N], pinned, source of LOAD; NULL: LOAD reads the batch itself */
    int agree;                 /* index of AGREE, which DECIDE follows; n_actions: the program has no AGREE */
    int commit;                /* index of the commit point: COMMIT, or AGREE without a direction section */
    int sync_point;            /* program_sync_point */
    int whole;                 /* index of WHOLE; n_actions: the program has none */
    struct owner_route **routes; /* [units]: parts of matrices that go to owners; NULL: there are no owners */
    struct final *finals;
    int n_finals;
    struct recorded *recorded;     /* [n_actions]; NULL = no flight recorder */
    struct timestamps *timestamps; /* [TIME_COUNT * n_actions] */

    /* --- written by step.c only */
    enum exec_stage stage;
    const struct exec_batch *batch; /* of the current step */
    const struct update *update;    /* NULL: the step is skipped */
    int newest;                     /* index in `statistics` of the last step's statistics */
    bool has_statistics;
    int next_final;
    int64_t waited_ns;
    struct lookahead lookahead;
    struct segments segments;
    int64_t *times; /* [TIME_COUNT][n_actions], from the last reading */
    bool timed;     /* this step's actions are timed */
    int done;       /* actions up to this index have run, even if their events say otherwise; -1 = none */
};

/* One action to run. */
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
/* Enqueues the action's operation on its stream. */
titan_status exec_dispatch(const struct call *c) TITAN_MUST_USE;
#define NORM_BLOCK 4096 /* elements that are summed at a time where the order of sums is not fixed */
/* Adds the sum of x (n), or of its squares, to *out. */
static inline titan_status exec_add_sum(const struct call *c, double *out, const float *x, int64_t n, bool square)
{
    if (n == 0)
        return TITAN_OK;
    TRY(c->ops->block_sums(c->s, c->e->scratch, x, (size_t)n, NORM_BLOCK, square));
    return c->ops->sum(c->s, out, true, c->e->scratch, (size_t)((n + NORM_BLOCK - 1) / NORM_BLOCK));
}
/* warmup.c: if there are peers, calls each distinct product and attention of the program once, on undefined arena
 * contents. A library loads a kernel at its first call and then waits for all work on the GPU. This work may include a
 * collective that waits for a peer, and the peer may wait for this rank. At the time of this call nothing is in
 * flight. */
titan_status exec_warm_up(struct exec *e, struct titan_error *err) TITAN_MUST_USE;
/* warmup.c: groups the wanted actions, all on the compute stream, into sets of equal actions. Calls the first action of
 * each set, and waits for the stream. */
titan_status exec_run_distinct(struct exec *e, bool (*wanted)(const struct action *a, const struct op_params *p),
                               bool (*same)(const struct exec *e, const struct action *a, const struct action *b),
                               struct titan_error *err) TITAN_MUST_USE;
/* recorder.c: begin and end of an action's operation, if there is a flight recorder. */
titan_status recorder_open(struct exec *e, struct titan_error *err) TITAN_MUST_USE;
void recorder_begin(const struct call *c, int index);
void recorder_end(const struct call *c, int index);
/* lookahead.c: counts enqueued actions, and waits at a mark. */
titan_status lookahead_bound(struct exec *e, int actions, struct titan_error *err) TITAN_MUST_USE;
void lookahead_begin(struct lookahead *p); /* a step begins */
titan_status lookahead_open(const struct device_handle *device, struct lookahead *ret,
                            struct titan_error *err) TITAN_MUST_USE;
void lookahead_close(const struct device_ops *ops, struct lookahead *p); /* the stream must be idle */
/* segments.c: opens segments if they are wanted and the device supports them. */
titan_status segments_open(struct exec *e, struct titan_error *err) TITAN_MUST_USE;
void segments_close(struct exec *e);                                                 /* the stream must be idle */
titan_status segments_begin(struct exec *e, struct titan_error *err) TITAN_MUST_USE; /* a step begins */
/* The run that contains the action; NULL: the action is enqueued alone. */
struct run *segments_run_of(const struct exec *e, int index);
/* Enqueues the run. A run that is not kept yet is kept first. *ret_done false: the run cannot be kept, nothing was
 * enqueued, and segments are off from now on. */
titan_status segments_launch(struct exec *e, struct run *r, bool *ret_done, struct titan_error *err) TITAN_MUST_USE;
/* owned.c: operations of owners of matrices. They enqueue; a skipped step has none of them. */
titan_status exec_open_routes(struct exec *e, struct titan_error *err) TITAN_MUST_USE;
void exec_close_routes(struct exec *e);
titan_status exec_to_owners(const struct call *c, float *values, float *cut_parts, float *gradient) TITAN_MUST_USE;
titan_status exec_from_owners(const struct call *c, float *gradient, float *cut_parts, float *values) TITAN_MUST_USE;
titan_status exec_whole(const struct call *c, double *sums, float *values, float *next, void *work, const void *state,
                        const float *masters) TITAN_MUST_USE;
titan_status exec_adopt(const struct call *c, void *state, const float *next, int64_t n) TITAN_MUST_USE;
/* gathered.c: what a rank sends of its range of a unit, and a unit's parameters from what all ranks sent. */
/* levels: a table of exec_learn_levels(), or NULL: even levels. */
titan_status exec_encode_weights(const struct call *c, uint8_t *codes, char *others, const char *shard,
                                 const float *levels) TITAN_MUST_USE;
titan_status exec_decode_weights(const struct call *c, char *full, const uint8_t *codes, const char *others,
                                 const float *levels) TITAN_MUST_USE;
titan_status exec_count_weights(const struct call *c, int32_t *counts, const char *shard) TITAN_MUST_USE;
titan_status exec_learn_levels(const struct call *c, float *levels, const int32_t *counts) TITAN_MUST_USE;
/* parts.c: directions of parts that replicas send each other. They enqueue; a skipped step has none of them. */
titan_status exec_parts_extract(const struct call *c, double *sums, void *sent, float *gradient,
                                const void *state) TITAN_MUST_USE;
titan_status exec_parts_combine(const struct call *c, float *gradient, void *state,
                                const void *received) TITAN_MUST_USE;

#endif
