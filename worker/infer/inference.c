/* SPDX-License-Identifier: Apache-2.0 */
/* inference.c - see inference.h. */
#include "worker/infer/inference.h"

#include <inttypes.h>
#include <string.h>

titan_status inference_open(const struct inference_options *options, struct inference *ret, struct titan_error *err)
{
    titan_assert(options->checkpoint && !ret->tokenizer);
    TRY(trained_open(options->checkpoint, &ret->trained, err));
    const struct recipe *r = &ret->trained.recipe;
    const struct run_identity *trained = &ret->trained.info.identity;
    const char *given = options->tokenizer, *name = given ? given : r->model.tokenizer;
    const char *pattern = options->pattern ? options->pattern : r->model.tokenizer_pattern;

    if (tokenizer_open_as(name, pattern, &ret->tokenizer, err) != TITAN_OK) {
        if (!given)
            titan_error_hint(err, "the run trained with it; --tokenizer names where it is now");
        return err && err->status == TITAN_ENOMEM ? TITAN_ENOMEM : TITAN_EINVAL;
    }
    if (!given && trained->known && tokenizer_hash(ret->tokenizer) != trained->tokenizer) {
        (void)titan_fail(err, TITAN_EINVAL,
                         "the tokenizer '%s' gives other ids (%016" PRIx64
                         ") than when the run trained with it (%016" PRIx64 ")",
                         name, tokenizer_hash(ret->tokenizer), trained->tokenizer);
        titan_error_hint(err, "--tokenizer names the one that is meant");
        return TITAN_EINVAL;
    }
    if (tokenizer_vocabulary(ret->tokenizer) > r->model.dims.vocab_size)
        return titan_fail(err, TITAN_EINVAL, "tokenizer '%s' has %" PRId64 " tokens, the model %" PRId64, name,
                          tokenizer_vocabulary(ret->tokenizer), (int64_t)r->model.dims.vocab_size);

    const struct device_options device = {.threads = (int)r->device.threads};
    const char *dtype = options->dtype ? options->dtype : r->training.mixed_precision_param;
    TRY(device_open(options->device ? options->device : r->device.name, &device, &ret->device, err));
    if (strcmp(dtype, "bf16") == 0 || strcmp(dtype, "bfloat16") == 0)
        ret->dt = DTYPE_BF16;
    else if (strcmp(dtype, "f32") == 0 || strcmp(dtype, "float32") == 0)
        ret->dt = DTYPE_F32;
    else if (strcmp(dtype, "auto") == 0)
        ret->dt = ret->device.info.bf16_fast ? DTYPE_BF16 : DTYPE_F32;
    else
        return titan_fail(err, TITAN_EINVAL, "--dtype is bf16 or f32, not '%s'", dtype);
    return TITAN_OK;
}

void inference_close(struct inference *i)
{
    tokenizer_close(i->tokenizer);
    device_close(&i->device);
    trained_close(&i->trained);
    *i = (struct inference){0};
}
