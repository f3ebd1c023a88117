/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h - a training state on disk that any mesh can load.
 *
 * A checkpoint is a directory DIR/step-00000120 with one safetensors file per writing rank and manifest.json. The
 * state is a set of named global tensors (parameters and optimizer moments, each in the type that its spec names,
 * "F32", "BF16" or "F16"; in memory they are fp32, and rounded to nearest even when they are written); a rank holds
 * slices: boxes of a tensor seen as a matrix. Shard files hold each slice as a 2-D tensor named "NAME@ROW,COL"; the
 * manifest lists, per global tensor, shape and dtype, per file its size, crc32c and slices (row, rows, col, cols), and
 * step, epoch, tokens, world size and the recipe's hash. Checkpoints of version 1, with ranges of elements as slices,
 * are read too.
 *
 * Writing: every rank writes shard files into DIR/.step-00000120.EPOCH (fsync), rank 0 then writes the manifest from
 * all ranks' entries, fsyncs, renames the directory and fsyncs DIR: a directory without the dot is complete. Loading: a
 * rank asks for its slices; whatever cut they were written in, the overlapping ranges are read (checksum of each file
 * used is verified first). One intersection routine (shard_slice_overlap) serves this, live resharding and export. */
#ifndef TITAN_WORKER_CHECKPOINT_CHECKPOINT_H
#define TITAN_WORKER_CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/log.h"
#include "worker/checkpoint/apart.h"
#include "worker/checkpoint/identity.h"
#include "worker/state/skipped.h"
#include "worker/tensor/shard_slice.h"

struct checkpoint_info {
    uint64_t step, epoch, tokens;
    int world;
    uint64_t recipe_hash;
    struct skipped_steps skipped;
    uint64_t bytes;               /* of all files; filled by load and commit */
    char owner[320];              /* the user that wrote it (base/folder_owner.h); "": not known */
    char *recipe;                 /* the resolved run file (TOML); owned after load, borrowed for write */
    bool model_only;              /* it has no moments of the optimizer; a writer is told so, load fills it */
    bool biases;                  /* it has biases of experts; filled by load */
    char metrics[1024];           /* of its step, a line as metrics.jsonl has it; "": not known */
    char dtype[8];                /* load: of its first tensor, a parameter: "F32", "BF16", "F16"; writer.h */
    char run[IDENTITY_RUN_BYTES]; /* the run that wrote it (folder_owner.id); "": not known */
    struct run_identity identity;
};

/* Below, at is the open folder dir, which names it in messages; -1: it is opened by its name, and where that has to be,
 * made. A caller that knows it to be the right one passes what was looked at. */

/* DIR/.step-00000120.EPOCH of a checkpoint being written. path: char[PATH_MAX]. */
titan_status checkpoint_unfinished_path(char *ret_path, const char *dir, const struct checkpoint_info *info,
                                        struct titan_error *err) TITAN_MUST_USE;
/* That folder, open; where it is missing it is made. A link in its place is refused. */
titan_status checkpoint_unfinished_open(int at, const char *dir, const struct checkpoint_info *info, int *ret_fd,
                                        struct titan_error *err) TITAN_MUST_USE;
/* Remove it: there will be no such checkpoint. */
titan_status checkpoint_drop(int at, const char *dir, const struct checkpoint_info *info,
                             struct titan_error *err) TITAN_MUST_USE;
/* Write this rank's shard file into the unfinished directory (made if missing) and append its manifest entry (JSON
 * text) to entry. Blocking; call it from the background writer. Pieces must not overlap between ranks. */
titan_status checkpoint_write_shard(int at, const char *dir, const struct checkpoint_info *info, int rank,
                                    const struct tensor_spec *specs, int nspecs, const struct shard_slice *slices,
                                    int nslices, struct buf *entry, struct titan_error *err) TITAN_MUST_USE;
/* Rank 0, after all ranks' shards are durable: manifest from the entries, fsync, rename. path: char[PATH_MAX]. Fails
 * with TITAN_ECORRUPT when the slices of all entries do not cover every tensor exactly once. */
titan_status checkpoint_commit(int at, const char *dir, struct checkpoint_info *info, const struct tensor_spec *specs,
                               int nspecs, const struct buf *entries, int world, char *ret_path,
                               struct titan_error *err) TITAN_MUST_USE;
/* Remove unfinished directories of epochs below this one, in the open folder. */
void checkpoint_sweep(int at, uint64_t epoch);
/* Steps of the checkpoints in dir by their names, whatever is in them, newest first; owned by the caller. */
titan_status checkpoint_steps(int at, const char *dir, uint64_t **ret_steps, size_t *ret_n,
                              struct titan_error *err) TITAN_MUST_USE;
/* The same of those on the run's line (base/checkpoint_line.h), and which are not. */
titan_status checkpoint_list_folder(int at, const char *dir, struct checkpoint_line_list *ret,
                                    struct titan_error *err) TITAN_MUST_USE;
/* A line on those that are not; nothing where there are none. */
void checkpoint_log_left(const struct log *log, const char *dir, const struct checkpoint_line_list *list);
titan_status checkpoint_path(char *ret_path, const char *dir, uint64_t step, struct titan_error *err) TITAN_MUST_USE;
/* Its manifest can be read and is of this step. TITAN_ECORRUPT: it is damaged. */
titan_status checkpoint_check(const char *path, uint64_t step, struct titan_error *err) TITAN_MUST_USE;
/* Newest complete checkpoint in dir on the run's line with a manifest that parses; TITAN_ENOTFOUND. Newer ones that are
 * left out are named in the log (NULL: nowhere). path: char[PATH_MAX]. */
titan_status checkpoint_latest(const char *dir, const struct log *log, char *ret_path, uint64_t *ret_step,
                               struct titan_error *err) TITAN_MUST_USE;
/* Where a path leads that the caller names; itself: to a checkpoint, not a folder of them. path: char[PATH_MAX]. */
titan_status checkpoint_place(const char *path, char *ret_path, bool *ret_itself,
                              struct titan_error *err) TITAN_MUST_USE;
/* The checkpoint at path or, if it is a folder of checkpoints, its newest, as checkpoint_latest() finds it; the log
 * names those that it leaves out. path: char[PATH_MAX]. */
titan_status checkpoint_find(const char *path, char *ret_path, struct titan_error *err) TITAN_MUST_USE;
/* Read and check the manifest only. TITAN_ECORRUPT: it is damaged, or of another step than its folder is named by. */
titan_status checkpoint_read_info(const char *path, struct checkpoint_info *ret,
                                  struct titan_error *err) TITAN_MUST_USE;
/* The same of the checkpoint of a step in an open folder. */
titan_status checkpoint_read_info_at(int at, uint64_t step, struct checkpoint_info *ret,
                                     struct titan_error *err) TITAN_MUST_USE;
void checkpoint_info_clear(struct checkpoint_info *info);
/* Fill the slices. Every spec must be in the manifest with the same shape (TITAN_ECONFLICT names the first that
 * is not). TITAN_ECORRUPT names the damaged file. TITAN_EREVOKED soon after watch->stop is not zero any more;
 * watch->moved counts what is read (NULL: neither). */
titan_status checkpoint_load(const char *path, const struct tensor_spec *specs, int nspecs,
                             const struct shard_slice *slices, int nslices, struct apart_watch *watch,
                             struct titan_error *err) TITAN_MUST_USE;
struct verified_checkpoint {
    struct checkpoint_info info; /* checkpoint_info_clear */
    int files;
    uint64_t not_finite;       /* values that are infinite or no number */
    char not_finite_name[128]; /* of the first tensor that has some */
};
/* Read every file of it: size, checksum, header, that each slice is where the manifest says, and all values. What is
 * wrong is a line of faults each, the file first; none: it is sound, and *ret tells what it is. Any other failure than
 * damage or a file that cannot be read is returned. */
titan_status checkpoint_verify(const char *path, struct buf *faults, struct verified_checkpoint *ret,
                               struct titan_error *err) TITAN_MUST_USE;
/* Steps of checkpoints that stay beyond those that are counted; 0: none does. */
struct spared_checkpoints {
    uint64_t resumable; /* the newest that a run can go on from: the newer have weights alone, or are not whole */
    uint64_t sound;     /* the newest such from before steps that were skipped of late (skipped.h) */
};
/* Of the checkpoints in dir up to this run's step that its owner wrote with its recipe keep the newest `keep`, remove
 * the rest but *ret_spared; 0 keeps all. Others, and those that cannot be read, are left alone.
 * of: step, recipe_hash, owner, skipped. */
titan_status checkpoint_prune(int at, const char *dir, int keep, const struct checkpoint_info *of,
                              struct spared_checkpoints *ret_spared, struct titan_error *err) TITAN_MUST_USE;

#endif
