/* SPDX-License-Identifier: Apache-2.0 */
/* epoch.h - the data that lives as long as an epoch. One file writes each struct here; its comment names the file. */
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
    struct program **programs; /* programs of all other classes, kept until the executor is open */
    uint32_t channels;         /* bits: channels of any rank's program, in a step or an evaluation */
    uint32_t streams;          /* bits: streams of this rank's programs, in a step or an evaluation */
    uint64_t hash;             /* plan_hash of the plan for a step */
    size_t memory_bytes;       /* device memory: the larger of a step's and an evaluation's */
    bool for_loss;             /* the planner has been asked for the plan after the loss of a worker */
    int64_t first_microbatch;  /* first microbatch of this rank's share */
};

/* train.c: the current step. */
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
    double peak; /* epoch.c: FLOP/s of all ranks' devices together; 0 = unknown */
    struct evaluation evaluation;
    struct checkpoints checkpoints;
    struct published published;
    struct layers layers;
    struct profile profile;
    struct step step;
};

/* The members, as ranks that exchange values. */
static inline struct peer_ranks epoch_members(const struct epoch *e)
{
    return (struct peer_ranks){.device = &e->t->device,
                               .ops = e->groups.ops,
                               .comm = e->groups.comms[CHANNEL_WORLD],
                               .n = e->view.world,
                               .s = e->t->streams[STREAM_COMPUTE]};
}

titan_status epoch_open(struct trainer *t, const struct epoch_view *view, struct epoch **ret,
                        struct titan_error *err) TITAN_MUST_USE;
/* Leaves the epoch: checkpoints are finished or given up, pending operations on freed data end, and the communicators
 * are closed. failed: the call waits for no peer. Otherwise all ranks leave at an agreed end. TITAN_EDEVICE: the epoch
 * is left, but the process cannot go on. */
titan_status epoch_leave(struct epoch *e, bool failed, struct titan_error *err) TITAN_MUST_USE;
void epoch_free(struct epoch *e); /* after epoch_leave; NULL is fine */

/* Builds and checks the programs of all classes together, or takes the plan that was made ahead if this world was
 * expected. */
titan_status epoch_make_plan(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* Call after a step. The first call starts to make the likely next plan, for the world after the loss of one worker. */
void epoch_plan_for_loss(struct epoch *e);
/* Device memory of a program, external buffers included. */
size_t epoch_device_bytes(const struct program *p);
/* Opens an executor for one of this rank's programs. cut: cut of the program's microbatch. lender: an executor that
 * lends its arena; NULL: the new executor has its own arena, which is large enough for an evaluation, too. */
titan_status epoch_open_executor(struct epoch *e, const struct program *program, const struct sequence_cut *cut,
                                 struct exec *lender, struct exec **ret, struct titan_error *err) TITAN_MUST_USE;
/* Members exchange descriptions of their data and their devices. TITAN_EINVAL names two nodes that read different
 * data. */
titan_status epoch_introduce(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* Call when the state is installed. Opens loader, executor, checkpoint writer and metrics, so that steps can run. */
titan_status epoch_prepare_steps(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;

#endif
