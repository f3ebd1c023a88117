/* SPDX-License-Identifier: Apache-2.0 */
/* restore.h - the fallback order (docs/membership.md): an epoch's state from the memory of its members, where that
 * covers every shard; otherwise from the newest checkpoint that loads; otherwise from the beginning.
 *
 * In several calls, because the room for the new state is only wanted when an unfinished step is finished:
 * restore_agree, then restore_fill and restore_verify until that is content. All are collective and come to the same
 * recovery source on all ranks. */
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
    const struct run_identity *identity; /* of this process: what it has read counts where memory is the source */
    const struct model *model;
    const struct device_handle *device;
    const struct comm_ops *ops;
    struct comm *comm; /* members and departing ranks; NULL: alone */
    struct stream *s;
    const atomic_int *stop; /* not zero: the epoch is revoked; NULL: it cannot be */
    struct log *log;
    struct brought brought;
    const char
        *folder;  /* of this run's checkpoints: what is found there counts as well as what view names; NULL: none */
    int retry_ms; /* how long a checkpoint that is there and cannot be read is tried again */
    int still_ms; /* one of which nothing moves for so long has stalled (0: never); one that did so twice is damaged */
    /* Such a one, each time. */
    void (*unreadable)(void *arg, const char *path, const char *why);
    /* Finish the prepared step with its statistics (size doubles), in all shards this worker has; only called where it
     * is prepared. TITAN_ECONFLICT: they are not that many. */
    titan_status (*finish)(void *arg, const double *statistics, int64_t size, struct titan_error *err);
    void *arg;
    /* --- found */
    struct layout *from; /* the source epoch's cut */
    struct holdings holdings;
    bool covered; /* the members' memory covers every shard */
    enum recovery_source recovery_source;
    uint64_t parameters;       /* hash of the model's, as it was before the move */
    bool rolled_forward;       /* by any rank */
    uint64_t bytes_sent;       /* by this rank */
    char damaged[PATH_MAX];    /* checkpoint that was refused; "" = none */
    char loaded[PATH_MAX];     /* SOURCE_CHECKPOINT: which */
    struct run_identity found; /* filled: what the run has read, and its line, up to the state; data.n 0: nothing */
};

/* Which rank holds what; a prepared step that any rank has committed is finished on all that hold a shard. */
titan_status restore_agree(struct restore *r, struct titan_error *err) TITAN_MUST_USE;
/* to: empty, of the new cut; NULL: this rank is a departing rank. Where there are checkpoints and none loads it fails,
 * with TITAN_EINVAL: to begin again from step 0 over them is never right. One that cannot be read is waited for. */
titan_status restore_fill(struct restore *r, const struct layout *cut, struct train_state *to,
                          struct titan_error *err) TITAN_MUST_USE;
/* What replicas and buddies have is the same, and what has moved is what was there. shards: of the new mesh, with the
 * owner's copy filled; none: a departing rank. *ret_again: it is not, and restore_fill takes a later source of the
 * fallback order now. TITAN_ECORRUPT: there is none. *ret: hash of the parameters, bytes that all ranks have moved. */
titan_status restore_verify(struct restore *r, const struct mesh *mesh, const struct held_shards *shards,
                            struct verified *ret, bool *ret_again, struct titan_error *err) TITAN_MUST_USE;
void restore_clear(struct restore *r);

#endif
