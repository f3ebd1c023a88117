/* SPDX-License-Identifier: Apache-2.0 */
/* loader.c - samples of the dataset into the rows that a program loads. */
#include "worker/data/loader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"

titan_status loader_open(const struct loader_options *options, struct loader *ret, struct titan_error *err)
{
    const struct sequence_cut *cut = &options->cut;
    const size_t share = (size_t)MAX(options->share, 1), n = (size_t)(cut->b * cut->t);

    titan_assert(!ret->tokens && options->data);
    titan_assert(options->share >= 0 && options->first >= 0);
    titan_assert(options->samples > 0 || (options->first + options->share) * cut->b <= options->global_batch);
    titan_assert(options->cp_rank >= 0 && options->cp_rank < cut->cp);
    ret->opt = *options;
    ret->tokens = calloc(share * (size_t)batch_rows(cut->modules) * (size_t)batch_tokens(cut), sizeof *ret->tokens);
    ret->inputs = calloc(n, sizeof *ret->inputs);
    ret->targets = calloc(n, sizeof *ret->targets);
    ret->counts = calloc(share, sizeof *ret->counts);
    if (options->documents)
        ret->starts = calloc(n, sizeof *ret->starts);
    if (!ret->tokens || !ret->inputs || !ret->targets || !ret->counts || (options->documents && !ret->starts))
        return titan_fail(err, TITAN_ENOMEM, "batch: out of memory");
    return TITAN_OK;
}

void loader_close(struct loader *l)
{
    free(l->tokens);
    free(l->inputs);
    free(l->targets);
    free(l->starts);
    free(l->counts);
    *l = (struct loader){0};
}

titan_status loader_load(struct loader *l, uint64_t step, struct titan_error *err)
{
    const struct sequence_cut *cut = &l->opt.cut;
    const int64_t n = batch_tokens(cut), each = batch_rows(cut->modules) * n;
    const size_t bytes = (size_t)cut->t * sizeof *l->inputs;

    titan_assert(step > l->opt.steps_read);
    l->bytes = 0;
    const uint64_t first = l->opt.samples_read + (step - 1 - l->opt.steps_read) * (uint64_t)l->opt.global_batch;
    for (int64_t slot = 0; slot < l->opt.share; slot++) {
        const int64_t sample = (l->opt.first + slot) * cut->b;
        for (int64_t i = 0; i < cut->b; i++) {
            const uint64_t number = (uint64_t)(sample + i);
            int32_t *const inputs = l->inputs + i * cut->t, *const targets = l->targets + i * cut->t;
            int32_t *const starts = l->starts ? l->starts + i * cut->t : NULL;
            titan_assert(sample + i >= 0);
            if (l->opt.samples == 0 || (sample + i < l->opt.global_batch && first + number < l->opt.samples)) {
                TRY(dataset_sample(l->opt.data, first + number, inputs, targets, starts, err));
            } else { /* the last step of an evaluation has no sample for this row, so no token of the row is counted */
                memset(inputs, 0, bytes);
                memset(targets, 0xff, bytes); /* -1 */
                if (starts)
                    memset(starts, 0, bytes);
            }
            /* A sample's tokens are its inputs and its last target. A failed write does not stop the run. */
            if (l->opt.log) {
                const uint64_t hash =
                    hash_bytes(hash_bytes(HASH_INIT, inputs, bytes), targets + cut->t - 1, sizeof(*targets));
                (void)fprintf(l->opt.log, "%" PRIu64 ",%" PRIu64 ",%016" PRIx64 "\n", step, number, hash);
            }
        }
        l->counts[slot] =
            (double)batch_fill(cut, l->opt.cp_rank, l->inputs, l->targets, l->starts, l->tokens + slot * each);
        const int32_t *targets = l->tokens + slot * each + n;
        for (int64_t i = 0; i < n && l->opt.token_bytes; i++)
            l->bytes += targets[i] >= 0 ? l->opt.token_bytes[targets[i]] : 0;
    }
    if (l->opt.log)
        (void)fflush(l->opt.log);
    return TITAN_OK;
}
