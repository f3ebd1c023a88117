/* SPDX-License-Identifier: Apache-2.0 */
/* recover.h - the state of an epoch: from what this worker and the others held of the one before, from a checkpoint, or
 * from the beginning.
 *
 * The state of an epoch counts when every member has its shard (*installed*). Until then the one before is kept, for a
 * loss in between; so is the epoch it belongs to, because a prepared step of it may have to be finished. */
#ifndef TITAN_WORKER_EPOCH_RECOVER_H
#define TITAN_WORKER_EPOCH_RECOVER_H

#include "worker/elastic/buddy.h"
#include "worker/elastic/restore.h"

struct trainer;
struct epoch;

/* What the process holds between epochs. Written by recover.c only. */
struct held_state {
    struct held_shards installed; /* nothing until the first epoch has its state */
    struct held_shards pending;   /* of a later epoch with a barrier that failed; nothing: there is none */
    struct epoch *last;           /* of `installed`, over: what finishing its last step takes; NULL: it has run none */
};

/* Finish the prepared step of the epoch that was the last, with the statistics another rank has of it. */
typedef titan_status (*finish_step_fn)(struct epoch *last, const double *statistics, struct titan_error *err);

/* Within an epoch. Written by recover.c only. */
struct epoch_state {
    finish_step_fn finish;
    struct restore restore;
    struct verified verified;  /* the state it began with */
    struct held_shards shards; /* of this epoch; the same as held_state.installed when they are installed */
    bool installed;
    struct buddy *buddy; /* NULL: no replicas are kept */
};

/* Which rank holds what; a step that any rank has committed is finished by all. Collective over members and departing
 * ranks, as install and hand_over are. */
titan_status recover_agree(struct epoch *e, finish_step_fn finish, struct titan_error *err) TITAN_MUST_USE;
/* Fill this rank's shard and its replica of another's, and install them when every member has its own. */
titan_status recover_install(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* A departing rank, after recover_agree: give what it has, and hold nothing any more. */
titan_status recover_hand_over(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;

/* What this worker can bring into the next epoch. */
struct brought recover_held(const struct trainer *t);
/* For the coordinator: what it holds after the epoch; paused: at an agreed boundary. */
struct quiesced recover_quiesced(const struct trainer *t, const struct epoch_view *view, bool paused);
/* The epoch is over. Takes it where a step of it may have to be finished; frees it otherwise. */
void recover_keep(struct trainer *t, struct epoch *e);
void recover_close(struct trainer *t);
void recover_free(struct epoch *e);

#endif
