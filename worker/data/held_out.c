/* SPDX-License-Identifier: Apache-2.0 */
/* held_out.c - see held_out.h. */
#include "worker/data/held_out.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/cleanup.h"

#define SAMPLES_SEED 0 /* fixed: the recipe's seed does not change the samples */

titan_status held_out_open(const struct recipe *recipe, const struct tokenizer *tokenizer, const char *cache,
                           int threads, struct held_out *ret, struct titan_error *err)
{
    const int64_t vocabulary = recipe->model.dims.vocab_size;
    const struct dataset_source source = {.path = recipe->validation.dataset_path, .kind = recipe->validation.dataset};
    const struct dataset_options options = {.sources = &source,
                                            .n_sources = 1,
                                            .tokenizer_name = recipe->model.tokenizer,
                                            .tokenizer = tokenizer,
                                            .chat_template = recipe->training.chat_template,
                                            .seq_len = recipe->validation.seq_len,
                                            .vocab_size = vocabulary,
                                            .seed = SAMPLES_SEED,
                                            .cache = cache,
                                            .threads = threads,
                                            .split = SPLIT_HELD_OUT};

    titan_assert(!ret->data && !ret->token_bytes);
    if (dataset_open(&options, &ret->data, err) != TITAN_OK)
        return titan_error_wrap(err, "validation");

    const uint64_t batch = (uint64_t)recipe_validation_batch(recipe), windows = dataset_windows(ret->data);
    const int64_t steps = recipe->validation.steps;
    if (steps > 0 && windows < batch) {
        (void)titan_fail(err, TITAN_EINVAL,
                         "validation: the data has %" PRIu64 " samples of validation.seq_len = %" PRId64
                         " tokens, one of validation.steps needs %" PRIu64,
                         windows, recipe->validation.seq_len, batch);
        titan_error_hint(err, "validation.steps = -1 evaluates all of the data once");
        return TITAN_EINVAL;
    }
    ret->steps = steps > 0 ? (uint64_t)steps : (windows + batch - 1) / batch;
    ret->samples = steps > 0 ? ret->steps * batch : windows;

    /* Counts the bytes of text of each token, as inside a text: at the beginning of a text, a token may lose the space
     * in front of it. Begin and end of text have 0 bytes, but with the tokenizer "bytes" every token has a byte. */
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    const bool bytes = tokenizer_vocabulary(tokenizer) == 256;
    ret->token_bytes = calloc((size_t)vocabulary, sizeof *ret->token_bytes);
    if (!ret->token_bytes)
        return titan_fail(err, TITAN_ENOMEM, "validation: out of memory");
    for (int32_t id = 0; id < MIN(vocabulary, tokenizer_vocabulary(tokenizer)); id++) {
        const int32_t two[2] = {id, id};
        text.len = 0;
        if (!bytes && (id == tokenizer_bos(tokenizer) || id == tokenizer_eos(tokenizer)))
            continue;
        if (tokenizer_decode(tokenizer, two, 1, &text, NULL) == TITAN_OK) {
            const size_t first = text.len;
            text.len = 0;
            if (tokenizer_decode(tokenizer, two, 2, &text, NULL) == TITAN_OK && text.len > first)
                ret->token_bytes[id] = (uint16_t)MIN(text.len - first, (size_t)UINT16_MAX);
        }
        if (buf_failed(&text))
            return titan_fail(err, TITAN_ENOMEM, "validation: out of memory");
    }
    return TITAN_OK;
}

void held_out_close(struct held_out *h)
{
    dataset_close(h->data);
    free(h->token_bytes);
    *h = (struct held_out){0};
}
