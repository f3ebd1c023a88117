/* SPDX-License-Identifier: Apache-2.0 */
/* permute.cu - moves rows into the order of their experts and back. Places are found by counting without atomics: one
 * block owns one expert and searches all choices for this expert. So the order is the order of the tokens. */
#include "worker/device/cuda/kernel.cuh"

__global__ static void __launch_bounds__(THREADS) count_choices(int32_t *counts, const int32_t *chosen, int64_t choices)
{
    __shared__ int scratch[32];
    int count = 0;
    for (int64_t i = threadIdx.x; i < choices; i += THREADS)
        count += chosen[i] == (int32_t)blockIdx.x;
    count = block_reduce(count, op_sum(), scratch);
    if (threadIdx.x == 0)
        counts[blockIdx.x] = count;
}

/* Number of an expert's rows that are kept: at most `most`, or all with most 0. */
__device__ static inline int kept_of(int count, int64_t most)
{
    return most > 0 && count > most ? (int)most : count;
}

/* Sum over the block of kept_of() of the counts in x[from, to). */
__device__ static inline int sum_range(const int32_t *x, int64_t from, int64_t to, int64_t most, int *scratch)
{
    int sum = 0;
    for (int64_t i = from + threadIdx.x; i < to; i += THREADS)
        sum += kept_of(x[i], most);
    return block_reduce(sum, op_sum(), scratch);
}

/* Cuts the counts to `most`; one block, after all readers of the whole counts. */
__global__ static void __launch_bounds__(THREADS)
    drop_rows(int32_t *counts, float *dropped, int64_t experts, int64_t most)
{
    __shared__ int scratch[32];
    int beyond = 0;
    for (int64_t e = threadIdx.x; e < experts; e += THREADS) {
        const int count = counts[e], kept = kept_of(count, most);
        beyond += count - kept;
        counts[e] = kept;
    }
    beyond = block_reduce(beyond, op_sum(), scratch);
    if (threadIdx.x == 0 && dropped)
        *dropped += (float)beyond;
}

/* Fails the stream for choices that name no expert; their rows go nowhere. One block calls it. */
__device__ static inline void refuse_unknown(int32_t *place, const int32_t *chosen, int64_t choices, int64_t experts,
                                             const struct fault_words &fault)
{
    for (int64_t i = threadIdx.x; i < choices; i += THREADS) {
        if (chosen[i] < 0 || chosen[i] >= experts) {
            place[i] = -1;
            fail_stream(fault, FAULT_CHOICE);
        }
    }
}

#define WORDS 64 /* words of 32 choices each */
#define CHUNK (WORDS * WARP)

__global__ static void __launch_bounds__(THREADS)
    place_choices(int32_t *place, const int32_t *counts, int32_t *rank_counts, const int32_t *chosen, int64_t choices,
                  int64_t experts, int64_t each, int64_t most, struct fault_words fault)
{
    __shared__ uint32_t found[WORDS];
    __shared__ int scratch[32];
    const int64_t expert = blockIdx.x;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int next = sum_range(counts, 0, expert, most, scratch);
    const int end = next + kept_of(counts[expert], most);
    if (expert % each == 0) {
        const int rows = sum_range(counts, expert, expert + each, most, scratch);
        if (threadIdx.x == 0)
            rank_counts[expert / each] = rows;
    }
    if (expert == 0)
        refuse_unknown(place, chosen, choices, experts, fault);
    for (int64_t begin = 0; begin < choices; begin += CHUNK) {
        int any = 0;
        for (int word = warp; word < WORDS; word += THREADS / WARP) {
            const int64_t at = begin + word * WARP + lane;
            const uint32_t vote = __ballot_sync(FULL_WARP, at < choices && chosen[at] == (int32_t)expert);
            if (lane == 0)
                found[word] = vote;
            any |= vote != 0;
        }
        if (!__syncthreads_or(any))
            continue;
        for (int word = warp; word < WORDS; word += THREADS / WARP) {
            if (!(found[word] >> lane & 1u))
                continue;
            int row = next + __popc(found[word] & ((1u << lane) - 1u));
            for (int before = 0; before < word; before++)
                row += __popc(found[before]);
            place[begin + word * WARP + lane] = row < end ? row : -1;
        }
        for (int word = 0; word < WORDS; word++)
            next += __popc(found[word]);
        __syncthreads(); /* before `found` is overwritten */
    }
}

int cuda_permute(void *stream, const struct permute_args *a, struct fault_words fault)
{
    const int64_t choices = a->n * a->top_k;
    int e = LAUNCH(count_choices, (unsigned)a->experts, THREADS, 0, stream, a->counts, a->chosen, choices);
    if (e == 0)
        e = LAUNCH(place_choices, (unsigned)a->experts, THREADS, 0, stream, a->place, a->counts, a->rank_counts,
                   a->chosen, choices, a->experts, a->experts / a->ranks, a->most, fault);
    if (e == 0 && a->most > 0)
        e = LAUNCH(drop_rows, 1, THREADS, 0, stream, a->counts, a->dropped, a->experts, a->most);
    return e;
}

/* One block for the rows that one rank sent to one expert; the blocks are ordered by rank. If the counts cannot be
 * true, no row gets a place. So later kernels, enqueued before the host learns of the failure, stay within their
 * memory. */
__global__ static void __launch_bounds__(THREADS)
    place_received(int32_t *place, int32_t *counts, int32_t *rank_counts, const int32_t *received, int64_t ranks,
                   int64_t ld, int64_t experts, int64_t rows, bool by_rank, struct fault_words fault)
{
    __shared__ int64_t scratch[32];
    const int64_t piece = blockIdx.x, rank = piece / experts, expert = piece % experts;
    const int64_t mine = received[rank * ld + expert];
    int64_t source = 0, target = 0, total = 0, of_expert = 0, of_rank = 0, impossible = 0;
    for (int64_t i = threadIdx.x; i < ranks * experts; i += THREADS) {
        const int64_t r = i / experts, e = i % experts, n = received[r * ld + e];
        impossible |= n < 0;
        total += n;
        source += i < piece ? n : 0;
        target += by_rank ? (i < piece ? n : 0) : (e < expert || (e == expert && r < rank) ? n : 0);
        of_expert += e == expert ? n : 0;
        of_rank += r == rank ? n : 0;
    }
    impossible = block_reduce(impossible, op_sum(), scratch);
    total = block_reduce(total, op_sum(), scratch);
    source = block_reduce(source, op_sum(), scratch);
    target = block_reduce(target, op_sum(), scratch);
    of_expert = block_reduce(of_expert, op_sum(), scratch);
    of_rank = block_reduce(of_rank, op_sum(), scratch);
    const bool fits = impossible == 0 && total <= rows;
    if (threadIdx.x == 0 && (by_rank || rank == 0))
        counts[by_rank ? piece : expert] = fits ? (int32_t)(by_rank ? mine : of_expert) : 0;
    if (threadIdx.x == 0 && expert == 0)
        rank_counts[rank] = fits ? (int32_t)of_rank : 0;
    if (!fits && threadIdx.x == 0)
        fail_stream(fault, FAULT_ROWS);
    for (int64_t i = threadIdx.x; fits && i < mine; i += THREADS)
        place[source + i] = (int32_t)(target + i);
    for (int64_t i = (fits ? total : 0) + piece * THREADS + threadIdx.x; i < rows; i += ranks * experts * THREADS)
        place[i] = -1;
}

int cuda_permute_received(void *stream, const struct received_args *a, struct fault_words fault)
{
    return LAUNCH(place_received, (unsigned)(a->ranks * a->experts), THREADS, 0, stream, a->place, a->counts,
                  a->rank_counts, a->received, a->ranks, a->ld, a->experts, a->rows, a->by_rank, fault);
}

/* --- rounds ------------------------------------------------------------------------------------------------------- */

__device__ static inline int at_least_0(int x)
{
    return x > 0 ? x : 0;
}

/* One block. The rounds are computed one after the other, because each depends on the rows that are left. A round is
 * split expert by expert. total, done, take: for each expert, or for each rank and expert (by_rank). */
__global__ static void __launch_bounds__(THREADS)
    split_rounds(int32_t *split, float *seen, const int32_t *received, int64_t ranks, int64_t experts, int64_t rounds,
                 int64_t room, int64_t piece, bool by_rank, struct fault_words fault)
{
    DYNAMIC_SHARED(shared);
    const int64_t n = by_rank ? ranks * experts : experts;
    int *total = (int *)shared, *done = total + n, *take = done + n;
    int64_t all = 0, taken = 0; /* used by the first thread only */
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        total[i] = done[i] = 0;
        for (int64_t at = i; at < ranks * experts; at += n) {
            if (received[at] < 0)
                fail_stream(fault, FAULT_ROWS);
            total[i] += at_least_0(received[at]);
        }
    }
    __syncthreads();
    for (int64_t i = 0; i < n && threadIdx.x == 0; i++)
        all += total[i];
    for (int64_t q = 0; q < rounds; q++) {
        int64_t left = room;
        bool waits = false;
        for (int64_t i = 0; i < n && threadIdx.x == 0; i++) {
            const int64_t rest = total[i] - done[i], whole = left / piece * piece;
            take[i] = (int)(rest > left ? whole : rest);
            left = rest > left ? 0 : left - rest;
            waits = waits || rest > 0;
        }
        taken += waits;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < ranks * experts; i += THREADS) {
            const int64_t rank = i / experts, e = i % experts, of = by_rank ? i : e;
            int begin = 0;
            for (int64_t r = 0; r < rank && !by_rank; r++)
                begin += at_least_0(received[r * experts + e]);
            const int end = begin + at_least_0(received[i]), limit = done[of] + take[of];
            const int from = begin > done[of] ? begin : done[of], to = end < limit ? end : limit;
            split[(rank * rounds + q) * experts + e] = at_least_0(to - from);
        }
        __syncthreads();
        for (int64_t i = threadIdx.x; i < n; i += THREADS)
            done[i] += take[i];
        __syncthreads();
    }
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        if (done[i] != total[i])
            fail_stream(fault, FAULT_ROWS);
    if (threadIdx.x == 0 && seen) {
        seen[0] += (float)(taken > 1 ? taken - 1 : 0);
        seen[1] = seen[1] > (float)all ? seen[1] : (float)all;
    }
}

int cuda_split_rounds(void *stream, const struct split_args *a, struct fault_words fault)
{
    const int words = 3 * (int)(a->by_rank ? a->ranks * a->experts : a->experts);
    return LAUNCH(split_rounds, 1, THREADS, words * (int)sizeof(int), stream, a->split, a->seen, a->received, a->ranks,
                  a->experts, a->rounds, a->room, EXPERT_SPLIT, a->by_rank, fault);
}

/* One block for the rows to one expert of one rank. If the counts cannot be true, no row gets a place. */
__global__ static void __launch_bounds__(THREADS)
    place_round(int32_t *place, int32_t *origin, int32_t *rank_counts, const int32_t *split, int64_t ranks,
                int64_t experts, int64_t rounds, int64_t round, int64_t rows, struct fault_words fault)
{
    __shared__ int64_t scratch[32];
    const int64_t piece = blockIdx.x, rank = piece / experts, expert = piece % experts;
    int64_t first = 0, before = 0, mine = 0, all = 0, total = 0, target = 0, in_round = 0, of_rank = 0, impossible = 0;
    for (int64_t i = threadIdx.x; i < ranks * rounds * experts; i += THREADS) {
        const int64_t n = split[i], r = i / (rounds * experts), q = i / experts % rounds, e = i % experts;
        const bool earlier = r * experts + e < piece, own = r == rank && e == expert;
        impossible |= n < 0;
        total += n;
        first += earlier ? n : 0;
        all += own ? n : 0;
        before += own && q < round ? n : 0;
        mine += own && q == round ? n : 0;
        target += earlier && q == round ? n : 0;
        in_round += q == round ? n : 0;
        of_rank += r == rank && q == round ? n : 0;
    }
    impossible = block_reduce(impossible, op_sum(), scratch);
    total = block_reduce(total, op_sum(), scratch);
    first = block_reduce(first, op_sum(), scratch);
    all = block_reduce(all, op_sum(), scratch);
    before = block_reduce(before, op_sum(), scratch);
    mine = block_reduce(mine, op_sum(), scratch);
    target = block_reduce(target, op_sum(), scratch);
    in_round = block_reduce(in_round, op_sum(), scratch);
    of_rank = block_reduce(of_rank, op_sum(), scratch);
    const bool fits = impossible == 0 && total <= rows;
    if (!fits && threadIdx.x == 0)
        fail_stream(fault, FAULT_ROWS);
    if (threadIdx.x == 0 && expert == 0)
        rank_counts[rank] = fits ? (int32_t)of_rank : 0;
    for (int64_t i = threadIdx.x; fits && i < all; i += THREADS) {
        const bool here = i >= before && i < before + mine;
        place[first + i] = here ? (int32_t)(target + i - before) : -1;
        if (here)
            origin[target + i - before] = (int32_t)(first + i);
    }
    const int64_t at = piece * THREADS + threadIdx.x, step = ranks * experts * THREADS;
    for (int64_t i = (fits ? in_round : 0) + at; i < rows; i += step)
        origin[i] = -1;
    for (int64_t i = (fits ? total : 0) + at; i < rows; i += step)
        place[i] = -1;
}

int cuda_place_round(void *stream, const struct round_args *a, struct fault_words fault)
{
    return LAUNCH(place_round, (unsigned)(a->ranks * a->experts), THREADS, 0, stream, a->place, a->origin,
                  a->rank_counts, a->split, a->ranks, a->experts, a->rounds, a->round, a->rows, fault);
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

/* One block moves the row of a choice. Without weights the bits are copied. */
template <class T>
__global__ static void __launch_bounds__(THREADS)
    scatter_rows(T *dst, const T *src, const int32_t *place, const float *weights, int64_t top_k, int64_t c)
{
    const int64_t choice = blockIdx.x, to = place[choice];
    if (to < 0)
        return;
    const float weight = weights ? weights[choice] : 1.0f;
    const T *from = src + choice / top_k * c;
    for (int64_t i = threadIdx.x; i < c; i += THREADS) {
        if (weights)
            num_store(dst + to * c + i, num_load(from + i) * weight);
        else
            dst[to * c + i] = from[i];
    }
}

int cuda_scatter_rows(void *stream, const struct placed_args *a)
{
    if (a->n == 0)
        return 0;
    const unsigned blocks = (unsigned)(a->n * a->top_k);
    return TYPED(a->dt, LAUNCH(scatter_rows<T>, blocks, THREADS, 0, stream, (T *)a->dst, (const T *)a->src, a->place,
                               a->weights, a->top_k, a->c));
}

/* One block computes a token's row. */
template <class T>
__global__ static void __launch_bounds__(THREADS)
    combine_rows(T *out, const T *src, const int32_t *place, const float *weights, int64_t top_k, int64_t c, bool keep)
{
    const int64_t token = blockIdx.x;
    bool gets = !keep;
    for (int64_t choice = token * top_k; choice < (token + 1) * top_k; choice++)
        gets |= place[choice] >= 0;
    if (!gets)
        return;
    for (int64_t i = threadIdx.x; i < c; i += THREADS) {
        float sum = 0.0f;
        for (int64_t choice = token * top_k; choice < (token + 1) * top_k; choice++) {
            const int64_t from = place[choice];
            if (from >= 0)
                sum += num_load(src + from * c + i) * (weights ? weights[choice] : 1.0f);
        }
        num_store(out + token * c + i, sum);
    }
}

int cuda_combine_rows(void *stream, const struct placed_args *a)
{
    if (a->n == 0)
        return 0;
    return TYPED(a->dt, LAUNCH(combine_rows<T>, (unsigned)a->n, THREADS, 0, stream, (T *)a->dst, (const T *)a->src,
                               a->place, a->weights, a->top_k, a->c, a->keep));
}

/* One warp computes a choice's product. */
template <class T>
__global__ static void __launch_bounds__(THREADS)
    combine_dweights(float *dweights, const T *dout, const T *src, const int32_t *place, int64_t choices, int64_t top_k,
                     int64_t c)
{
    const int64_t choice = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP;
    const int lane = (int)threadIdx.x % WARP;
    if (choice >= choices)
        return; /* a whole warp returns together */
    const int64_t from = place[choice];
    float sum = 0.0f;
    for (int64_t i = lane; from >= 0 && i < c; i += WARP)
        sum += num_load(dout + choice / top_k * c + i) * num_load(src + from * c + i);
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(FULL_WARP, sum, offset);
    if (lane == 0)
        dweights[choice] = sum;
}

int cuda_combine_dweights(void *stream, const struct placed_args *a)
{
    if (a->n == 0)
        return 0;
    const int64_t choices = a->n * a->top_k;
    const unsigned blocks = (unsigned)((choices + THREADS / WARP - 1) / (THREADS / WARP));
    return TYPED(a->dt, LAUNCH(combine_dweights<T>, blocks, THREADS, 0, stream, a->dweights, (const T *)a->dout,
                               (const T *)a->src, a->place, choices, a->top_k, a->c));
}
