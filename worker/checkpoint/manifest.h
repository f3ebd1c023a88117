/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.h - a checkpoint directory's description: manifest.json.
 *
 *   {"format":"titan-checkpoint","version":2,"step":120,"epoch":3,"tokens":...,"world":4,"skipped_steps":0,
 *    "skipped":{"in_a_row":0,"first":0,"last":0},
 *    "line":[[branch,step it goes back to],...],"recipe_hash":"16 hex digits","owner":"uid:1001 alice",
 *    "recipe":"resolved TOML","run":"the run's id","from":{"run":"run it resumed from","step":...},
 *    "identity":{"tokenizer":"16 hex digits","samples":read so far,
 *    "seq_len":...,"first":...,"data":[{"fingerprint":"16 hex digits","tokens":...,"share":...,"from":...},...]},
 *    "tensors":[{"name":"output.weight","dtype":"F32","shape":[256,288]},...],
 *    "files":[{"name":"rank-00000.safetensors","bytes":N,"crc32c":"8 hex digits",
 *              "pieces":[[tensor,row,rows,col,cols],...]},...],
 *    "manifest_crc32c":"8 hex digits"}
 *
 * "skipped" is present only after skipped steps: state/skipped.h. "held_scales" are exponents: tensor/held_scales.h.
 *
 * The checksum in the last member covers every byte before the comma that precedes this member. The reader bounds and
 * checks all values: slices lie inside their tensors and cover each of them exactly once, file names are plain names.
 *
 * "line", "run", "from" and "identity" (identity.h) may be missing; older programs skip them. Version 5 is written if
 * older programs would resume at a wrong place: a branch, or samples that do not follow from steps and batch. Version 4
 * is written if tensors have different types: the "dtype" of each is "F32", "BF16" or "F16". Version 3 is written if
 * all tensors have one type other than "F32". Version 1 had "pieces":[[tensor,start,count],...], ranges of elements;
 * the reader turns each range into boxes. */
#ifndef TITAN_WORKER_CHECKPOINT_MANIFEST_H
#define TITAN_WORKER_CHECKPOINT_MANIFEST_H

#include "worker/checkpoint/checkpoint.h"

#define MANIFEST_NAME "manifest.json"
#define MANIFEST_BYTES_MAX (256u << 20)

struct manifest_slice {
    struct shard_slice slice; /* without data */
    int64_t range;            /* version 1: first element of its stored range; otherwise -1 */
};
struct manifest_file {
    char name[64];
    uint64_t bytes;
    uint32_t crc;
    struct manifest_slice *slices;
    int nslices;
};
struct manifest {
    int version;                 /* as read; the oldest sufficient version is written */
    struct checkpoint_info info; /* owns recipe; bytes = sum over files */
    struct tensor_spec *tensors;
    int ntensors;
    struct manifest_file *files;
    int nfiles;
};

/* The stored type; never "". */
static inline const char *manifest_dtype(const struct tensor_spec *spec)
{
    return spec->dtype[0] ? spec->dtype : "F32";
}

/* TITAN_ECORRUPT: the error names the fault. Free ret with manifest_clear, also after a failure. */
titan_status manifest_parse(const char *text, size_t len, struct manifest *ret, struct titan_error *err) TITAN_MUST_USE;
/* Prints the text for manifest_parse. */
titan_status manifest_print(const struct manifest *m, struct buf *out, struct titan_error *err) TITAN_MUST_USE;
/* Prints the part of the manifest's text that only checkpoints of this recipe and owner have. */
void manifest_print_writer(uint64_t recipe_hash, const char *owner, struct buf *out);
/* Makes a slice's name in a shard file. *ret_place: where the slice's data begins in that file's tensor (elements). */
#define MANIFEST_SLICE_NAME_MAX 160
void manifest_slice_name(const struct manifest *m, const struct manifest_slice *slice,
                         char ret[MANIFEST_SLICE_NAME_MAX], int64_t *ret_place);
/* Print and parse the entry of one file, which a rank reports to rank 0 as text. */
void manifest_print_file(const struct manifest_file *file, struct buf *out);
titan_status manifest_parse_file(const char *text, size_t len, const struct manifest *m, struct manifest_file *ret,
                                 struct titan_error *err) TITAN_MUST_USE;
/* Checks that the slices of all files cover every tensor exactly once; TITAN_ECORRUPT names the first tensor with a
 * fault, and the place. O(n log n) in slices. */
titan_status manifest_check_cover(const struct manifest *m, struct titan_error *err) TITAN_MUST_USE;
void manifest_clear(struct manifest *m);
void manifest_file_clear(struct manifest_file *file);
/* -1 = none. */
int manifest_find_tensor(const struct manifest *m, const char *name);

#endif
