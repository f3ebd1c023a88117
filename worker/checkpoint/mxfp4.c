/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/mxfp4.h"

#include <math.h>

#include "base/error.h"

void mxfp4_decode(float *out, const uint8_t *codes, const uint8_t *scales, int64_t n)
{
    static const float values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

    titan_assert(n % MXFP4_BLOCK == 0);
    for (int64_t i = 0; i < n; i += MXFP4_BLOCK) {
        const float by = ldexpf(1, scales[i / MXFP4_BLOCK] - 127);
        for (int64_t j = i; j < i + MXFP4_BLOCK; j += 2) {
            out[j] = values[codes[j / 2] & 15] * by;
            out[j + 1] = values[codes[j / 2] >> 4] * by;
        }
    }
}
