/* SPDX-License-Identifier: Apache-2.0 */
/* dataset.h - training samples as a pure function of (seed, step, position).
 *
 * A source is a path and a kind:
 *   text   what the path is shows in it (formats.h): built shards, token files of Megatron, llm.c or nanoGPT, otherwise
 * the bytes of one file or of every regular file below a folder, a document each jsonl  a document a line, in its field
 * "text"; files may be gzip or zstd c4, c4_test, c4_validation   the same, with begin of text in front of each; in a
 * folder with C4's names the files of the split sft   a conversation a record, of which answers are trained on (chat.h)
 * A document ends with the tokenizer's end of text. Text is tokenised once, into the cache folder, which the workers of
 * a node share; only bytes are read as they lie. What is too much for that is refused: `titanctl data build` comes
 * first.
 *
 * With `packs` the windows of a source are samples of whole documents; a place without one has no target, and a
 * document of its own. Otherwise a source is cut into windows of seq_len+1 tokens at multiples of seq_len (inputs are
 * the first seq_len, targets the last). Sample number g = step*global_batch + i of a run reads a window of a source by
 * mixture.h: there is no loader state, and every window of a source is read exactly once a pass, whatever the world
 * size.
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
    const char *kind; /* NULL: "text" */
    double weight;    /* 0 for all: in proportion to their sizes */
};

struct dataset_options {
    const struct dataset_source *sources;
    int n_sources; /* 1..MIXTURE_MAX */
    const char *tokenizer_name;
    const struct tokenizer *tokenizer; /* borrowed while it opens */
    const char *chat_template;         /* of sources of kind sft; NULL: none */
    int64_t seq_len;
    int64_t vocab_size; /* of the model; 0: ids are not checked */
    uint64_t seed;
    const char *cache;     /* existing folder; NULL: a temporary one */
    int threads;           /* to tokenise with; 0: one */
    enum data_split split; /* of a folder or a pattern */
    bool packs;            /* samples are of whole documents (bins.h), instead of windows */
};

/* What was found at a source. */
struct dataset_found {
    const char *what;                  /* "text", "JSON lines", "shards", "Megatron", "llm.c", "nanoGPT" */
    uint64_t files, documents, tokens; /* documents 0: the format does not tell */
    uint64_t trained;                  /* tokens that are trained on */
    uint64_t idle;                     /* samples without one, which are passed over */
    uint64_t packed, padding;          /* samples of whole documents, and their places that have none */
    uint64_t too_long;                 /* documents that fit into none */
    uint64_t bad_records, replaced;    /* of JSON lines; bytes of text that are not UTF-8 */
    char note[320];                    /* where the first of these is, and what */
    struct data_left_out left_out;
};

/* TITAN_ENOTFOUND: no such path; TITAN_EINVAL: it cannot be opened or read, was made with another tokenizer, has ids
 * the model does not have, is too large to be tokenised here, or has fewer than one window of data, with both numbers
 * in the message; TITAN_ECORRUPT: a file is cut off or damaged. What cannot be read below a folder is left out and
 * counted. */
titan_status dataset_open(const struct dataset_options *options, struct dataset **ret,
                          struct titan_error *err) TITAN_MUST_USE;
void dataset_close(struct dataset *ds);
uint64_t dataset_tokens(const struct dataset *ds);
uint64_t dataset_windows(const struct dataset *ds);
/* Of names, sizes and fingerprints: alike where the same data is read. */
uint64_t dataset_hash(const struct dataset *ds);
/* What it holds, and how a run reads it: what a checkpoint keeps of it. */
struct data_identity {
    int64_t seq_len;
    int n;          /* sources; 0: not known */
    uint64_t first; /* number of the first sample that is read so; not 0: the run has read otherwise before */
    struct data_source_identity {
        uint64_t fingerprint, tokens; /* fingerprint.h */
        uint64_t share;               /* samples of each mixture.h block */
        uint64_t from;                /* samples of it that were read before `first` */
    } source[MIXTURE_MAX];
};
void dataset_identify(const struct dataset *ds, struct data_identity *ret);
/* Reads on behind so many samples, which a run has read as `before` tells. Where that is another mixture or sequence
 * length, the samples of each source that it may have read are left behind, and the order is another from here on:
 * *ret_moved (NULL: not wanted). */
void dataset_go_on(struct dataset *ds, const struct data_identity *before, uint64_t samples, bool *ret_moved);
int dataset_sources(const struct dataset *ds);
const struct dataset_found *dataset_found(const struct dataset *ds, int source);
/* "3 files of JSON lines, 1000 documents, 123456 tokens; left out: ...". */
void dataset_found_print(const struct dataset_found *found, struct buf *out);
/* Sample g: inputs and targets (seq_len each); a target of -1 is not counted in the loss. starts (seq_len), or NULL:
 * where each input's document begins in the sample. TITAN_ECORRUPT: an id is beyond the vocabulary. */
titan_status dataset_sample(const struct dataset *ds, uint64_t g, int32_t *inputs, int32_t *targets, int32_t *starts,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
