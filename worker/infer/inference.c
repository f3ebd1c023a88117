/* SPDX-License-Identifier: Apache-2.0 */
/* inference.c - see inference.h. */
#include "worker/infer/inference.h"

#include <inttypes.h>
#include <string.h>

static titan_status choose_dtype(const char *name, const struct device_info *info, enum dtype *ret,
                                 struct titan_error *err)
{
    if (strcmp(name, "bf16") == 0 || strcmp(name, "bfloat16") == 0)
        *ret = DTYPE_BF16;
    else if (strcmp(name, "f32") == 0 || strcmp(name, "float32") == 0)
        *ret = DTYPE_F32;
    else if (strcmp(name, "auto") == 0)
        *ret = info->bf16_fast ? DTYPE_BF16 : DTYPE_F32;
    else
        return titan_fail(err, TITAN_EINVAL, "--dtype is bf16 or f32, not '%s'", name);
    return TITAN_OK;
}

static titan_status open_tokenizer(struct inference *i, const char *given, const char *pattern, struct titan_error *err)
{
    const struct recipe *r = &i->trained.recipe;
    const char *name = given ? given : r->model.tokenizer;

    if (tokenizer_open_as(name, pattern ? pattern : r->model.tokenizer_pattern, &i->tokenizer, err) != TITAN_OK) {
        if (!given)
            titan_error_hint(err, "the run trained with it; --tokenizer names where it is now");
        return err && err->status == TITAN_ENOMEM ? TITAN_ENOMEM : TITAN_EINVAL;
    }
    const struct run_identity *trained = &i->trained.info.identity;
    if (!given && trained->known && tokenizer_hash(i->tokenizer) != trained->tokenizer) {
        (void)titan_fail(err, TITAN_EINVAL,
                         "the tokenizer '%s' gives other ids (%016" PRIx64
                         ") than when the run trained with it (%016" PRIx64 ")",
                         name, tokenizer_hash(i->tokenizer), trained->tokenizer);
        titan_error_hint(err, "--tokenizer names the one that is meant");
        return TITAN_EINVAL;
    }
    if (tokenizer_vocabulary(i->tokenizer) > r->model.dims.vocab_size)
        return titan_fail(err, TITAN_EINVAL, "tokenizer '%s' has %" PRId64 " tokens, the model %" PRId64, name,
                          tokenizer_vocabulary(i->tokenizer), (int64_t)r->model.dims.vocab_size);
    return TITAN_OK;
}

titan_status inference_open(const struct inference_options *options, struct inference *ret, struct titan_error *err)
{
    titan_assert(options->checkpoint && !ret->tokenizer);
    TRY(trained_open(options->checkpoint, &ret->trained, err));
    const struct recipe *r = &ret->trained.recipe;
    const struct device_options device = {.threads = (int)r->device.threads};
    TRY(open_tokenizer(ret, options->tokenizer, options->pattern, err));
    TRY(device_open(options->device ? options->device : r->device.name, &device, &ret->device, err));
    return choose_dtype(options->dtype ? options->dtype : r->training.mixed_precision_param, &ret->device.info,
                        &ret->dt, err);
}

void inference_close(struct inference *i)
{
    tokenizer_close(i->tokenizer);
    device_close(&i->device);
    trained_close(&i->trained);
    *i = (struct inference){0};
}
