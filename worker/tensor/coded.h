/* SPDX-License-Identifier: Apache-2.0 */
/* coded.h - a unit with weights that are gathered as 8-bit codes instead of elements of the compute type.
 *
 * A rank sends a code for each element of its range. Separately it sends its elements without codes (norms, layers
 * without a converter, gaps). Every rank sends the same number of these elements: as many as the rank with the most
 * has. The gathered unit is one buffer:
 *   codes   padded bytes: element i of the unit's flat buffer is byte i, so a coded weight is dense
 *   others  each rank's elements without codes in rank order, each part from the start of its range on
 *   runs    runs of elements without codes that lie in several ranks' ranges, assembled
 *   own     the codes and others that this rank sends
 *
 * The memory of `own` is released with the gathered buffer. If a product reused this memory earlier, it would have to
 * wait for the transfer. */
#ifndef TITAN_WORKER_TENSOR_CODED_H
#define TITAN_WORKER_TENSOR_CODED_H

#include "worker/tensor/layout.h"

#define CODED_MAX 24 /* most coded weights of a unit */

/* A run of elements between coded weights, or from the last coded weight to the unit's end (rounded up). */
struct coded_run {
    int64_t from, to; /* elements of the flat buffer */
    int64_t at;       /* place of the run in elements, from the start of `others` */
    bool together;    /* the run lies in several ranks' ranges */
};

struct coded {
    uint64_t tensors; /* bits of the coded tensors, from the unit's first tensor on; 0: the unit has no codes */
    int n;            /* number of coded tensors */
    int members;
    int64_t shard, padded; /* elements of the unit, as in struct unit_layout */
    int64_t others;        /* elements that a rank sends without codes */
    size_t elem;           /* bytes of one such element */
    size_t codes_bytes;    /* bytes before `others` */
    /* Byte offsets of this rank's own codes and of its own elements without codes. */
    size_t own_codes, own_others;
    size_t bytes; /* bytes of the gathered buffer */
    int n_runs;
    struct coded_run runs[CODED_MAX + 1];
};

/* tensors: bits as in struct coded; elem: bytes of the compute type. Returns no codes if codes save no bytes, or if the
 * group has one member and so gathers nothing. */
void coded_init(const struct layout *layout, int unit, uint64_t tensors, size_t elem, struct coded *ret);
/* As coded_init, also if codes save nothing or if the group has one member. No codes: the unit has no coded tensor, or
 * more than CODED_MAX. */
void coded_split(const struct layout *layout, int unit, uint64_t tensors, size_t elem, struct coded *ret);
/* Place of a tensor's scale among the scales of its unit; -1: the tensor has no codes. tensor: counted from the unit's
 * first tensor. */
int coded_place(const struct coded *coded, int tensor);
/* Byte of the gathered buffer at which an element without codes lies. */
size_t coded_offset(const struct coded *coded, int64_t element);

/* Byte of the gathered buffer at which an element without codes lies in the member-th rank's part of `others`. */
size_t coded_sent(const struct coded *coded, int member, int64_t element);

/* A rank's part of a run: `count` elements from `from` on. The rank sends them as others[at...]. */
struct coded_part {
    int64_t from, count, at;
};
/* Finds the parts of the member-th rank of the group; *ret_n is at most CODED_MAX + 1. */
void coded_parts(const struct coded *coded, int member, struct coded_part *ret, int *ret_n);

#endif
