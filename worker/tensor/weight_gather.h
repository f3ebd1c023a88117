/* SPDX-License-Identifier: Apache-2.0 */
/* weight_gather.h - a unit whose matrices are gathered in few bits (base/weight_codes.h) and decoded before their use.
 *
 * A rank sends a piece of codes of its range, and its elements without codes in the compute type (coded.h, `others`):
 * norms, biases, routers, matrices of fewer than WEIGHT_BUCKET elements, and gaps. Matrices that several
 * tensor-parallel ranks hold whole have no codes either: a rank's buckets depend on what else lies in them, and these
 * ranks must compute with the same values. One buffer receives it all: pieces  codes of all ranks, in rank order others
 * each rank's elements without codes, in rank order own     the codes and others that this rank sends; in a group of
 * one they are the pieces and others All ranks decode all pieces, their own too, so all compute with the same bits.
 *
 * canonical: a bucket ends where a range may end and where an expert's matrix does. So the values are the same for
 * every number of ranks, also for a group of one, which gathers nothing and still codes. */
#ifndef TITAN_WORKER_TENSOR_WEIGHT_GATHER_H
#define TITAN_WORKER_TENSOR_WEIGHT_GATHER_H

#include "base/weight_codes.h"
#include "worker/tensor/coded.h"

struct weight_gather {
    enum weight_codec codec;             /* WEIGHTS_WHOLE: the unit travels as it is */
    struct coded coded;                  /* which elements have no codes, and where they lie among the others */
    int64_t bucket;                      /* values */
    int64_t codes_bytes;                 /* of a rank's codes */
    int64_t others;                      /* elements that a rank sends without codes; above 0 */
    int64_t filled;                      /* where the unit's elements end in the flat buffer */
    size_t own_codes, own_others, bytes; /* places of `own`, and bytes of the buffer */
};

/* elem: bytes of the compute type. The unit travels as it is if codes save no bytes or if a group of one gathers
 * nothing; canonical: only if it has no matrix with codes. */
void weight_gather_init(const struct layout *layout, int unit, enum weight_codec codec, size_t elem,
                        struct weight_gather *ret);
/* Elements of the member-th rank's range that have no codes, from the range's begin on, in ascending order. Returns how
 * many stretches there are, at most WEIGHT_GATHER_RUNS. */
#define WEIGHT_GATHER_RUNS 12
struct weight_gap {
    int64_t from, to;
};
int weight_gather_gaps(const struct weight_gather *gather, int member, struct weight_gap ret[WEIGHT_GATHER_RUNS]);

#endif
