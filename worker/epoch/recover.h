/* SPDX-License-Identifier: Apache-2.0 */
/* recover.h - the state of an epoch: from the workers' holdings of the previous epoch, from a checkpoint, or from
 * initialization.
 *
 * An epoch's state counts when every member has its shard (*installed*). Until then the previous state is kept, in case
 * a worker is lost meanwhile. The previous epoch is kept too, because its prepared step may have to be finished. */
#ifndef TITAN_WORKER_EPOCH_RECOVER_H
#define TITAN_WORKER_EPOCH_RECOVER_H

#include "worker/elastic/buddy.h"
#include "worker/elastic/restore.h"

struct trainer;
struct epoch;

/* The process's state between epochs. Written by recover.c only. */
struct held_state {
    struct held_shards installed; /* empty until the first epoch has its state */
    struct held_shards pending;   /* shards of a later epoch whose barrier has failed; empty = none */
    struct epoch *last; /* ended epoch of `installed`, needed to finish its last step; NULL: the epoch ran no step */
};

/* Finishes the last epoch's prepared step, with another rank's statistics of that step. */
typedef titan_status (*finish_step_fn)(struct epoch *last, const double *statistics, struct titan_error *err);

/* Lives within an epoch. Written by recover.c only. */
struct epoch_state {
    finish_step_fn finish;
    struct restore restore;
    struct verified verified;  /* the state at the epoch's start */
    struct held_shards shards; /* shards of this epoch; the same as held_state.installed once they are installed */
    bool installed;
    struct buddy *buddy; /* NULL: no replicas are kept */
};

/* Finds which rank holds which shards. If any rank has committed a step, all ranks finish it. Collective over members
 * and departing ranks, like recover_install and recover_hand_over. */
titan_status recover_agree(struct epoch *e, finish_step_fn finish, struct titan_error *err) TITAN_MUST_USE;
/* Fills this rank's shard and its copy of the owner's shard. Installs both when every member has its own shard. */
titan_status recover_install(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* On a departing rank, after recover_agree: hands over its shards, and drops them. */
titan_status recover_hand_over(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;

/* This worker's holdings for the next epoch. */
struct brought recover_held(const struct trainer *t);
/* The report to the coordinator about the holdings after the epoch. paused: the epoch was left at an agreed
 * boundary. */
struct quiesced recover_quiesced(const struct trainer *t, const struct epoch_view *view, bool paused);
/* Call when the epoch is over. Keeps e if one of its steps may have to be finished; frees it otherwise. */
void recover_keep(struct trainer *t, struct epoch *e);
void recover_close(struct trainer *t);
void recover_free(struct epoch *e);

#endif
