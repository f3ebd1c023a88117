/* batch.h - a microbatch as the program loads it: which of its tokens a context-parallel rank has, and what goes with
 * each.
 *
 * A sequence of t tokens is cut over the cp axis: in cp contiguous parts, or (head_tail) in 2*cp chunks of which rank r
 * takes chunks r and 2*cp-1-r, so that under a causal mask every rank has as much to do. A rank's tokens come sequence by
 * sequence, and within one in the order of their positions. index = sequence*t + position numbers a microbatch's tokens;
 * a query sees keys from its document's start to itself. Pure. */
#ifndef TITAN_WORKER_DATA_BATCH_H
#define TITAN_WORKER_DATA_BATCH_H

#include <stdbool.h>
#include <stdint.h>

struct batch_shape {
    int64_t b, t;   /* of a microbatch */
    int cp;         /* divides t; twice, with head_tail */
    bool head_tail; /* means nothing where cp is 1 */
};

/* Rows of what LOAD brings: inputs, targets, positions in the document, index, index of the document's start. */
#define BATCH_ROWS 5

int64_t batch_tokens(const struct batch_shape *shape); /* N = b*t/cp */
/* index (N) of the tokens of one cp rank. */
void batch_index(const struct batch_shape *shape, int cp_rank, int32_t *ret);
/* The same for the keys of all cp ranks (cp*N): in rank order, or, going round a ring, cp_rank's own first, then those of
 * the rank before it, and so on. */
void batch_keys(const struct batch_shape *shape, int cp_rank, bool ring, int32_t *ret);
/* tokens (BATCH_ROWS, N) of one cp rank, from inputs and targets (b, t). starts (b, t): position in its sequence at which
 * each token's document begins; NULL: a sequence is one document. Returns the counted ones (target >= 0). */
int64_t batch_fill(const struct batch_shape *shape, int cp_rank, const int32_t *inputs, const int32_t *targets,
                   const int32_t *starts, int32_t *ret);

#endif
