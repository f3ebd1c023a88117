/* SPDX-License-Identifier: Apache-2.0 */
/* bins.h - documents packed into samples, none of them cut: first-fit (Johnson 1973). A document of n tokens takes n -
 * 1 places, each of a token with its target, in the first sample with room for it, in the order of the documents; what
 * is left of a sample is padding. Documents without a target, and those that fit into no sample, are in none. Pure. */
#ifndef TITAN_WORKER_DATA_BINS_H
#define TITAN_WORKER_DATA_BINS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct bin_document {
    uint64_t start, n; /* place in the corpus; tokens */
};

struct bins {
    uint64_t n;
    uint64_t *first;                /* [n + 1]: of a sample the first of its documents */
    struct bin_document *documents; /* by samples, and within one in their order */
    uint64_t places, too_long;      /* that are taken; documents that fit into none */
};

/* places: of a sample, at least 1. *ret is empty before, and after a failure. */
titan_status bins_fill(const struct bin_document *documents, uint64_t n, uint64_t places, struct bins *ret,
                       struct titan_error *err) TITAN_MUST_USE;
void bins_clear(struct bins *b);

#endif
