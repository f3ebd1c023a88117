/* SPDX-License-Identifier: Apache-2.0 */
/* restore.h - the fallback order (docs/membership.md): an epoch's state comes from its members' memory if this memory
 * covers every shard, otherwise from the newest checkpoint that can be loaded, otherwise from initialization.
 *
 * Call restore_agree first, then restore_fill and restore_verify until restore_verify accepts. These are several calls,
 * because an unfinished step must be finished before the new state's memory is allocated. All calls are collective and
 * give all ranks the same recovery source. */
#ifndef TITAN_WORKER_ELASTIC_RESTORE_H
#define TITAN_WORKER_ELASTIC_RESTORE_H

#include "base/log.h"
#include "base/recipe.h"
#include "worker/checkpoint/identity.h"
#include "worker/elastic/verify.h"

struct restore {
    /* --- given */
    const struct epoch_view *view;
    const struct recipe *recipe;
    const struct run_identity *identity; /* of this process; its read samples count if memory is the source */
    const struct model *model;
    struct peer_ranks ranks; /* members and departing ranks */
    const atomic_int *stop;  /* not zero: the epoch is revoked; NULL: no revokes */
    struct log *log;
    struct brought brought;
    const char *folder; /* folder of this run's checkpoints, which count like the view's; NULL = none */
    int retry_ms;       /* how long failed reads are retried */
    int still_ms;       /* a read stalls after this long without progress (0: never); two stalls count as damage */
    /* Called for each stall. */
    void (*unreadable)(void *arg, const char *path, const char *why);
    /* Finishes the prepared step with its statistics (size doubles), in all shards of this worker; called only if the
     * step is prepared. TITAN_ECONFLICT: wrong size. */
    titan_status (*finish)(void *arg, const double *statistics, int64_t size, struct titan_error *err);
    void *arg;
    /* --- found */
    struct layout *from; /* layout of the source epoch */
    struct holdings holdings;
    bool covered; /* the members' memory covers every shard */
    enum recovery_source recovery_source;
    uint64_t parameters;       /* hash of the model's parameters before the move */
    bool rolled_forward;       /* any rank finished a prepared step */
    uint64_t bytes_sent;       /* by this rank */
    char damaged[PATH_MAX];    /* refused checkpoint; "" = none */
    char loaded[PATH_MAX];     /* SOURCE_CHECKPOINT: the loaded checkpoint */
    struct run_identity found; /* what the run has read up to the state, and its line; data.n 0 = not known */
};

/* Finds which rank holds which shards. If any rank has committed a step, all ranks with a shard on which the step is
 * only prepared finish it. */
titan_status restore_agree(struct restore *r, struct titan_error *err) TITAN_MUST_USE;
/* to: empty state in the new layout; NULL: this rank is departing. TITAN_EINVAL: there are checkpoints, but none can be
 * loaded; a restart from step 0 would be wrong. The call waits for an unreadable checkpoint. */
titan_status restore_fill(struct restore *r, const struct layout *cut, struct train_state *to,
                          struct titan_error *err) TITAN_MUST_USE;
/* Checks that replicas and buddies agree, and that the move changed nothing. shards: this rank's shards in the new
 * mesh, with the owner's copy filled; empty on a departing rank. *ret_again: the check failed, and restore_fill now
 * takes a later source of the fallback order. TITAN_ECORRUPT: there is no later source. *ret: hash of the parameters,
 * bytes moved by all ranks. */
titan_status restore_verify(struct restore *r, const struct mesh *mesh, const struct held_shards *shards,
                            struct verified *ret, bool *ret_again, struct titan_error *err) TITAN_MUST_USE;
void restore_clear(struct restore *r);

#endif
