/* batch.c - tokens of a microbatch on one context-parallel rank. */
#include "worker/data/batch.h"

int64_t batch_tokens(const struct batch_shape *shape)
{
    return shape->b * shape->t / shape->cp;
}

/* index of number tokens in a row, those of one chunk. */
static int32_t *put_run(int32_t *ret, int64_t from, int64_t number)
{
    for (int64_t i = 0; i < number; i++)
        *ret++ = (int32_t)(from + i);
    return ret;
}

void batch_index(const struct batch_shape *shape, int cp_rank, int32_t *ret)
{
    const bool two = shape->head_tail && shape->cp > 1;
    const int chunks = two ? 2 * shape->cp : shape->cp;
    const int64_t chunk = shape->t / chunks;

    for (int64_t row = 0; row < shape->b; row++) {
        ret = put_run(ret, row * shape->t + cp_rank * chunk, chunk);
        if (two)
            ret = put_run(ret, row * shape->t + (chunks - 1 - cp_rank) * chunk, chunk);
    }
}

void batch_keys(const struct batch_shape *shape, int cp_rank, bool ring, int32_t *ret)
{
    for (int i = 0; i < shape->cp; i++)
        batch_index(shape, ring ? (cp_rank - i + shape->cp) % shape->cp : i, ret + i * batch_tokens(shape));
}

int64_t batch_fill(const struct batch_shape *shape, int cp_rank, const int32_t *inputs, const int32_t *targets,
                   const int32_t *starts, int32_t *ret)
{
    const int64_t n = batch_tokens(shape);
    int32_t *const input = ret, *const target = ret + n, *const position = ret + 2 * n, *const index = ret + 3 * n,
                   *const start = ret + 4 * n;
    int64_t counted = 0;

    batch_index(shape, cp_rank, index);
    for (int64_t i = 0; i < n; i++) {
        const int32_t at = index[i], row = (int32_t)(at / shape->t * shape->t);
        input[i] = inputs[at];
        target[i] = targets[at];
        start[i] = row + (starts ? starts[at] : 0);
        position[i] = at - start[i];
        counted += target[i] >= 0;
    }
    return counted;
}
