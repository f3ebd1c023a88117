/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of gradients from another rank, of any bytes: they decode to floats, and to finite ones where their scales are.
 * What is coded of any values, with any error kept, is decoded near them, or is NaN for a whole bucket. The CPU's
 * kernels run on memory without a byte to spare. */
#include "tests/fuzz/common.h"

#include <math.h>

#include "worker/device/cpu/cpu.h"

/* --- a stream that runs at once ----------------------------------------------------------------------------------- */

titan_status cpu_enqueue(struct stream *s, cpu_run run, const void *args, size_t bytes)
{
    const struct cpu_context ctx = {.threads = 1};

    (void)s;
    fuzz_assert(bytes <= CPU_ARGS_MAX);
    return run(&ctx, args);
}

void cpu_for(const struct cpu_context *ctx, int64_t n, int64_t grain, cpu_range fn, const void *args)
{
    (void)ctx;
    (void)grain;
    if (n > 0)
        fn(args, 0, n, 0);
}

titan_status cpu_enqueue_range(struct stream *s, cpu_range fn, int64_t n, int64_t grain, const void *args, size_t bytes)
{
    (void)s;
    fuzz_assert(bytes <= CPU_ARGS_MAX);
    cpu_for(NULL, n, grain, fn, args);
    return TITAN_OK;
}

titan_status cpu_zero(struct stream *s, void *dst, size_t bytes)
{
    (void)s;
    memset(dst, 0, bytes);
    return TITAN_OK;
}

/* Memory of exactly so many bytes, from the input; zeros where that has ended. */
static void *filled(struct fuzz_input *in, size_t bytes)
{
    uint8_t *const p = aligned_alloc(16, bytes);
    const size_t n = MIN(bytes, in->len);

    fuzz_assert(p || bytes == 0);
    if (bytes > 0) {
        memset(p, 0, bytes);
        memcpy(p, in->data, n);
    }
    in->data += n;
    in->len -= n;
    return p;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    const enum codec codec = (enum codec)(1 + fuzz_take(&in, 1) % (CODECS - 1));
    const int64_t pieces = 1 + (int64_t)(fuzz_take(&in, 1) % 4), n = 1 + (int64_t)(fuzz_take(&in, 2) % 2500);
    const bool stochastic = fuzz_take(&in, 1) & codec_row(codec)->stochastic;
    const struct codec_places at = codec_places(codec, n);
    _cleanup_free_ uint8_t *codes = filled(&in, (size_t)(pieces * at.bytes));
    _cleanup_free_ uint8_t *error = codec == CODEC_LOCO ? filled(&in, (size_t)(pieces * at.error_bytes)) : NULL;
    _cleanup_free_ float *x = filled(&in, (size_t)((pieces * n + 3) / 4) * 16), *out = malloc((size_t)n * sizeof *out);
    _cleanup_free_ float *largest = malloc((size_t)(pieces * at.buckets) * sizeof *largest);
    const struct decode_sum_args d = {.out = out, .codes = codes, .codec = codec, .pieces = pieces, .n = n};
    const struct encode_args e = {.codes = codes,
                                  .error = error,
                                  .x = x,
                                  .codec = codec,
                                  .pieces = pieces,
                                  .n = n,
                                  .decay = codec == CODEC_LOCO ? 0.8f : 0,
                                  .stochastic = stochastic,
                                  .key = {{1, 2}}};

    fuzz_assert(out && largest);
    fuzz_assert(cpu_decode_sum(NULL, &d) == TITAN_OK);
    for (int64_t i = 0; i < n && at.codes; i++) {
        float most = 0; /* of a sum, if each code were the largest */
        for (int64_t p = 0; p < pieces; p++)
            most += fabsf(((const float *)(const void *)(codes + p * at.bytes))[i / CODEC_BUCKET]) * 448;
        fuzz_assert(!isfinite(most) || codec == CODEC_FP8 || fabsf(out[i]) <= most);
    }

    /* one scale a tensor, of tensors anywhere */
    float of_tensor[3];
    int64_t begins[4];
    for (int t = 0; t < 4; t++)
        begins[t] = (int64_t)fuzz_take(&in, 2) - 100;
    const struct bucket_largest_args l = {.largest = largest,
                                          .of_tensor = of_tensor,
                                          .x = x,
                                          .error = error,
                                          .pieces = pieces,
                                          .n = n,
                                          .begins = begins,
                                          .tensors = 3};
    const titan_status status = cpu_bucket_largest(NULL, &l);
    fuzz_assert(status == TITAN_EINVAL || status == TITAN_OK);

    fuzz_assert(cpu_encode(NULL, &e) == TITAN_OK);
    for (int64_t b = 0; b < pieces * at.buckets; b++) {
        const int64_t piece = b / at.buckets, k = b % at.buckets, from = piece * n + k * CODEC_BUCKET;
        const float scale = at.codes ? ((const float *)(const void *)(codes + piece * at.bytes))[k] : 0;
        float most = 0;
        bool finite = true;
        for (int64_t i = from; i < piece * n + MIN(n, (k + 1) * CODEC_BUCKET); i++) {
            finite = finite && isfinite(x[i]);
            most = fmaxf(most, fabsf(x[i]));
        }
        if (at.codes && !error)
            fuzz_assert(isnan(scale) == (!finite || most >= 0x1p126f) && !(scale < 0));
    }
    const struct decode_sum_args again = {.out = out, .codes = codes, .codec = codec, .pieces = 1, .n = n};
    fuzz_assert(cpu_decode_sum(NULL, &again) == TITAN_OK);
    for (int64_t i = 0; i < n && !error; i++) {
        const float scale = at.codes ? ((const float *)(const void *)codes)[i / CODEC_BUCKET] : 0;
        const float step = codec == CODEC_FP8 ? fabsf(x[i]) / 16 + scale / 512 : scale;
        if (isnan(scale))
            fuzz_assert(isnan(out[i]));
        else if (scale > 0)
            fuzz_assert(fabsf(out[i] - x[i]) <= step * 1.001f);
        else if (at.codes)
            fuzz_assert(out[i] == 0);
    }
    if (codec == CODEC_F32)
        fuzz_assert(memcmp(out, x, (size_t)n * sizeof *x) == 0);
    return 0;
}
