/* SPDX-License-Identifier: Apache-2.0 */
/* writer.h - checkpoints in the background.
 *
 * A thread of each rank copies the rank's state into host memory beside the next step; that step's update alone waits
 * for the copy. The thread writes it as a shard and leaves the shard's manifest entry as entry-RANK.json beside it.
 * Rank 0's thread waits for all entries, then commits, and removes the checkpoints that are not kept. A rank without a
 * part cannot say so in a folder that it cannot write to: rank 0's caller is told by the ranks' own means, and tells
 * its thread, which removes what was written once every rank has ended. No thread waits for a peer in a collective, so
 * a peer's death cannot block: cancelled, rank 0 takes what is complete already or drops the checkpoint.
 *
 * One thread calls; one checkpoint is under way at a time. */
#ifndef TITAN_WORKER_CHECKPOINT_WRITER_H
#define TITAN_WORKER_CHECKPOINT_WRITER_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "worker/checkpoint/checkpoint.h"
#include "worker/state/state.h"

struct checkpoint_writer;

struct writer_options {
    const char *dir; /* of all checkpoints */
    /* The folder that the run has taken (folder.h); 0 = any. On another file system it is a share that is not mounted
     * any more; another folder of that name must not be another run's. */
    dev_t device;
    ino_t inode;
    const char *run; /* the owner's id; NULL: any */
    int rank, world;
    int keep;             /* newest complete ones that stay, 0 = all */
    const char *hf_dtype; /* what has weights alone gets a Hugging Face directory as well, hf; NULL: it does not */
    const struct layout *layout; /* borrowed */
    struct state_types types;    /* of the states that it is given */
    /* Of the states, borrowed: their copy's memory is taken ahead (snapshot.h). NULL: when the first is copied. */
    const struct device_handle *memory_of;
    uint32_t wait_ms;   /* rank 0 waits for the others' entries; 0 = 10 minutes */
    uint32_t show_ms;   /* an entry that is written shows on rank 0's node; 0 = 60 s, NFS's acdirmax */
    uint32_t linger_ms; /* for its own thread, once cancelled; 0 = 250 */
};

/* A checkpoint that is complete on disk. Rank 0 only. */
struct written_checkpoint {
    uint64_t step, bytes;
    int64_t ns; /* from the copy of the state to the commit */
    int world;
    char path[PATH_MAX];
    struct spared_checkpoints spared;
};

titan_status checkpoint_writer_open(const struct writer_options *options, struct checkpoint_writer **ret,
                                    struct titan_error *err) TITAN_MUST_USE;
/* Cancelled; a write that does not end soon goes on by itself and is not told of: its unfinished folder is swept later.
 * NULL is fine. */
void checkpoint_writer_close(struct checkpoint_writer *w);

/* Start copying and writing the state, as s leaves it; it must stay as it is until checkpoint_writer_await_copy() has
 * returned. Waits for an earlier write first; its failure is returned by checkpoint_writer_collect(). info: step,
 * epoch, tokens, world, hash, skipped steps, recipe text (copied), whether it is to have weights alone; dtype: the type
 * of all that is written, "": each part in the type that the state keeps it in. */
titan_status checkpoint_writer_start(struct checkpoint_writer *w, const struct train_state *state,
                                     const struct checkpoint_info *info, struct stream *s,
                                     struct titan_error *err) TITAN_MUST_USE;
/* Until the copy of the last start is made, or has failed: the state may change. */
void checkpoint_writer_await_copy(struct checkpoint_writer *w);
/* Called on rank 0: that rank has no part of the checkpoint that was started last. why: a line. */
void checkpoint_writer_part_failed(struct checkpoint_writer *w, int rank, const char *why);
/* Called on rank 0: of the one that was started last every other rank has written its part, or has none. */
void checkpoint_writer_parts_over(struct checkpoint_writer *w);
/* What the last start came to, once. *ret_new false, and TITAN_OK: there is nothing to tell, or it is under way still
 * (wait: block until it is not). Otherwise TITAN_OK, and *ret holds the checkpoint on rank 0 (step 0 elsewhere), or its
 * failure, whatever that is; *ret then holds the step that has failed, without a path. */
titan_status checkpoint_writer_collect(struct checkpoint_writer *w, bool wait, bool *ret_new,
                                       struct written_checkpoint *ret, struct titan_error *err) TITAN_MUST_USE;
/* The epoch is over: stop waiting for peers, and soon for the disk. A write with all entries there is still
 * committed; otherwise start and collect return TITAN_EREVOKED. Any thread. */
void checkpoint_writer_cancel(struct checkpoint_writer *w);

#endif
