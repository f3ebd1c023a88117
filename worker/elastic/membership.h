/* SPDX-License-Identifier: Apache-2.0 */
/* membership.h - the training loop's source of epochs and commands.
 *
 * There are two implementations: agent_connection.c (elastic; the agent decides) and solo.h (`titan-worker run`: fixed
 * members, one epoch). A control thread receives commands. The training thread calls all functions here except the
 * callbacks and progress. */
#ifndef TITAN_WORKER_ELASTIC_MEMBERSHIP_H
#define TITAN_WORKER_ELASTIC_MEMBERSHIP_H

#include <stdatomic.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/listen.h"
#include "worker/metrics/report.h"

/* COMMAND_CHECKPOINT: write a checkpoint first, if the recipe has checkpoints. COMMAND_MUST together with
 * COMMAND_CHECKPOINT: write it also if the recipe has no checkpoints. 8 is no command: PART_FAILED (epoch/due.h) shares
 * the mask. */
enum { COMMAND_PAUSE = 1, COMMAND_STOP = 2, COMMAND_CHECKPOINT = 4, COMMAND_MUST = 16 };

enum state_source { STATE_FROM_INIT, STATE_FROM_CHECKPOINT, STATE_FROM_MEMORY };
/* Source of an epoch's state (RecoverySource of agent.proto): the first source that covered every shard. */
enum recovery_source {
    RECOVERY_SOURCE_INIT,
    RECOVERY_SOURCE_CHECKPOINT,
    RECOVERY_SOURCE_MEMORY,
    RECOVERY_SOURCE_REPLICA,
    RECOVERY_SOURCE_BUDDY
};
const char *recovery_source_name(enum recovery_source recovery_source); /* "buddy" */

/* One epoch in one member's view. Valid until the next call of membership_ops.next. */
struct epoch_view {
    uint64_t epoch;
    unsigned char comm_id[16];
    bool keyed;
    unsigned char key[32]; /* for registrations among the members */
    int rank, world;
    /* Members of the source epoch that hand over their shards and leave once the state is installed. They are the ranks
     * from world on, in the communicator that moves the state. rank >= world: this worker is departing. */
    int departing;
    const char *const *addresses;  /* of all ranks, then of the departing ranks */
    const int *nodes;              /* of the same ranks; equal numbers: one host; NULL: all share one host */
    const char *const *node_names; /* of the same ranks; NULL = no names */
    int memfd;                     /* shared-memory segment; -1 when members span hosts */
    enum state_source source;
    uint64_t resume_step; /* the step that the coordinator knows; the members' holdings decide */
    /* The newest checkpoint, "" = none; with STATE_FROM_MEMORY it is the fallback for an incomplete state. The older
     * checkpoints, newest first, are the fallback for a damaged one. */
    char checkpoint_path[PATH_MAX];
    int n_older;
    const char *const *older_checkpoints;
    /* For STATE_FROM_MEMORY. source_epoch: the epoch of the wanted shards; 0: whatever is installed. holders: its
     * world. holder_ranks: for each of its ranks, the rank in this epoch; -1 = the rank is gone. */
    bool memory_only; /* leave the epoch if memory does not cover the model */
    uint64_t source_epoch;
    int holders;
    const int *holder_ranks;
};

/* Holdings of a worker that left an epoch (docs/membership.md). */
struct quiesced {
    uint64_t epoch;
    uint64_t last_step;       /* last step of the installed state */
    bool paused;              /* left at an agreed boundary; false = revoked */
    bool prepared;            /* step last_step + 1 needs only the sums of its commit point */
    uint64_t installed_epoch; /* epoch of the installed state; 0 = the worker has no state */
    uint64_t pending_epoch;   /* epoch with a complete part here whose barrier was not passed; 0 = none */
};

/* Rank 0's report of a checkpoint that is complete on disk. */
struct checkpoint_report {
    uint64_t step, bytes;
    const char *path;
    int world;
    uint64_t resumable_step, sound_step; /* older checkpoints kept beyond the kept number; 0 = none */
};

/* All members of an epoch have their state. */
struct state_ready {
    uint64_t epoch, step; /* the first step to run is step + 1 */
    enum recovery_source recovery_source;
    uint64_t bytes_moved; /* of all ranks */
    uint64_t params_hash;
    bool rolled_forward;                              /* a prepared step was finished first */
    double connect_ms, plan_ms, state_ms, prepare_ms; /* on this rank */
    const char *damaged_checkpoint; /* a checkpoint that was refused before another source was used; "" = none */
};

struct membership;
struct membership_ops {
    /* Call once, before the first `next`: data and device are open, so that this worker delays none of its epochs. NULL
     * slot: no process waits for this call. */
    void (*opened)(struct membership *m);
    /* Blocks until the next epoch forms. TITAN_ECANCELLED: the worker must stop; err->msg has the reason. */
    titan_status (*next)(struct membership *m, struct epoch_view *ret, struct titan_error *err);
    /* The control thread calls fn when the current epoch is revoked. Set it before the communicator opens, clear it
     * (NULL) before the communicator closes; clearing waits for a running callback. */
    void (*on_revoke)(struct membership *m, void (*fn)(void *arg), void *arg);
    /* The control thread calls fn when the next epoch's size becomes known, at least a step before the epoch forms. If
     * the size is already known, it calls at once. Clearing (NULL) waits for a running callback. NULL slot: fn is never
     * called. */
    void (*on_next_world)(struct membership *m, void (*fn)(void *arg, int world), void *arg);
    /* Non-zero while the current epoch is revoked; for comm_ops.open. */
    const atomic_int *(*revoked)(struct membership *m);
    /* Commands to pause or stop at a step boundary: bits of COMMAND_*. Polled each step; the ranks agree on them
     * in-band. */
    unsigned (*commands)(struct membership *m);
    /* The worker left the epoch (revoked, or paused at an agreed boundary). */
    void (*quiesced)(struct membership *m, const struct quiesced *q);
    /* Rank 0 calls it before the first step of the epoch. */
    void (*state_ready)(struct membership *m, const struct state_ready *ready);
    /* Every rank calls it for every step, as soon as all ranks have the step's report. A rank does not call it for a
     * step that only this rank has. Any thread, one at a time. */
    void (*progress)(struct membership *m, const struct step_report *report);
    /* Every rank calls it once all ranks have the evaluation. A later epoch may repeat a step's evaluation. */
    void (*evaluated)(struct membership *m, const struct evaluation_report *report);
    void (*checkpoint_written)(struct membership *m, const struct checkpoint_report *report);
    /* A checkpoint could not be written (path: the folder of checkpoints) or read, and is retried. */
    void (*checkpoint_failed)(struct membership *m, uint64_t step, const char *path, const char *reason, bool reading);
    void (*finished)(struct membership *m, uint64_t step);
    /* Last words: the process is about to exit with err's status. */
    void (*failing)(struct membership *m, const struct titan_error *err);
    void (*close)(struct membership *m);
};
struct membership {
    const struct membership_ops *ops;
    char job_dir[PATH_MAX];
    int listener;              /* comm_listen socket of this worker; -1 = none */
    int solo_world, solo_rank; /* solo only: number of members, and this member's rank */
    /* The run's id and name (worker/checkpoint/folder.h). All ranks of the run have the same id, and no other run has
     * it. */
    char run_id[128], run_name[128];
};

/* worker/elastic/agent_connection.c: membership over the agent's socket. fds and names come from the agent
 * (docs/architecture.md, "agent and worker"). */
struct agent_connection_options {
    const char *socket, *page; /* paths */
    int page_fd, flight_fd;    /* open page and flight recorder, if this process may not open these files; else 0 */
    uint64_t job_id, worker_id;
    const char *host;          /* this worker's address for its peers */
    struct listen_ports ports; /* range for its port; 0 = any */
    const char *job_dir;
    const char *run; /* membership.run_id */
};
titan_status membership_agent_open(const struct agent_connection_options *options, struct membership **ret,
                                   struct titan_error *err) TITAN_MUST_USE;

#endif
