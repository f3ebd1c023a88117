/* SPDX-License-Identifier: Apache-2.0 */
/* coded.h - a unit with weights that are gathered as codes of eight bits instead of elements of the compute type.
 *
 * What a rank sends of its range: a code for each element, and apart the elements of what has no codes (norms, layers
 * that no converter has, gaps), as many as the rank with the most of them has. Gathered it lies in one buffer:
 *   codes   padded bytes: element i of the unit's flat buffer at byte i, so a coded weight lies there dense
 *   others  of each rank in turn, from the beginning of its range on
 *   runs    a run of elements without codes that several ranks have parts of, put together
 *   own     this rank's codes and others, as it sends them: their memory is free when that of what came is, as a
 * product that took it over before would wait for the transfer
 */
#ifndef TITAN_WORKER_TENSOR_CODED_H
#define TITAN_WORKER_TENSOR_CODED_H

#include "worker/tensor/layout.h"

#define CODED_MAX 24 /* weights of a unit */

/* Elements between coded weights, to the end of the unit, filled up. */
struct coded_run {
    int64_t from, to; /* of the flat buffer */
    int64_t at;       /* where it lies, in elements from where others begin */
    bool together;    /* of several ranks */
};

struct coded {
    uint64_t tensors; /* bits: those of the unit's tensors, from its first one on; 0: the unit has no codes */
    int n;            /* of them */
    int members;
    int64_t shard, padded;        /* of the unit */
    int64_t others;               /* elements that a rank sends without codes */
    size_t elem;                  /* bytes of one */
    size_t codes_bytes;           /* up to where others begin */
    size_t own_codes, own_others; /* bytes at which what this rank sends begins */
    size_t bytes;                 /* of the gathered buffer */
    int n_runs;
    struct coded_run runs[CODED_MAX + 1];
};

/* tensors: bits as in struct coded; elem: bytes of the compute type. Where that saves no bytes, or a group of one
 * gathers nothing, the answer has no codes. */
void coded_init(const struct layout *layout, int unit, uint64_t tensors, size_t elem, struct coded *ret);
/* Place of a tensor's scale among those of its unit; -1: it has no codes. tensor: from the unit's first one on. */
int coded_place(const struct coded *coded, int tensor);
/* Byte of the gathered buffer at which an element without codes lies. */
size_t coded_offset(const struct coded *coded, int64_t element);

/* Byte at which an element lies among what the member-th rank has sent. */
size_t coded_sent(const struct coded *coded, int member, int64_t element);

/* A rank's part of a run: count elements from `from` on, which it sends as others[at...]. */
struct coded_part {
    int64_t from, count, at;
};
/* Of the member-th rank of the group; *ret_n of CODED_MAX + 1 at most. */
void coded_parts(const struct coded *coded, int member, struct coded_part *ret, int *ret_n);

#endif
