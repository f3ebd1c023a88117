/* SPDX-License-Identifier: Apache-2.0 */
/* bins.c - see bins.h. */
#include "worker/data/bins.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define NO_BIN UINT64_MAX

titan_status bins_fill(const struct bin_document *documents, uint64_t n, uint64_t places, struct bins *ret,
                       struct titan_error *err)
{
    titan_assert(!ret->first && places > 0);
    uint64_t leaves = 1;
    while (leaves < n)
        leaves *= 2;
    _cleanup_free_ uint64_t *bin_of = calloc(n + 1, sizeof(*bin_of)), *room = malloc(2 * leaves * sizeof(*room));
    if (!bin_of || !room)
        return titan_fail(err, TITAN_ENOMEM, "no memory to pack %" PRIu64 " documents", n);

    /* Each document goes into the first bin with enough room. `room` is a binary tree: a node has the largest room of
     * the leaves below it. Nodes [leaves, 2 * leaves) are the leaves, one for each bin. */
    for (uint64_t i = 0; i < 2 * leaves; i++)
        room[i] = places;
    for (uint64_t d = 0; d < n; d++) {
        const uint64_t needs = documents[d].n > 0 ? documents[d].n - 1 : 0;
        uint64_t node = 1;
        bin_of[d] = NO_BIN;
        ret->too_long += needs > places;
        if (needs == 0 || needs > places)
            continue;
        titan_assert(room[1] >= needs);
        while (node < leaves)
            node = 2 * node + (room[2 * node] < needs);
        bin_of[d] = node - leaves;
        room[node] -= needs;
        for (node /= 2; node > 0; node /= 2)
            room[node] = MAX(room[2 * node], room[2 * node + 1]);
        ret->n = MAX(ret->n, bin_of[d] + 1);
        ret->places += needs;
    }

    /* Sorts the documents by bin. */
    ret->first = calloc(ret->n + 2, sizeof(*ret->first));
    ret->documents = calloc(n + 1, sizeof(*ret->documents));
    if (!ret->first || !ret->documents) {
        bins_clear(ret);
        return titan_fail(err, TITAN_ENOMEM, "no memory to pack %" PRIu64 " documents", n);
    }
    for (uint64_t d = 0; d < n; d++)
        if (bin_of[d] != NO_BIN)
            ret->first[bin_of[d] + 2]++;
    for (uint64_t i = 2; i < ret->n + 2; i++)
        ret->first[i] += ret->first[i - 1];
    for (uint64_t d = 0; d < n; d++) /* moves first[b + 1] from the start of sample b to its end */
        if (bin_of[d] != NO_BIN)
            ret->documents[ret->first[bin_of[d] + 1]++] = documents[d];
    return TITAN_OK;
}

void bins_clear(struct bins *b)
{
    free(b->first);
    free(b->documents);
    *b = (struct bins){0};
}
