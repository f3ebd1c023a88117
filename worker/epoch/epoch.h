/* SPDX-License-Identifier: Apache-2.0 */
/* epoch.h - what lives as long as an epoch. Each struct in here is written by one file, which its comment names. */
#ifndef TITAN_WORKER_EPOCH_EPOCH_H
#define TITAN_WORKER_EPOCH_EPOCH_H

#include "worker/data/loader.h"
#include "worker/epoch/checkpoints.h"
#include "worker/epoch/evaluation.h"
#include "worker/epoch/groups.h"
#include "worker/epoch/layers.h"
#include "worker/epoch/profile.h"
#include "worker/epoch/publish.h"
#include "worker/epoch/recover.h"
#include "worker/epoch/step_clock.h"
#include "worker/epoch/trainer.h"
#include "worker/exec/exec.h"
#include "worker/optim/outcome.h"

/* epoch.c: the programs of this world. */
struct epoch_plan {
    struct plan *plan;
    struct program *program;   /* this rank's */
    struct program **programs; /* of all classes but this rank's, until the executor is open */
    uint32_t channels;         /* bits: those that any rank's program uses, in a step or in an evaluation */
    uint32_t streams;          /* likewise, of this rank */
    uint64_t hash;             /* plan_hash of a step's */
    size_t memory_bytes;       /* of the device: a step's or an evaluation's, whichever needs more */
    bool for_loss;             /* the next one, if a worker is lost, is being made */
    int64_t first_microbatch;  /* of this rank's share */
};

/* train.c: the step under way. */
struct step {
    struct update update;
    struct step_outcome outcome;
    double learning_rate;
    int64_t began_ns;
    struct step_clock clock;
};

struct epoch {
    struct trainer *t;
    struct epoch_view view;
    struct groups groups;
    struct epoch_plan plan;
    struct epoch_state state;
    struct loader loader;
    struct exec *exec;
    double peak; /* epoch.c: FLOP/s, of the devices of all ranks together; 0: not known */
    struct evaluation evaluation;
    struct checkpoints checkpoints;
    struct published published;
    struct layers layers;
    struct profile profile;
    struct step step;
};

titan_status epoch_open(struct trainer *t, const struct epoch_view *view, struct epoch **ret,
                        struct titan_error *err) TITAN_MUST_USE;
/* Out of the epoch: checkpoints are finished or given up, no operation is left that touches what is freed, and the
 * communicators are closed. failed: no peer is waited for; otherwise all ranks leave at an agreed end. TITAN_EDEVICE:
 * left all the same, and the process cannot go on. */
titan_status epoch_leave(struct epoch *e, bool failed, struct titan_error *err) TITAN_MUST_USE;
void epoch_free(struct epoch *e); /* after epoch_leave; NULL is fine */

/* The programs of all classes, built and checked together, ahead of time where the world was expected. */
titan_status epoch_make_plan(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* After a step: begin with the plan that is likely next, of the world that is left when a worker is lost; once. */
void epoch_plan_for_loss(struct epoch *e);
/* Device memory of a program, external buffers included. */
size_t epoch_device_bytes(const struct program *p);
/* An executor of one of this rank's programs. cut: of its microbatch. lender: of another one, which lends its arena;
 * NULL: it has its own, with room for an evaluation's too. */
titan_status epoch_open_executor(struct epoch *e, const struct program *program, const struct sequence_cut *cut,
                                 struct exec *lender, struct exec **ret, struct titan_error *err) TITAN_MUST_USE;
/* Members tell each other what they read and what they compute on. TITAN_EINVAL names two nodes that read different
 * data. */
titan_status epoch_introduce(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* Loader, executor, checkpoint writer and metrics: the state is installed, steps can run. */
titan_status epoch_prepare_steps(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;

#endif
