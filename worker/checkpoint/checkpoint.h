/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h - a training state on disk that any mesh can load.
 *
 * A checkpoint is a directory DIR/step-00000120 with one safetensors file per writing rank and manifest.json. The state
 * is a set of named global tensors: parameters and optimizer moments. Each is stored in the type that its spec names,
 * "F32", "BF16" or "F16", rounded to nearest even; in memory it is fp32. A rank holds slices: boxes of a tensor seen as
 * a matrix. Shard files hold each slice as a 2-D tensor named "NAME@ROW,COL". The manifest lists shape and dtype of
 * each global tensor, and size, crc32c and slices (row, rows, col, cols) of each file. It also has step, epoch, tokens,
 * world size and the recipe's hash. Checkpoints of version 1, with ranges of elements as slices, can be read too.
 *
 * Writing: every rank writes shard files into DIR/.step-00000120.EPOCH (fsync). Then rank 0 writes the manifest from
 * all ranks' entries, fsyncs, renames the directory and fsyncs DIR. So a directory without the dot is complete.
 * Loading: a rank reads the ranges that overlap its slices, however the writers cut the state. The checksum of each
 * used file is verified first. One intersection routine (shard_slice_overlap) serves checkpoints, live resharding and
 * export. */
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
    uint64_t bytes;     /* bytes of all files; set by load and commit */
    char owner[320];    /* user that wrote it (base/folder_owner.h); "" = unknown */
    char *recipe;       /* resolved run file (TOML); owned after load, borrowed for write */
    bool model_only;    /* the checkpoint has no moments of the optimizer; input of a writer, set by load */
    bool biases;        /* the checkpoint has biases of experts; set by load */
    char metrics[1024]; /* line of metrics.jsonl for the checkpoint's step; "" = unknown */
    char dtype[8];      /* set by load: the first parameter's type ("F32", "BF16", "F16"); for writing: writer.h */
    char run[IDENTITY_RUN_BYTES]; /* id of the run that wrote it (folder_owner.id); "" = unknown */
    struct run_identity identity;
};

/* In the functions below, `at` is the open folder, and `dir` is its name for messages. With at -1 the folder is opened
 * by name, and made if the function needs it. A caller that has checked the folder passes its descriptor. */

/* DIR/.step-00000120.EPOCH of a checkpoint being written. path: char[PATH_MAX]. */
titan_status checkpoint_unfinished_path(char *ret_path, const char *dir, const struct checkpoint_info *info,
                                        struct titan_error *err) TITAN_MUST_USE;
/* Opens the unfinished folder, and makes it if missing. A link in its place is refused. */
titan_status checkpoint_unfinished_open(int at, const char *dir, const struct checkpoint_info *info, int *ret_fd,
                                        struct titan_error *err) TITAN_MUST_USE;
/* Removes the unfinished folder: the checkpoint will not be completed. */
titan_status checkpoint_drop(int at, const char *dir, const struct checkpoint_info *info,
                             struct titan_error *err) TITAN_MUST_USE;
/* A rank's part of a state; all of it is borrowed. */
struct checkpoint_part {
    const struct tensor_spec *specs; /* all tensors of the state, also tensors of which the rank has no slice */
    int n_specs;
    const struct shard_slice *slices; /* their tensors are indices of specs */
    int n_slices;
    int rank; /* rank of the writer; checkpoint_load() does not read it */
};
/* Writes this rank's shard file into the unfinished directory (made if missing) and appends its manifest entry (JSON
 * text) to entry. Blocking; call it from the background writer. Pieces must not overlap between ranks. */
titan_status checkpoint_write_shard(int at, const char *dir, const struct checkpoint_info *info,
                                    const struct checkpoint_part *part, struct buf *entry,
                                    struct titan_error *err) TITAN_MUST_USE;
/* All ranks' parts, once the shards are durable: the manifest entry of each writing rank. */
struct checkpoint_parts {
    const struct tensor_spec *specs; /* as in struct checkpoint_part */
    int n_specs;
    const struct buf *entries; /* by rank */
    int n;
};
/* Rank 0, after all ranks' shards are durable: writes the manifest from the entries, fsyncs, renames. path:
 * char[PATH_MAX]. TITAN_ECORRUPT: the slices of all entries do not cover every tensor exactly once. */
titan_status checkpoint_commit(int at, const char *dir, struct checkpoint_info *info,
                               const struct checkpoint_parts *parts, char *ret_path,
                               struct titan_error *err) TITAN_MUST_USE;
/* Removes unfinished directories of epochs below this one, in the open folder. */
void checkpoint_sweep(int at, uint64_t epoch);
/* Steps of the checkpoints in dir, from their names only, newest first; owned by the caller. */
titan_status checkpoint_steps(int at, const char *dir, uint64_t **ret_steps, size_t *ret_n,
                              struct titan_error *err) TITAN_MUST_USE;
/* Lists the same steps in two groups: steps on the run's line (base/checkpoint_line.h), and steps off the line. */
titan_status checkpoint_list_folder(int at, const char *dir, struct checkpoint_line_list *ret,
                                    struct titan_error *err) TITAN_MUST_USE;
/* Logs the steps that are off the run's line, as one log line; logs nothing if no steps are off it. */
void checkpoint_log_left(const struct log *log, const char *dir, const struct checkpoint_line_list *list);
titan_status checkpoint_path(char *ret_path, const char *dir, uint64_t step, struct titan_error *err) TITAN_MUST_USE;
/* Checks that the manifest parses and is of this step. TITAN_ECORRUPT: the manifest is damaged. */
titan_status checkpoint_check(const char *path, uint64_t step, struct titan_error *err) TITAN_MUST_USE;
/* Newest complete checkpoint in dir that is on the run's line and has a manifest that parses; TITAN_ENOTFOUND. The log
 * (NULL = none) names the newer checkpoints that are skipped. path: char[PATH_MAX]. */
titan_status checkpoint_latest(const char *dir, const struct log *log, char *ret_path, uint64_t *ret_step,
                               struct titan_error *err) TITAN_MUST_USE;
/* Resolves a caller's path; *ret_itself: the path is a checkpoint, not a folder of checkpoints. path:
 * char[PATH_MAX]. */
titan_status checkpoint_place(const char *path, char *ret_path, bool *ret_itself,
                              struct titan_error *err) TITAN_MUST_USE;
/* The checkpoint at path, or the newest in a folder of checkpoints, as in checkpoint_latest(); the log names skipped
 * checkpoints. path: char[PATH_MAX]. */
titan_status checkpoint_find(const char *path, char *ret_path, struct titan_error *err) TITAN_MUST_USE;
/* Reads and checks the manifest only. TITAN_ECORRUPT: the manifest is damaged, or its step differs from the folder's
 * name. */
titan_status checkpoint_read_info(const char *path, struct checkpoint_info *ret,
                                  struct titan_error *err) TITAN_MUST_USE;
/* Same as checkpoint_read_info(), for a step's checkpoint in an open folder. */
titan_status checkpoint_read_info_at(int at, uint64_t step, struct checkpoint_info *ret,
                                     struct titan_error *err) TITAN_MUST_USE;
void checkpoint_info_clear(struct checkpoint_info *info);
/* Fills the slices. Every spec must be in the manifest with the same shape (TITAN_ECONFLICT names the first that is
 * not). TITAN_ECORRUPT names the damaged file. With watch, it returns TITAN_EREVOKED soon after watch->stop becomes
 * non-zero, and counts the bytes read in watch->moved. */
titan_status checkpoint_load(const char *path, const struct checkpoint_part *part, struct apart_watch *watch,
                             struct titan_error *err) TITAN_MUST_USE;
struct verified_checkpoint {
    struct checkpoint_info info; /* free with checkpoint_info_clear */
    int files;
    uint64_t not_finite;       /* infinities and NaNs */
    char not_finite_name[128]; /* name of the first tensor with such a value */
};
/* Reads every file and checks size, checksum, header, the place of each slice, and all values. faults gets one line per
 * fault, each beginning with the file's name. Without faults the checkpoint is sound, and *ret describes it. Returns
 * only failures other than damage or unreadable files. */
titan_status checkpoint_verify(const char *path, struct buf *faults, struct verified_checkpoint *ret,
                               struct titan_error *err) TITAN_MUST_USE;
/* Steps of checkpoints that are kept in addition to the newest `keep`; 0 = none. */
struct spared_checkpoints {
    uint64_t resumable; /* newest checkpoint a run can resume from: newer ones have weights only, or are incomplete */
    uint64_t sound;     /* newest resumable checkpoint from before recently skipped steps (skipped.h) */
};
/* Removes old checkpoints in dir. It considers checkpoints up to this run's step that the run's owner wrote with the
 * run's recipe. Of these it keeps the newest `keep` (0 = all) and *ret_spared. Other and unreadable checkpoints are
 * left alone. of: step, recipe_hash, owner, skipped. */
titan_status checkpoint_prune(int at, const char *dir, int keep, const struct checkpoint_info *of,
                              struct spared_checkpoints *ret_spared, struct titan_error *err) TITAN_MUST_USE;

#endif
