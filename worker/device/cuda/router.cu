/* SPDX-License-Identifier: Apache-2.0 */
/* router.cu - which experts a token goes to, the gradient of their weights to the logits, the balancing bias and the
 * balance loss. One warp handles a token, and keeps the token's scores in shared memory.
 *   s = softmax(l) or sigmoid(l), w_j = scale s_j / (z + eps), z = sum of the chosen s_j (normalize), or scale s_j
 *   ds_j = scale (dw_j - sum_i dw_i s_i / z) / z, or scale dw_j
 *   dl = s (ds - sum_i ds_i s_i) for softmax, s (1 - s) ds for sigmoid */
#include "worker/device/cuda/kernel.cuh"

struct router_problem {
    bool bf16, sigmoid, normalize;
    int experts, top_k;
    int64_t n;
    float scale;
    int groups, top_groups, group_top_k; /* groups 0: none */
};
static struct router_problem problem_of(const struct router_shape &z)
{
    return {z.dt == DTYPE_BF16, z.sigmoid,         z.normalize,       (int)z.experts, (int)z.top_k, z.n, z.scale,
            (int)z.groups,      (int)z.top_groups, (int)z.group_top_k};
}

#define TOKENS 4 /* tokens of a block */
#define WEIGHT_EPS 1e-20f

template <class V, class Op> __device__ static inline V warp_reduce(V x, Op op)
{
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        x = op(x, __shfl_xor_sync(FULL_WARP, x, offset));
    return x;
}

struct op_max_u64 {
    __device__ unsigned long long operator()(unsigned long long a, unsigned long long b) const
    {
        return a > b ? a : b;
    }
};

/* Computes the scores s (E) of a token's logits; the whole warp calls it. */
__device__ static inline void scores(float *s, const void *logits, int64_t token, const struct router_problem &z)
{
    const int lane = (int)threadIdx.x % WARP;
    float top = -INFINITY, sum = 0.0f;
    for (int e = lane; e < z.experts; e += WARP) {
        const float x = any_load(logits, token * z.experts + e, z.bf16);
        s[e] = z.sigmoid ? 1.0f / (1.0f + expf(-x)) : x;
        top = fmaxf(top, x);
    }
    if (!z.sigmoid) {
        top = warp_reduce(top, op_max());
        for (int e = lane; e < z.experts; e += WARP) {
            s[e] = expf(s[e] - top);
            sum += s[e];
        }
        sum = warp_reduce(sum, op_sum());
        for (int e = lane; e < z.experts; e += WARP)
            s[e] /= sum;
    }
    __syncwarp();
}

/* Returns a key with the same order as x. A NaN comes last. No key is 0, because 0 means taken. */
__device__ static inline uint32_t order_of(float x)
{
    uint32_t bits;
    x = x == 0.0f ? 0.0f : x; /* -0 equals 0 */
    memcpy(&bits, &x, sizeof bits);
    return isnan(x) ? 1u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Returns the largest of n keys below `below`; among equal keys the lower place comes first. 0: no key is left. One
 * lane calls it. */
__device__ static inline unsigned long long next_below(const uint32_t *keys, int n, unsigned long long below)
{
    unsigned long long best = 0;
    for (int i = 0; i < n; i++) {
        const unsigned long long mine = (unsigned long long)keys[i] << 32 | (0xffffffffu - (uint32_t)i);
        best = mine < below && mine > best ? mine : best;
    }
    return best;
}

/* Sets the keys of all groups but the best to 0. groups: scratch of one word for each group; the whole warp calls
 * it. */
__device__ static inline void drop_groups(uint32_t *keys, uint32_t *groups, const float *s, const float *bias,
                                          const struct router_problem &z)
{
    const int lane = (int)threadIdx.x % WARP, width = z.experts / z.groups;
    __syncwarp();
    for (int g = lane; g < z.groups; g += WARP) {
        float sum = 0.0f;
        unsigned long long best = ~0ull;
        for (int j = 0; j < z.group_top_k; j++) {
            best = next_below(keys + g * width, width, best);
            const int e = g * width + (int)(0xffffffffu - (uint32_t)best);
            sum += bias ? s[e] + bias[e] : s[e];
        }
        groups[g] = order_of(sum);
    }
    __syncwarp();
    for (int k = 0; k < z.top_groups; k++) {
        unsigned long long best = 0; /* the score; among equals the lower group comes first */
        for (int g = lane; g < z.groups; g += WARP) {
            const unsigned long long mine = (unsigned long long)groups[g] << 32 | (0xffffffffu - (uint32_t)g);
            best = mine > best ? mine : best;
        }
        best = warp_reduce(best, op_max_u64());
        const int group = (int)(0xffffffffu - (uint32_t)best);
        if (lane == group % WARP)
            groups[group] = 0; /* taken */
    }
    __syncwarp();
    for (int e = lane; e < z.experts; e += WARP)
        keys[e] = groups[e / width] == 0 ? keys[e] : 0;
}

__host__ __device__ static inline int words_of_token(const struct router_problem &z)
{
    return 2 * z.experts + z.groups;
}

/* Chooses mine (top_k) by score + bias. keys: scratch, followed by one word for each group. The whole warp calls it. */
__device__ static inline void choose_best(int32_t *mine, const float *s, uint32_t *keys, const float *bias,
                                          const struct router_problem &z)
{
    const int lane = (int)threadIdx.x % WARP;
    for (int e = lane; e < z.experts; e += WARP)
        keys[e] = order_of(bias ? s[e] + bias[e] : s[e]);
    if (z.groups > 0)
        drop_groups(keys, keys + z.experts, s, bias, z);
    for (int k = 0; k < z.top_k; k++) {
        unsigned long long best = 0; /* the key; among equals the lower expert comes first */
        for (int e = lane; e < z.experts; e += WARP) {
            const unsigned long long own = (unsigned long long)keys[e] << 32 | (0xffffffffu - (uint32_t)e);
            best = own > best ? own : best;
        }
        best = warp_reduce(best, op_max_u64());
        const int expert = (int)(0xffffffffu - (uint32_t)best);
        if (lane == 0)
            mine[k] = expert;
        if (lane == expert % WARP)
            keys[expert] = 0;
    }
}

__global__ static void __launch_bounds__(TOKENS *WARP)
    router(int32_t *chosen, float *weights, const void *logits, const float *bias, const int32_t *numbers,
           struct router_problem z)
{
    DYNAMIC_SHARED(shared);
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int64_t token = (int64_t)blockIdx.x * TOKENS + warp;
    if (token >= z.n)
        return; /* a whole warp returns together */
    float *s = shared + (size_t)warp * (size_t)words_of_token(z);
    int32_t *mine = chosen + token * z.top_k;
    scores(s, logits, token, z);
    if (numbers) {
        const uint64_t first = (uint64_t)(uint32_t)numbers[token] * (uint64_t)z.top_k;
        for (int k = lane; k < z.top_k; k += WARP)
            mine[k] = (int32_t)((first + (uint64_t)k) % (uint64_t)z.experts);
    } else {
        choose_best(mine, s, (uint32_t *)(s + z.experts), bias, z);
    }
    __syncwarp();
    float sum = 0.0f;
    for (int k = 0; k < z.top_k; k++)
        sum += s[mine[k]];
    for (int k = lane; k < z.top_k; k += WARP) {
        const float score = s[mine[k]];
        weights[token * z.top_k + k] = (z.normalize ? score / (sum + WEIGHT_EPS) : score) * z.scale;
    }
}

/* One block counts one expert's choices. The order does not matter for a sum of ones. */
__global__ static void __launch_bounds__(THREADS) router_load(float *load, const int32_t *chosen, int64_t choices)
{
    __shared__ int scratch[32];
    int count = 0;
    for (int64_t i = threadIdx.x; i < choices; i += THREADS)
        count += chosen[i] == (int32_t)blockIdx.x;
    count = block_reduce(count, op_sum(), scratch);
    if (threadIdx.x == 0)
        load[blockIdx.x] += (float)count;
}

static unsigned token_blocks(const struct router_problem *z)
{
    return (unsigned)((z->n + TOKENS - 1) / TOKENS);
}

/* Shared memory of a block: for each token, two words for each expert and one for each group. */
static int shared_bytes(const struct router_problem *z)
{
    return TOKENS * words_of_token(*z) * (int)sizeof(float);
}

int cuda_router(void *stream, const struct router_args *a)
{
    const struct router_problem z = problem_of(a->shape);
    if (z.n == 0)
        return 0;
    int e = LAUNCH(router, token_blocks(&z), TOKENS * WARP, shared_bytes(&z), stream, a->chosen, a->weights, a->logits,
                   a->bias, a->numbers, z);
    if (e == 0 && a->load)
        e = LAUNCH(router_load, (unsigned)z.experts, THREADS, 0, stream, a->load, a->chosen, z.n * z.top_k);
    return e;
}

__global__ static void __launch_bounds__(TOKENS *WARP)
    router_dgrad(void *dlogits, const float *dweights, const void *logits, const int32_t *chosen,
                 struct router_problem z, struct fault_words fault)
{
    DYNAMIC_SHARED(shared);
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int64_t token = (int64_t)blockIdx.x * TOKENS + warp;
    if (token >= z.n)
        return; /* a whole warp returns together */
    float *s = shared + (size_t)warp * (size_t)words_of_token(z), *ds = s + z.experts;
    const float *dw = dweights + token * z.top_k;
    const int32_t *mine = chosen + token * z.top_k;
    scores(s, logits, token, z); /* dlogits may be logits: from here on the logits are not read */
    for (int e = lane; e < z.experts; e += WARP)
        ds[e] = 0.0f;
    float sum = 0.0f, mean = 0.0f;
    bool known = true;
    for (int k = 0; k < z.top_k && known; k++) {
        known = mine[k] >= 0 && mine[k] < z.experts;
        sum += known ? s[mine[k]] : 0.0f;
        mean += known ? dw[k] * s[mine[k]] : 0.0f;
    }
    if (!known) {
        fail_stream(fault, FAULT_CHOICE);
        return; /* all lanes read the same choices */
    }
    sum += WEIGHT_EPS;
    __syncwarp();
    for (int k = lane; k < z.top_k; k += WARP)
        ds[mine[k]] = z.scale * (z.normalize ? (dw[k] - mean / sum) / sum : dw[k]);
    __syncwarp();
    float dot = 0.0f;
    for (int e = lane; e < z.experts; e += WARP)
        dot += ds[e] * s[e];
    dot = z.sigmoid ? 0.0f : warp_reduce(dot, op_sum());
    for (int e = lane; e < z.experts; e += WARP) {
        const float d = z.sigmoid ? s[e] * (1.0f - s[e]) * ds[e] : s[e] * (ds[e] - dot);
        any_store(dlogits, token * z.experts + e, z.bf16, d);
    }
}

int cuda_router_dgrad(void *stream, const struct router_args *a, struct fault_words fault)
{
    const struct router_problem z = problem_of(a->shape);
    if (z.n == 0)
        return 0;
    return LAUNCH(router_dgrad, token_blocks(&z), TOKENS * WARP, shared_bytes(&z), stream, a->dlogits, a->dweights,
                  a->logits, a->chosen, z, fault);
}

__device__ static inline float sign_of(float x)
{
    return (float)(x > 0.0f) - (float)(x < 0.0f);
}

__global__ static void __launch_bounds__(THREADS)
    router_balance(float *bias, float *load, int64_t experts, float rate, const int *failed)
{
    __shared__ double scratch[32];
    if (*failed != 0)
        return;
    double total = 0.0, changes = 0.0;
    for (int64_t e = threadIdx.x; e < experts; e += THREADS)
        total += load[e];
    const float mean = (float)(block_reduce(total, op_sum(), scratch) / (double)experts);
    for (int64_t e = threadIdx.x; e < experts; e += THREADS)
        changes += sign_of(mean - load[e]);
    const float shift = (float)(block_reduce(changes, op_sum(), scratch) / (double)experts);
    for (int64_t e = threadIdx.x; e < experts; e += THREADS) {
        bias[e] += rate * (sign_of(mean - load[e]) - shift);
        load[e] = 0.0f;
    }
}

int cuda_router_balance(void *stream, float *bias, float *load, int64_t experts, float rate, const int *failed)
{
    return LAUNCH(router_balance, 1, THREADS, 0, stream, bias, load, experts, rate, failed);
}

/* --- balance loss ------------------------------------------------------------------------------------------------- */

#define STATS_WARPS 16
#define STATS_SHARED (46 << 10)

__device__ static inline int64_t place_of(int64_t row, int64_t n, const struct token_rows &p)
{
    const int64_t each = n / p.pieces;
    return row / each * (p.sequences * p.length / p.pieces) + p.first + row % each;
}

/* Divides a token's scores by their sum and returns the sum; the whole warp calls it. */
__device__ static inline float shares(float *s, const void *logits, int64_t token, const struct router_problem &z)
{
    const int lane = (int)threadIdx.x % WARP;
    float sum = 0.0f;
    scores(s, logits, token, z);
    for (int e = lane; e < z.experts; e += WARP)
        sum += s[e];
    sum = warp_reduce(sum, op_sum()) + WEIGHT_EPS;
    for (int e = lane; e < z.experts; e += WARP)
        s[e] /= sum;
    __syncwarp();
    return sum;
}

/* One block for a sequence. Each warp has its own sums, which are then added in the warps' order. */
__global__ static void __launch_bounds__(STATS_WARPS *WARP)
    balance_stats(float *stats, const void *logits, const int32_t *chosen, const int32_t *targets,
                  struct router_problem z, struct token_rows places)
{
    DYNAMIC_SHARED(shared);
    const int warps = (int)blockDim.x / WARP, warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int64_t sequence = blockIdx.x;
    float *s = shared + (size_t)warp * 3 * (size_t)z.experts, *sums = s + z.experts, *counts = sums + z.experts;
    float *counted = shared + (size_t)warps * 3 * (size_t)z.experts, mine = 0.0f;
    for (int e = lane; e < z.experts; e += WARP)
        sums[e] = counts[e] = 0.0f;
    __syncwarp();
    for (int64_t i = warp; i < z.n; i += warps) {
        const int64_t place = place_of(i, z.n, places);
        if (place / places.length != sequence)
            continue; /* the whole warp continues together */
        (void)shares(s, logits, i, z);
        for (int e = lane; e < z.experts; e += WARP)
            sums[e] += s[e];
        for (int k = lane; k < z.top_k; k += WARP) { /* a token's choices are all different */
            const int e = chosen[i * z.top_k + k];
            if (e >= 0 && e < z.experts) /* otherwise the router's gradient fails the stream */
                counts[e] += 1.0f;
        }
        mine += targets[place] >= 0 ? 1.0f : 0.0f;
        __syncwarp();
    }
    if (lane == 0)
        counted[warp] = mine;
    __syncthreads();
    float *own = stats + sequence * (2 * z.experts + 1);
    for (int e = (int)threadIdx.x; e < z.experts; e += (int)blockDim.x) {
        float count = 0.0f;
        double sum = 0.0;
        for (int w = 0; w < warps; w++) {
            sum += shared[(size_t)w * 3 * (size_t)z.experts + (size_t)(z.experts + e)];
            count += shared[(size_t)w * 3 * (size_t)z.experts + (size_t)(2 * z.experts + e)];
        }
        own[e] = count;
        own[z.experts + e] = (float)sum;
    }
    if (threadIdx.x == 0) {
        for (int w = 1; w < warps; w++)
            mine += counted[w];
        own[2 * z.experts] = mine;
    }
}

int cuda_balance_stats(void *stream, const struct balance_args *a)
{
    const struct router_problem z = problem_of(a->shape);
    const int of_warp = 3 * z.experts * (int)sizeof(float);
    const int fit = STATS_SHARED / of_warp, warps = fit < 1 ? 1 : fit < STATS_WARPS ? fit : STATS_WARPS;
    return LAUNCH(balance_stats, (unsigned)a->rows.sequences, warps * WARP, warps * (of_warp + (int)sizeof(float)),
                  stream, a->stats, a->logits, a->chosen, a->targets, z, a->rows);
}

__global__ static void __launch_bounds__(THREADS)
    balance_loss(float *losses, float *dscores, const float *stats, int64_t parts, int64_t experts, double share,
                 double tokens, float factor)
{
    __shared__ double scratch[32];
    const int64_t each = 2 * experts + 1, part = gridDim.x * each, b = blockIdx.x;
    double counted = 0.0, loss = 0.0;
    for (int64_t q = 0; q < parts; q++)
        counted += stats[q * part + b * each + 2 * experts];
    for (int64_t e = threadIdx.x; e < experts; e += THREADS) {
        double chosen = 0.0, sum = 0.0;
        for (int64_t q = 0; q < parts; q++) {
            chosen += stats[q * part + b * each + e];
            sum += stats[q * part + b * each + experts + e];
        }
        loss += chosen * share * sum / tokens;
        dscores[b * experts + e] = (float)(factor * counted * (chosen * share - 1.0) / tokens);
    }
    loss = block_reduce(loss, op_sum(), scratch);
    if (threadIdx.x == 0)
        losses[b] = (float)(counted * loss);
}

int cuda_balance_loss(void *stream, const struct balance_loss_args *a)
{
    const double share = (double)a->experts / ((double)a->top_k * (double)a->tokens);
    return LAUNCH(balance_loss, (unsigned)a->sequences, THREADS, 0, stream, a->losses, a->dscores, a->stats, a->parts,
                  a->experts, share, (double)a->tokens, a->factor);
}

/* With q = s / sum s, the gradient dq gives ds = (dq - sum_e dq_e q_e) / sum s. Then ds gives dl as in the router's
 * gradient. */
__global__ static void __launch_bounds__(TOKENS *WARP)
    balance_dgrad(void *dlogits, const void *logits, const float *dscores, struct router_problem z,
                  struct token_rows places)
{
    DYNAMIC_SHARED(shared);
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int64_t token = (int64_t)blockIdx.x * TOKENS + warp;
    if (token >= z.n)
        return; /* a whole warp returns together */
    float *q = shared + (size_t)warp * (size_t)z.experts, mean = 0.0f;
    const float *dq = dscores + place_of(token, z.n, places) / places.length * z.experts;
    const float sum = shares(q, logits, token, z);
    for (int e = lane; e < z.experts; e += WARP)
        mean += dq[e] * q[e];
    mean = warp_reduce(mean, op_sum());
    for (int e = lane; e < z.experts; e += WARP) {
        const int64_t at = token * z.experts + e;
        const float slope = z.sigmoid ? 1.0f - q[e] * sum : 1.0f;
        any_store(dlogits, at, z.bf16, any_load(dlogits, at, z.bf16) + q[e] * slope * (dq[e] - mean));
    }
}

int cuda_balance_dgrad(void *stream, const struct balance_args *a)
{
    const struct router_problem z = problem_of(a->shape);
    if (z.n == 0)
        return 0;
    return LAUNCH(balance_dgrad, token_blocks(&z), TOKENS * WARP, TOKENS * z.experts * (int)sizeof(float), stream,
                  a->dlogits, a->logits, a->dscores, z, a->rows);
}
