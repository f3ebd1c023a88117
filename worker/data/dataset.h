/* SPDX-License-Identifier: Apache-2.0 */
/* dataset.h - training samples as a pure function of (seed, step, position).
 *
 * A source is a path and a kind:
 *   text   the files show their format (formats.h): built shards, token files of Megatron, llm.c or nanoGPT, otherwise
 *          the bytes of one file or of every regular file below a folder, one document each
 *   jsonl  a document per line, in its field "text"; files may be gzip or zstd
 *   c4, c4_test, c4_validation   as jsonl, with begin of text before each document; in a folder with C4's file names,
 *          only one split is read
 *   sft    a conversation per record; the run trains on its answers (chat.h)
 *
 * A document ends with the tokenizer's end of text. Text is tokenized once, into the cache folder, which a node's
 * workers share; only bytes are read in place. If there is too much text to tokenize here, it is refused: `titanctl
 * data build` must tokenize it before.
 *
 * With `packs`, a source's windows are samples of whole documents. An unused place in a sample has no target, and is a
 * document of its own. Otherwise a source is cut into windows of seq_len+1 tokens at multiples of seq_len (inputs are
 * the first seq_len, targets the last). Sample number g = step*global_batch + i of a run reads the window that
 * mixture.h chooses. There is no loader state, and every window of a source is read exactly once per pass, for any
 * world size.
 *
 * Thread: any one thread at a time. */
#ifndef TITAN_WORKER_DATA_DATASET_H
#define TITAN_WORKER_DATA_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/recipe.h"
#include "worker/data/files.h"
#include "worker/data/mixture.h"
#include "worker/tokenizer/tokenizer.h"

struct dataset;

struct dataset_source {
    const char *path; /* file, folder or pattern (files.h) */
    const char *kind; /* NULL = "text" */
    double weight;    /* 0 for all sources: weights are in proportion to the sources' sizes */
};

struct dataset_options {
    const struct dataset_source *sources;
    int n_sources; /* 1..MIXTURE_MAX */
    const char *tokenizer_name;
    const struct tokenizer *tokenizer; /* borrowed during the open */
    const char *chat_template;         /* for sources of kind sft; NULL = none */
    int64_t seq_len;
    int64_t vocab_size; /* vocabulary of the model; 0 = ids are not checked */
    uint64_t seed;
    const char *cache;     /* existing folder; NULL: a temporary one */
    int threads;           /* for tokenizing; 0 = one */
    enum data_split split; /* for a folder or a pattern */
    bool packs;            /* samples are whole documents (bins.h), not windows */
};

/* The content of a source. */
struct dataset_found {
    const char *what;                  /* "text", "JSON lines", "shards", "Megatron", "llm.c", "nanoGPT" */
    uint64_t files, documents, tokens; /* documents 0 = the format has no documents */
    uint64_t trained;                  /* tokens that are trained on */
    uint64_t idle;                     /* samples without trained tokens, which are skipped */
    uint64_t packed, padding;          /* samples of whole documents, and their unused places */
    uint64_t too_long;                 /* documents that fit into no sample */
    uint64_t bad_records, replaced;    /* bad records of JSON lines; bytes of invalid UTF-8 */
    char note[320];                    /* file, place and fault of the first bad record or replaced byte */
    struct data_left_out left_out;
};

/* TITAN_ENOTFOUND: no such path; TITAN_EINVAL: it cannot be opened or read, is from another tokenizer, has ids beyond
 * the model's (the message has both numbers), is too large to be tokenized here, or has less than one window of data
 * (the message has both numbers); TITAN_ECORRUPT: a file is cut off or damaged. Unreadable files below a folder are
 * skipped and counted. */
titan_status dataset_open(const struct dataset_options *options, struct dataset **ret,
                          struct titan_error *err) TITAN_MUST_USE;
void dataset_close(struct dataset *ds);
uint64_t dataset_tokens(const struct dataset *ds);
uint64_t dataset_windows(const struct dataset *ds);
/* Hash of names, sizes and fingerprints: equal for equal data. */
uint64_t dataset_hash(const struct dataset *ds);
/* Identity of the data and of the way a run reads it, stored in checkpoints. */
struct data_identity {
    int64_t seq_len;
    int n;          /* number of sources; 0 = unknown */
    uint64_t first; /* first sample that was read in this way; if not 0, the run read earlier samples in another way */
    struct data_source_identity {
        uint64_t fingerprint, tokens; /* fingerprint.h */
        uint64_t share;               /* samples per block of mixture.h */
        uint64_t from;                /* samples of the source read before `first` */
    } source[MIXTURE_MAX];
};
void dataset_identify(const struct dataset *ds, struct data_identity *ret);
/* Continues after the first `samples` samples, which the run has read as `before` describes. After a change of mixture
 * or sequence length, all samples of each source that the run may have read are skipped. The order differs from here
 * on, and *ret_moved is true (ret_moved NULL = not wanted). */
void dataset_go_on(struct dataset *ds, const struct data_identity *before, uint64_t samples, bool *ret_moved);
int dataset_sources(const struct dataset *ds);
const struct dataset_found *dataset_found(const struct dataset *ds, int source);
/* "3 files of JSON lines, 1000 documents, 123456 tokens; left out: ...". */
void dataset_found_print(const struct dataset_found *found, struct buf *out);
/* Sample g: inputs and targets (seq_len each); the loss ignores a target of -1. starts (seq_len), or NULL: position in
 * the sample where each input's document begins. TITAN_ECORRUPT: an id is beyond the vocabulary. */
titan_status dataset_sample(const struct dataset *ds, uint64_t g, int32_t *inputs, int32_t *targets, int32_t *starts,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
