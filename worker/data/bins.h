/* SPDX-License-Identifier: Apache-2.0 */
/* bins.h - packs documents into samples without cuts: first-fit (Johnson 1973). A document of n tokens takes n - 1
 * places in the first sample with room. Each place is for a token with its target. Documents are placed in their order.
 * The rest of a sample is padding. Documents without a target, and documents longer than a sample, are skipped.
 * Pure. */
#ifndef TITAN_WORKER_DATA_BINS_H
#define TITAN_WORKER_DATA_BINS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct bin_document {
    uint64_t start, n; /* start: place in the corpus; n: tokens */
};

struct bins {
    uint64_t n;
    uint64_t *first;                /* [n + 1]: each sample's first document */
    struct bin_document *documents; /* sorted by sample; within a sample in document order */
    uint64_t places, too_long;      /* places taken; documents that fit into no sample */
};

/* places: number of places in a sample, at least 1. *ret must be zeroed before the call. A failure leaves it zeroed. */
titan_status bins_fill(const struct bin_document *documents, uint64_t n, uint64_t places, struct bins *ret,
                       struct titan_error *err) TITAN_MUST_USE;
void bins_clear(struct bins *b);

#endif
