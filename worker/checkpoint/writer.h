/* SPDX-License-Identifier: Apache-2.0 */
/* writer.h - checkpoints in the background.
 *
 * A thread of each rank copies the rank's state into host memory during the next step; only that step's update waits
 * for the copy. The thread writes the copy as a shard, and beside it the shard's manifest entry as entry-RANK.json.
 * Rank 0's thread waits for all entries, then commits, and removes the checkpoints that are not kept. A rank that
 * cannot write its part cannot report the failure in the folder either: the ranks' own channels report it to rank 0's
 * caller. The caller notifies rank 0's thread, which removes the partial checkpoint once every rank has ended. No
 * thread waits for a peer in a collective, so a peer's death cannot block: once cancelled, rank 0 commits a complete
 * checkpoint or drops an incomplete one.
 *
 * One thread calls; one checkpoint is in progress at a time. */
#ifndef TITAN_WORKER_CHECKPOINT_WRITER_H
#define TITAN_WORKER_CHECKPOINT_WRITER_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "worker/checkpoint/checkpoint.h"
#include "worker/state/state.h"

struct checkpoint_writer;

struct writer_options {
    const char *dir; /* the folder of all checkpoints */
    /* Device and inode of the folder that the run has taken (folder.h); 0 = any. A folder on another device means that
     * the share is no longer mounted. A folder with another inode must not belong to another run. */
    dev_t device;
    ino_t inode;
    const char *run; /* the owner's id; NULL = any */
    int rank, world;
    int keep;             /* newest complete checkpoints to keep, 0 = all */
    const char *hf_dtype; /* for checkpoints with weights only: also write a Hugging Face directory `hf` of this type;
                             NULL = no */
    const struct layout *layout; /* borrowed */
    struct state_types types;    /* types of the states that the writer gets */
    /* The states' device, borrowed. With it, memory for the copy is touched ahead (snapshot.h). NULL: memory is touched
     * with the first copy. */
    const struct device_handle *memory_of;
    uint32_t wait_ms;   /* limit for rank 0 to wait for the others' entries; 0 = 10 minutes */
    uint32_t show_ms;   /* limit for a written entry to be visible on rank 0's node; 0 = 60 s, NFS's acdirmax */
    uint32_t linger_ms; /* limit for the writer's thread to end, once cancelled; 0 = 250 */
};

/* A checkpoint complete on disk. Rank 0 only. */
struct written_checkpoint {
    uint64_t step, bytes;
    int64_t ns; /* from the copy of the state to the commit */
    int world;
    char path[PATH_MAX];
    struct spared_checkpoints spared;
};

titan_status checkpoint_writer_open(const struct writer_options *options, struct checkpoint_writer **ret,
                                    struct titan_error *err) TITAN_MUST_USE;
/* Cancels. A write that does not end soon continues alone, without a report; its unfinished folder is swept later. NULL
 * is fine. */
void checkpoint_writer_close(struct checkpoint_writer *w);

/* Starts to copy and write the state in which stream s leaves it. The state must not change until
 * checkpoint_writer_await_copy() returns. Waits for an earlier write first; checkpoint_writer_collect() returns that
 * write's failure. info: step, epoch, tokens, world, hash, skipped steps, recipe text (copied), weights only or not;
 * dtype: the type of all data, "" = each tensor in the state's own type. */
titan_status checkpoint_writer_start(struct checkpoint_writer *w, const struct train_state *state,
                                     const struct checkpoint_info *info, struct stream *s,
                                     struct titan_error *err) TITAN_MUST_USE;
/* Where the caller puts, before each start, the means of the kind of state of which each replica has a value of its own
 * (fold.h): layout_total elements, written in place of the state's. NULL: this rank writes nothing of it. The last
 * write must have ended. */
float *checkpoint_writer_means(const struct checkpoint_writer *w);
/* Waits until the last start's copy is made or has failed: then the state may change. */
void checkpoint_writer_await_copy(struct checkpoint_writer *w);
/* Call on rank 0: `rank` has no part of the last started checkpoint. why: the reason, in one line. */
void checkpoint_writer_part_failed(struct checkpoint_writer *w, int rank, const char *why);
/* Call on rank 0: every other rank has written its part of the last started checkpoint, or has none. */
void checkpoint_writer_parts_over(struct checkpoint_writer *w);
/* Returns the result of the last start, once. *ret_new false with TITAN_OK: no result, or still in progress (wait:
 * blocks until it ends). *ret_new true with TITAN_OK: *ret holds the checkpoint on rank 0 (step 0 elsewhere). Otherwise
 * the checkpoint's failure, of any status; *ret then holds the failed step, without a path. */
titan_status checkpoint_writer_collect(struct checkpoint_writer *w, bool wait, bool *ret_new,
                                       struct written_checkpoint *ret, struct titan_error *err) TITAN_MUST_USE;
/* The epoch is over: the writer no longer waits for peers, and soon no longer for the disk. A write with all entries
 * present is still committed; otherwise start and collect return TITAN_EREVOKED. Any thread. */
void checkpoint_writer_cancel(struct checkpoint_writer *w);

#endif
