/* SPDX-License-Identifier: Apache-2.0 */
/* product_ways.c - which of cuBLASLt's algorithms a product takes. Until the algorithms are timed, the product takes
 * the first proposed one. */
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/product_plans.h"

#define WAYS_MAX 16
#define RUNS 3                        /* runs of each algorithm; the shortest one counts */
#define PRODUCT_NS INT64_C(400000000) /* limit for one product; the remaining algorithms are not timed */
/* a better algorithm takes at most this share of the first one's time; smaller gains are noise */
#define WORTH 0.98f

/* A way as stored. An algorithm is only valid for the version of cuBLASLt that proposed it. */
struct way {
    uint64_t version;
    cublasLtMatmulAlgo_t algo;
};
_Static_assert(sizeof(struct way) == PRODUCT_WAY_BYTES, "an algorithm fits, without padding");

static struct product_plans *plans_of(struct device *dev, int which)
{
    return which == 0 ? dev->plans : dev->code_plans;
}

/* Finds the noted product. *ret_plans: the table that has it. NULL: no table has it, or cuBLASLt has no algorithm for
 * it. */
static struct product_plan *find(struct device *dev, uint64_t product, struct product_plans **ret_plans)
{
    for (int which = 0; which < 2; which++) {
        struct product_plans *const plans = *ret_plans = plans_of(dev, which);
        for (int i = 0; plans && i < plans->n; i++)
            if (plans->items[i]->product == product)
                return plans->items[i]->status == CUBLAS_STATUS_SUCCESS ? plans->items[i] : NULL;
    }
    return NULL;
}

static void describe_way(const struct product_plan *p, struct product_way *ret)
{
    const struct way way = {.version = cublasLtGetVersion(), .algo = p->algo};

    *ret = (struct product_way){.product = p->product, .chosen = p->chosen};
    memcpy(ret->how, &way, sizeof way);
}

void cuda_products_note(struct device *dev, bool on)
{
    for (int which = 0; which < 2; which++) {
        struct product_plans *const plans = plans_of(dev, which);
        for (int i = 0; on && plans && i < plans->n; i++)
            plans->items[i]->noted = false;
        if (plans)
            plans->notes = on;
    }
}

int cuda_products_noted(struct device *dev, struct product_way *ret, int most)
{
    int n = 0;

    for (int which = 0; which < 2; which++) {
        const struct product_plans *const plans = plans_of(dev, which);
        for (int i = 0; plans && i < plans->n && n < most; i++)
            if (plans->items[i]->noted && plans->items[i]->status == CUBLAS_STATUS_SUCCESS)
                describe_way(plans->items[i], &ret[n++]);
    }
    return n;
}

/* --- timing ------------------------------------------------------------------------------------------------------- */

struct watch {
    cudaEvent_t begin, end;
};

/* Times p's current way and returns the shortest run. The first run loads the kernel and does not count. INFINITY: the
 * way does not run. Timing ends after a run that takes more than twice `best`. */
static cudaError_t time_way(struct stream *s, struct product_plans *plans, struct product_plan *p,
                            const struct watch *w, float best, float *ret_ms)
{
    float ms = INFINITY;

    *ret_ms = INFINITY;
    for (int i = 0; i <= RUNS; i++) {
        cudaError_t e = cudaEventRecord(w->begin, s->native);
        if (e != cudaSuccess || product_run(s, plans, p, &p->call) != CUBLAS_STATUS_SUCCESS)
            return e;
        e = cudaEventRecord(w->end, s->native);
        if (e == cudaSuccess)
            e = cudaStreamSynchronize(s->native);
        if (e == cudaSuccess)
            e = cudaEventElapsedTime(&ms, w->begin, w->end);
        if (e != cudaSuccess)
            return e;
        if (i > 0)
            *ret_ms = fminf(*ret_ms, ms);
        if (i > 0 && ms > 2 * best)
            break;
    }
    return cudaSuccess;
}

static cudaError_t time_ways(struct stream *s, struct product_plans *plans, struct product_plan *p,
                             const struct watch *w, const cublasLtMatmulHeuristicResult_t *ways, int n)
{
    const cublasLtMatmulAlgo_t first = p->algo;
    const int64_t begin = clock_mono_ns();
    cublasLtMatmulAlgo_t best = first;
    float first_ms = INFINITY, best_ms = INFINITY, ms;
    int timed = 0;
    struct log log;

    cudaError_t e = time_way(s, plans, p, w, INFINITY, &first_ms);
    best_ms = first_ms;
    for (int i = 0; i < n && e == cudaSuccess && clock_mono_ns() - begin < PRODUCT_NS; i++) {
        if (ways[i].state != CUBLAS_STATUS_SUCCESS || ways[i].workspaceSize > CUDA_MATMUL_WORK_BYTES ||
            memcmp(&ways[i].algo, &first, sizeof first) == 0)
            continue;
        p->algo = ways[i].algo;
        e = time_way(s, plans, p, w, best_ms, &ms);
        timed++;
        if (e == cudaSuccess && ms < best_ms) {
            best_ms = ms;
            best = ways[i].algo;
        }
    }
    p->algo = best_ms < WORTH * first_ms ? best : first;
    p->chosen = e == cudaSuccess;
    log_init(&log, "cuda", "%s", "");
    tlog_debug(&log, "ways of a product timed", "product=%016lx ways=%d first_us=%.1f best_us=%.1f", p->product,
               timed + 1, (double)first_ms * 1e3, (double)best_ms * 1e3);
    return e;
}

titan_status cuda_product_time(struct stream *s, struct product_way *way, struct titan_error *err)
{
    struct device *const dev = s->dev;
    cublasLtMatmulHeuristicResult_t ways[WAYS_MAX];
    struct product_plans *plans;
    struct watch w = {NULL, NULL};
    int n = 0;

    TRY(cuda_enter(dev, err));
    struct product_plan *const p = find(dev, way->product, &plans);
    if (!p || !p->noted || !s->work)
        return titan_fail(err, TITAN_EINVAL, "product %016lx was not noted", way->product);
    (void)pthread_mutex_lock(&plans->lock);
    if (product_search(p, dev->lt, WAYS_MAX, ways, &n) != CUBLAS_STATUS_SUCCESS)
        n = 0; /* the product keeps the algorithm that was found before */
    cudaError_t e = cudaEventCreateWithFlags(&w.begin, cudaEventDefault);
    if (e == cudaSuccess)
        e = cudaEventCreateWithFlags(&w.end, cudaEventDefault);
    if (e == cudaSuccess)
        e = time_ways(s, plans, p, &w, ways, n);
    (void)pthread_mutex_unlock(&plans->lock);
    if (w.begin)
        (void)cudaEventDestroy(w.begin);
    if (w.end)
        (void)cudaEventDestroy(w.end);
    if (e != cudaSuccess)
        return cuda_fail(err, e, "timing a product");
    describe_way(p, way);
    return TITAN_OK;
}

/* --- choosing ----------------------------------------------------------------------------------------------------- */

titan_status cuda_product_choose(struct device *dev, const struct product_way *way, struct titan_error *err)
{
    struct product_plans *plans;
    struct product_plan *const p = find(dev, way->product, &plans);
    cublasLtMatmulHeuristicResult_t result = {0};
    struct way chosen;

    TRY(cuda_enter(dev, err));
    if (!p)
        return titan_fail(err, TITAN_EINVAL, "product %016lx is not known here", way->product);
    memcpy(&chosen, way->how, sizeof chosen);
    if (chosen.version != cublasLtGetVersion())
        return titan_fail(err, TITAN_EUNSUPPORTED,
                          "product %016lx: the way that was chosen is cuBLASLt %lu's, not %zu's", way->product,
                          chosen.version, cublasLtGetVersion());
    const cublasStatus_t st =
        cublasLtMatmulAlgoCheck(dev->lt, p->op, p->first, p->second, p->out, p->out, &chosen.algo, &result);
    if (st != CUBLAS_STATUS_SUCCESS || result.workspaceSize > CUDA_MATMUL_WORK_BYTES)
        return titan_fail(err, TITAN_EUNSUPPORTED, "product %016lx: this GPU cannot take the way that was chosen: %s",
                          way->product, st == CUBLAS_STATUS_SUCCESS ? "no room" : cublasLtGetStatusString(st));
    p->algo = chosen.algo;
    p->chosen = true;
    return TITAN_OK;
}
