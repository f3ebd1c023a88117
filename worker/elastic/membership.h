/* SPDX-License-Identifier: Apache-2.0 */
/* membership.h - what the training loop asks of the world outside: which epoch am I in, and what are my commands.
 *
 * Two implementations: agent_connection.c (an agent decides; elastic) and solo.h (`titan-worker run`: fixed members,
 * one epoch). A control thread behind it receives commands; the training thread calls everything here but the callbacks
 * and progress. */
#ifndef TITAN_WORKER_ELASTIC_MEMBERSHIP_H
#define TITAN_WORKER_ELASTIC_MEMBERSHIP_H

#include <stdatomic.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/listen.h"
#include "worker/metrics/report.h"

/* CHECKPOINT: write one first, if the recipe writes any; MUST: with it, also if it writes none. 8 is not a command:
 * PART_FAILED (epoch/due.h) goes with them. */
enum { COMMAND_PAUSE = 1, COMMAND_STOP = 2, COMMAND_CHECKPOINT = 4, COMMAND_MUST = 16 };

enum state_source { STATE_FROM_INIT, STATE_FROM_CHECKPOINT, STATE_FROM_MEMORY };
/* Where the state of an epoch came from (RecoverySource of agent.proto): the first that covered every shard. */
enum recovery_source {
    RECOVERY_SOURCE_INIT,
    RECOVERY_SOURCE_CHECKPOINT,
    RECOVERY_SOURCE_MEMORY,
    RECOVERY_SOURCE_REPLICA,
    RECOVERY_SOURCE_BUDDY
};
const char *recovery_source_name(enum recovery_source recovery_source); /* "buddy" */

/* One epoch as seen by one member. Valid until the next call of membership_ops.next. */
struct epoch_view {
    uint64_t epoch;
    unsigned char comm_id[16];
    bool keyed;
    unsigned char key[32]; /* for registrations among the members */
    int rank, world;
    /* Members of the source epoch that hand their shards over and are out when the state is installed: ranks world and
     * up of the communicator the state moves over. rank >= world: this worker is one. */
    int departing;
    const char *const *addresses;  /* of all ranks, then the departing ranks' */
    const int *nodes;              /* likewise: ranks with equal numbers share a host; NULL: all do */
    const char *const *node_names; /* likewise; NULL: they have none */
    int memfd;                     /* shared-memory segment; -1 when members span hosts */
    enum state_source source;
    uint64_t resume_step; /* as far as the coordinator knows; what the members hold decides */
    /* The newest, "" = none; with STATE_FROM_MEMORY for the case that the members do not hold the whole state. Those
     * before it, newer ones first, are for the case that it is damaged. */
    char checkpoint_path[PATH_MAX];
    int n_older;
    const char *const *older_checkpoints;
    /* STATE_FROM_MEMORY: the epoch of the shards that are wanted (0: whatever is installed), its world and, for each of
     * its ranks, the rank here that was it, -1 where it is gone. */
    bool memory_only; /* and when that does not cover the model: leave the epoch */
    uint64_t source_epoch;
    int holders;
    const int *holder_ranks;
};

/* What a worker that has left an epoch holds (docs/membership.md). */
struct quiesced {
    uint64_t epoch;
    uint64_t last_step;       /* of the installed state */
    bool paused;              /* at an agreed boundary; otherwise revoked */
    bool prepared;            /* step last_step + 1 needs nothing but the sum of AGREE */
    uint64_t installed_epoch; /* 0: it has no state */
    uint64_t pending_epoch;   /* it also has its whole part of this one, and did not pass the barrier; 0: none */
};

/* A checkpoint that is complete on disk, as rank 0 reports it. */
struct checkpoint_report {
    uint64_t step, bytes;
    const char *path;
    int world;
    uint64_t resumable_step, sound_step; /* older ones that stay beyond those that are counted; 0: none does */
};

/* All members of an epoch have their state. */
struct state_ready {
    uint64_t epoch, step; /* the first to run is step + 1 */
    enum recovery_source recovery_source;
    uint64_t bytes_moved; /* of all ranks */
    uint64_t params_hash;
    bool rolled_forward;                              /* a prepared step was finished first */
    double connect_ms, plan_ms, state_ms, prepare_ms; /* of this rank */
    const char *damaged_checkpoint;                   /* refused on the way; "" = none */
};

struct membership;
struct membership_ops {
    /* Once, before the first next: data and device are open, so this worker holds up no epoch that it is in. NULL slot:
     * no one waits for it. */
    void (*opened)(struct membership *m);
    /* Block until the next epoch forms. TITAN_ECANCELLED: told to stop; err->msg says why. */
    titan_status (*next)(struct membership *m, struct epoch_view *ret, struct titan_error *err);
    /* Called from the control thread when the current epoch is revoked; set before the communicator opens, cleared
     * (NULL) before it closes; the clear waits for a running callback. */
    void (*on_revoke)(struct membership *m, void (*fn)(void *arg), void *arg);
    /* Called from the control thread when the size of the epoch to come becomes known, a step or more before it forms;
     * at once where it is known already. The clear (NULL) waits for a running callback. NULL slot: never. */
    void (*on_next_world)(struct membership *m, void (*fn)(void *arg, int world), void *arg);
    /* Non-zero while the current epoch is revoked; for comm_ops.open. */
    const atomic_int *(*revoked)(struct membership *m);
    /* Told to pause or stop at a step boundary? Bits of COMMAND_*; polled each step and agreed on in-band among the
     * ranks. */
    unsigned (*commands)(struct membership *m);
    /* Out of the epoch (revoked, or paused at an agreed boundary). */
    void (*quiesced)(struct membership *m, const struct quiesced *q);
    /* Rank 0, before the first step of the epoch. */
    void (*state_ready)(struct membership *m, const struct state_ready *ready);
    /* Every rank, every step, when all have it: not where it is known to itself only. Any thread; one at a time. */
    void (*progress)(struct membership *m, const struct step_report *report);
    /* Every rank, when all have it; of one step maybe again in another epoch. */
    void (*evaluated)(struct membership *m, const struct evaluation_report *report);
    void (*checkpoint_written)(struct membership *m, const struct checkpoint_report *report);
    /* A checkpoint that was not written (path: the folder of them), or that cannot be read, and is tried again. */
    void (*checkpoint_failed)(struct membership *m, uint64_t step, const char *path, const char *reason, bool reading);
    void (*finished)(struct membership *m, uint64_t step);
    /* Last words: the process is about to exit with this status. */
    void (*failing)(struct membership *m, const struct titan_error *err);
    void (*close)(struct membership *m);
};
struct membership {
    const struct membership_ops *ops;
    char job_dir[PATH_MAX];
    int listener;              /* comm_listen socket of this worker; -1 = none */
    int solo_world, solo_rank; /* solo only: how many there are, and which this is */
    /* Which run this is (worker/checkpoint/folder.h): alike on all its ranks, and no other has the id. */
    char run_id[128], run_name[128];
};

/* worker/elastic/agent_connection.c: over the agent's socket. fds and names come from the agent (docs/architecture.md,
 * "agent and worker"). */
struct agent_connection_options {
    const char *socket, *page; /* paths */
    int page_fd, flight_fd;    /* page and flight recorder, open, where this process may not open them; 0 */
    uint64_t job_id, worker_id;
    const char *host;          /* address peers reach this worker at */
    struct listen_ports ports; /* one of them is its port; 0 = any */
    const char *job_dir;
    const char *run; /* membership.run_id */
};
titan_status membership_agent_open(const struct agent_connection_options *options, struct membership **ret,
                                   struct titan_error *err) TITAN_MUST_USE;

#endif
