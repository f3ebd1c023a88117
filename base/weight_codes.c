/* SPDX-License-Identifier: Apache-2.0 */
/* weight_codes.c - see weight_codes.h. */
#include "base/weight_codes.h"

#include "base/error.h"
#include "base/rng.h"

static const char *const names[WEIGHT_CODECS] = {"none", "int8", "int6", "int4"};

enum weight_codec weight_codec_find(const char *name)
{
    for (int i = 1; i < WEIGHT_CODECS; i++)
        if (strcmp(names[i], name) == 0)
            return (enum weight_codec)i;
    return WEIGHTS_WHOLE;
}

float weight_shift(uint64_t seed, uint64_t step, int unit)
{
    uint32_t words[4];

    titan_assert(unit >= 0);
    rng_philox(rng_key(seed, "weight codes"), (uint64_t)unit, step, words);
    return ((float)(words[0] >> 9) + 0.5f) * 0x1p-23f;
}
