/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_attention.c - a plan of cuDNN for each shape of attention, and its calls. */
#include "worker/device/cuda/cudnn_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "worker/device/cuda/cudnn_graph.h"

#define TENSORS_MAX 16

#if CUDNN_HEADERS
/* cuDNN's plan of one shape; plan NULL: cuDNN has no engine for the shape. */
struct shape_plan {
    struct cudnn_problem problem;
    enum cudnn_pass pass;
    struct cudnn_graph *graph;
    cudnnBackendDescriptor_t heuristics, engine, plan;
    size_t engine_bytes; /* workspace */
    struct shape_plan *next;
};

struct cudnn_attention {
    pthread_mutex_t lock;
    struct log log;
    struct cudnn_library library;
    cudnnHandle_t handle; /* NULL: not opened yet, or opening failed */
    bool tried;
    int major;       /* first number of the device's compute capability */
    int64_t scratch; /* most bytes of scratch for a part: ATTENTION_PART_BYTES, or TITAN_CUDNN_SCRATCH */
    struct shape_plan *plans;
};

/* --- library and plans -------------------------------------------------------------------------------------------- */

titan_status cudnn_attention_open(int major, struct cudnn_attention **ret, struct titan_error *err)
{
    struct cudnn_attention *const c = calloc(1, sizeof *c);

    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "no memory for cuDNN's plans");
    (void)pthread_mutex_init(&c->lock, NULL);
    log_init(&c->log, "cuda", "%s", "");
    c->major = major;
    const char *const scratch = getenv("TITAN_CUDNN_SCRATCH");
    c->scratch = scratch ? strtoll(scratch, NULL, 10) : 0;
    if (c->scratch <= 0)
        c->scratch = ATTENTION_PART_BYTES;
    *ret = c;
    return TITAN_OK;
}

void cudnn_attention_close(struct cudnn_attention *c)
{
    if (!c)
        return;
    for (struct shape_plan *p = c->plans, *next; p; p = next) {
        next = p->next;
        if (p->plan)
            (void)c->library.descriptor_destroy(p->plan);
        if (p->engine)
            (void)c->library.descriptor_destroy(p->engine);
        if (p->heuristics)
            (void)c->library.descriptor_destroy(p->heuristics);
        cudnn_graph_close(p->graph);
        free(p);
    }
    if (c->handle)
        (void)c->library.destroy(c->handle); /* the library stays loaded: CUDA may still know its kernels */
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Opens the library and a handle of the current device, at the first call only. */
static bool ready(struct cudnn_attention *c)
{
    struct titan_error err = {0};
    const char *const path = getenv("TITAN_CUDNN");

    if (c->tried)
        return c->handle;
    c->tried = true;
    titan_status status = cudnn_library_open(&c->library, path && path[0] ? path : NULL, &err);
    if (status == TITAN_OK) {
        const cudnnStatus_t st = c->library.create(&c->handle);
        if (st != CUDNN_STATUS_SUCCESS) {
            c->handle = NULL;
            status = titan_fail(&err, TITAN_EUNSUPPORTED, "cuDNN does not start: %s", c->library.error_string(st));
        }
    }
    if (status != TITAN_OK)
        tlog_warn(&c->log, "attention runs on our own kernels, which are slower", "reason=\"%s\"", err.msg);
    return c->handle;
}

/* Takes the first of cuDNN's suggestions that can be made into a plan. */
static cudnnStatus_t plan_search(struct cudnn_attention *c, struct shape_plan *p)
{
    enum { SUGGESTIONS = 8 };
    const struct cudnn_library *const l = &c->library;
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnnBackendDescriptor_t engines[SUGGESTIONS] = {0};
    int64_t n = 0, bytes = 0;

    titan_assert(c->handle && p->graph && !p->plan);
    cudnnStatus_t st = l->descriptor_create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &p->heuristics);
    if (st == CUDNN_STATUS_SUCCESS)
        st = l->set(p->heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                    &p->graph->graph);
    if (st == CUDNN_STATUS_SUCCESS)
        st = l->set(p->heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (st == CUDNN_STATUS_SUCCESS)
        st = l->finalize(p->heuristics);
    for (int i = 0; i < SUGGESTIONS && st == CUDNN_STATUS_SUCCESS; i++)
        st = l->descriptor_create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &engines[i]);
    if (st == CUDNN_STATUS_SUCCESS)
        st = l->get(p->heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, SUGGESTIONS, &n,
                    engines);
    if (st == CUDNN_STATUS_SUCCESS && n == 0)
        st = CUDNN_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < (int)MIN(n, (int64_t)SUGGESTIONS) && !p->plan; i++) {
        cudnnBackendDescriptor_t plan = NULL;
        st = l->descriptor_create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan);
        if (st == CUDNN_STATUS_SUCCESS)
            st = l->set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &c->handle);
        if (st == CUDNN_STATUS_SUCCESS)
            st = l->set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engines[i]);
        if (st == CUDNN_STATUS_SUCCESS)
            st = l->finalize(plan);
        if (st == CUDNN_STATUS_SUCCESS)
            st = l->get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, NULL, &bytes);
        if (st == CUDNN_STATUS_SUCCESS) {
            p->plan = plan;
            p->engine = engines[i]; /* the engine lives as long as its plan */
            engines[i] = NULL;
        } else if (plan) {
            (void)l->descriptor_destroy(plan);
        }
    }
    for (int i = 0; i < SUGGESTIONS; i++)
        if (engines[i])
            (void)l->descriptor_destroy(engines[i]);
    p->engine_bytes = (size_t)MAX(bytes, (int64_t)0);
    return st;
}

static void report_without_plan(struct cudnn_attention *c, const struct shape_plan *p, const char *why)
{
    static const char *const passes[] = {
        [CUDNN_FORWARD] = "forward", [CUDNN_BACKWARD_ANY] = "backward", [CUDNN_BACKWARD_REPEATABLE] = "backward"};
    const struct cudnn_problem *const z = &p->problem;
    tlog_warn(&c->log, "cuDNN does not serve this attention; our own kernels do, which are slower",
              "pass=%s sequences=%ld tokens=%ld heads=%ld kv_heads=%ld width=%ld value_width=%ld reason=\"%s\"",
              passes[p->pass], (long)z->b, (long)z->t, (long)z->h, (long)z->kv, (long)z->d, (long)z->dv, why);
}

/* Bytes of scores' gradients for the query heads that share a key head, in one sequence. */
static int64_t group_bytes(const struct cudnn_problem *p)
{
    const int64_t t = (p->t + 63) / 64 * 64;
    return p->h / p->kv * t * t * 2;
}

/* Returns the shape's plan, made at its first use; NULL: there is no plan. Call it with the lock held. */
static struct shape_plan *plan_of(struct cudnn_attention *c, const struct cudnn_problem *problem, enum cudnn_pass pass)
{
    struct titan_error err = {0};

    if (!ready(c))
        return NULL;
    for (struct shape_plan *p = c->plans; p; p = p->next)
        if (p->pass == pass && memcmp(&p->problem, problem, sizeof *problem) == 0)
            return p->plan ? p : NULL;
    struct shape_plan *const p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->problem = *problem;
    p->pass = pass;
    p->next = c->plans;
    c->plans = p;
    /* on other GPUs cuDNN's gradients may not repeat, so gradients that must repeat are not requested from cuDNN */
    if (pass == CUDNN_BACKWARD_REPEATABLE && c->major != 8 && c->major != 9) {
        report_without_plan(c, p, "its gradients are not known to repeat on this GPU");
        return NULL;
    }
    if (pass == CUDNN_BACKWARD_REPEATABLE && group_bytes(problem) > ATTENTION_GROUP_PARTS * c->scratch) {
        report_without_plan(c, p, "the sequence is too long for its scratch");
        return NULL;
    }
    if (cudnn_graph_open(&c->library, c->handle, problem, pass, &p->graph, &err) != TITAN_OK) {
        report_without_plan(c, p, err.msg);
        return NULL;
    }
    const cudnnStatus_t st = plan_search(c, p);
    if (!p->plan)
        report_without_plan(c, p, c->library.error_string(st));
    return p->plan ? p : NULL;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static bool serves(const struct attention_shape *z)
{
    return z->order != ATTENTION_FIXED && z->dt == DTYPE_BF16 && !z->index && z->b > 0 && z->tq > 0 && z->tq == z->tk &&
           z->d % 8 == 0 && z->dv % 8 == 0;
}

/* Do all rows begin at a multiple of 16 bytes? Kernels for tensor cores load 16 bytes at once. */
static bool aligned(const void *p, int64_t ld)
{
    return ((uintptr_t)p & 15) == 0 && ld % 8 == 0;
}

static size_t rounded(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

static enum cudnn_pass pass_of(const struct attention_shape *z, bool backward)
{
    return !backward ? CUDNN_FORWARD : z->order == ATTENTION_ANY ? CUDNN_BACKWARD_ANY : CUDNN_BACKWARD_REPEATABLE;
}

static int64_t largest_divisor(int64_t n, int64_t most)
{
    int64_t d = MAX(MIN(n, most), 1);
    while (n % d != 0)
        d--;
    return d;
}

/* The part that one execution computes: the whole problem, or one of equal parts with limited scratch. A part is some
 * sequences, or some heads of one sequence. */
static struct cudnn_problem part_of(const struct cudnn_attention *c, const struct cudnn_problem *whole,
                                    enum cudnn_pass pass)
{
    const int64_t groups = c->scratch / group_bytes(whole), group = whole->h / whole->kv;
    struct cudnn_problem part = *whole;

    if (pass != CUDNN_BACKWARD_REPEATABLE)
        return part;
    part.kv = largest_divisor(whole->kv, groups);
    part.h = part.kv * group;
    part.b = part.kv < whole->kv ? 1 : largest_divisor(whole->b, groups / whole->kv);
    return part;
}

/* Scratch of the gradients: first delta, then the sums of dQ if the pass has them, then the engine's workspace. */
static size_t delta_bytes(const struct cudnn_problem *p)
{
    return rounded((size_t)(p->b * p->h * p->t) * sizeof(float));
}
static size_t sum_bytes(const struct cudnn_problem *p, enum cudnn_pass pass)
{
    return pass != CUDNN_BACKWARD_ANY ? 0 : rounded((size_t)(p->b * p->h * p->t * p->d) * sizeof(float));
}

struct pointers {
    int64_t ids[TENSORS_MAX];
    void *at[TENSORS_MAX];
    int64_t n;
};

static void point(struct pointers *to, enum cudnn_tensor id, const void *at)
{
    titan_assert(to->n < TENSORS_MAX && at);
    to->ids[to->n] = id;
    to->at[to->n++] = (void *)at;
}

static cudnnStatus_t execute(struct cudnn_attention *c, const struct shape_plan *p, const struct pointers *tensors,
                             void *workspace, cudaStream_t stream)
{
    const struct cudnn_library *const l = &c->library;
    cudnnBackendDescriptor_t pack = NULL;

    titan_assert(p->plan && tensors->n > 0);
    cudnnStatus_t st = l->set_stream(c->handle, stream);
    if (st == CUDNN_STATUS_SUCCESS)
        st = l->descriptor_create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (st == CUDNN_STATUS_SUCCESS)
        st = l->set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, tensors->n, tensors->ids);
    if (st == CUDNN_STATUS_SUCCESS)
        st = l->set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, tensors->n, tensors->at);
    if (st == CUDNN_STATUS_SUCCESS)
        st = l->set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (st == CUDNN_STATUS_SUCCESS)
        st = l->finalize(pack);
    if (st == CUDNN_STATUS_SUCCESS)
        st = l->execute(c->handle, p->plan, pack);
    if (pack)
        (void)l->descriptor_destroy(pack);
    return st;
}

/* Runs one execution. */
static bool run(struct cudnn_attention *c, struct stream *s, struct shape_plan *p, const struct attention_args *x)
{
    static const float one = 1.0f, masked = -INFINITY;
    const float scale = attention_scale(&x->shape);
    char *const work = x->work;
    struct pointers t = {.n = 0};
    void *workspace = s->work;

    titan_assert(p->plan && (work || p->pass == CUDNN_FORWARD));
    point(&t, CUDNN_Q, x->q);
    point(&t, CUDNN_K, x->k);
    point(&t, CUDNN_V, x->v);
    point(&t, CUDNN_OUT, x->out);
    point(&t, CUDNN_LSE, x->lse);
    point(&t, CUDNN_SCALE, &scale);
    point(&t, CUDNN_MASKED, &masked);
    if (p->pass != CUDNN_FORWARD) {
        char *const sums = work + delta_bytes(&p->problem);
        point(&t, CUDNN_DOUT, x->dout);
        point(&t, CUDNN_DQ, x->dq);
        point(&t, CUDNN_DK, x->dk);
        point(&t, CUDNN_DV, x->dv);
        point(&t, CUDNN_ONE, &one);
        point(&t, CUDNN_DELTA, work);
        if (p->pass == CUDNN_BACKWARD_ANY)
            point(&t, CUDNN_DQ_SUM, sums);
        workspace = sums + sum_bytes(&p->problem, p->pass);
    }
    const cudnnStatus_t st = execute(c, p, &t, workspace, s->native);
    if (st == CUDNN_STATUS_SUCCESS)
        return true;
    report_without_plan(c, p, c->library.error_string(st)); /* from now on our own kernels compute this shape */
    (void)c->library.descriptor_destroy(p->plan);
    p->plan = NULL;
    return false;
}

/* Runs all parts one after the other, with the same scratch. */
static bool run_parts(struct cudnn_attention *c, struct stream *s, struct shape_plan *p,
                      const struct cudnn_problem *whole, const struct attention_args *x)
{
    const struct cudnn_problem part = p->problem;
    bool done = true;

    titan_assert(whole->b % part.b == 0 && whole->kv % part.kv == 0);
    if (p->pass == CUDNN_FORWARD)
        return run(c, s, p, x);
    for (int64_t b = 0; b < whole->b && done; b += part.b)
        for (int64_t head = 0; head < whole->kv && done; head += part.kv) {
            /* the tensors from this sequence and this key head on */
            const int64_t row = b * whole->t, query = head * (whole->h / whole->kv);
            struct attention_args from = *x;
            from.q = (const uint16_t *)x->q + row * x->ldq + query * whole->d;
            from.k = (const uint16_t *)x->k + row * x->ldk + head * whole->d;
            from.v = (const uint16_t *)x->v + row * x->ldv + head * whole->dv;
            from.out = (uint16_t *)x->out + row * x->ldo + query * whole->dv;
            from.lse = x->lse + row * whole->h + query * whole->t;
            from.dq = (uint16_t *)x->dq + row * x->lddq + query * whole->d;
            from.dk = (uint16_t *)x->dk + row * x->lddk + head * whole->d;
            from.dv = (uint16_t *)x->dv + row * x->lddv + head * whole->dv;
            from.dout = (const uint16_t *)x->dout + row * x->lddo + query * whole->dv;
            done = run(c, s, p, &from);
        }
    return done;
}

static struct cudnn_problem problem_of(const struct attention_args *x)
{
    const struct attention_shape *const z = &x->shape;
    return (struct cudnn_problem){.b = z->b,
                                  .t = z->tq,
                                  .h = z->h,
                                  .kv = z->kv,
                                  .d = z->d,
                                  .dv = z->dv,
                                  .ldq = x->ldq,
                                  .ldk = x->ldk,
                                  .ldv = x->ldv,
                                  .ldo = x->ldo,
                                  .lddq = x->lddq,
                                  .lddk = x->lddk,
                                  .lddv = x->lddv,
                                  .lddo = x->lddo};
}

static struct attention_args dense_rows(const struct attention_shape *z)
{
    const int64_t q = z->h * z->d, k = z->kv * z->d, v = z->kv * z->dv, o = z->h * z->dv;
    return (struct attention_args){
        .ldq = q, .ldk = k, .ldv = v, .ldo = o, .lddq = q, .lddk = k, .lddv = v, .lddo = o, .shape = *z};
}

/* Bytes that an engine of the gradients needs for dense rows. 0: there is no engine. Call it with the lock held. */
static size_t engine_room(struct cudnn_attention *c, const struct attention_shape *z)
{
    const struct attention_args dense = dense_rows(z);
    const struct cudnn_problem problem = problem_of(&dense), part = part_of(c, &problem, pass_of(z, true));
    const struct shape_plan *const p = plan_of(c, &part, pass_of(z, true));
    return p ? rounded(p->engine_bytes) + 256 : 0;
}

bool cudnn_attention(struct stream *s, const struct attention_args *x, bool backward)
{
    const struct attention_shape *const shape = &x->shape;
    struct cudnn_attention *const c = s->dev->attention;
    const struct cudnn_problem problem = problem_of(x);
    const enum cudnn_pass pass = pass_of(shape, backward);
    const bool fits =
        aligned(x->q, x->ldq) && aligned(x->k, x->ldk) && aligned(x->v, x->ldv) && aligned(x->out, x->ldo);
    bool done = false;

    if (!serves(shape) || !fits ||
        (backward &&
         !(aligned(x->dq, x->lddq) && aligned(x->dk, x->lddk) && aligned(x->dv, x->lddv) && aligned(x->dout, x->lddo))))
        return false;
    const struct cudnn_problem part = part_of(c, &problem, pass);
    const bool whole = part.b == problem.b && part.h == problem.h;
    /* a part's log-sum-exps must begin at a multiple of 16 bytes, too */
    if (!whole && part.b * part.h * part.t % 4 != 0)
        return false;
    (void)pthread_mutex_lock(&c->lock);
    struct shape_plan *const p = plan_of(c, &part, pass);
    const size_t room = backward ? engine_room(c, shape) : s->work ? CUDA_MATMUL_WORK_BYTES : 0;
    if (p && room > 0 && p->engine_bytes <= room) /* a->work has the size that engine_room() returned */
        done = run_parts(c, s, p, &problem, x);
    (void)pthread_mutex_unlock(&c->lock);
    return done;
}

size_t cudnn_attention_work_bytes(struct device *dev, const struct attention_shape *shape)
{
    struct cudnn_attention *const c = dev->attention;
    const struct attention_args dense = dense_rows(shape);
    const struct cudnn_problem problem = problem_of(&dense);

    if (!serves(shape) || cuda_enter(dev, NULL) != TITAN_OK)
        return 0;
    const enum cudnn_pass pass = pass_of(shape, true);
    const struct cudnn_problem part = part_of(c, &problem, pass);
    (void)pthread_mutex_lock(&c->lock);
    const size_t room = engine_room(c, shape);
    (void)pthread_mutex_unlock(&c->lock);
    return room ? delta_bytes(&part) + sum_bytes(&part, pass) + room : 0;
}

#else

titan_status cudnn_attention_open(int major, struct cudnn_attention **ret, struct titan_error *err)
{
    (void)major, (void)err;
    *ret = NULL;
    return TITAN_OK;
}

void cudnn_attention_close(struct cudnn_attention *c)
{
    (void)c;
}

static void report_without_headers(void)
{
    struct log log;
    log_init(&log, "cuda", "%s", "");
    tlog_warn(&log, "attention runs on our own kernels, which are slower",
              "reason=\"the plug-in was built without cuDNN's headers\"");
}

bool cudnn_attention(struct stream *s, const struct attention_args *x, bool backward)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)s, (void)backward;
    if (x->shape.order != ATTENTION_FIXED)
        (void)pthread_once(&once, report_without_headers);
    return false;
}

size_t cudnn_attention_work_bytes(struct device *dev, const struct attention_shape *shape)
{
    (void)dev, (void)shape;
    return 0;
}
#endif
