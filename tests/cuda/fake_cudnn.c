/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cudnn.c - cuDNN's backend API for the emulated plug-in: a graph's operations one after the other in fp32, at
 * their place in the stream, with results rounded to the types that the graph gives its tensors. One engine, which
 * fills its workspace, as large as all scores in bf16, with NaN and sums dQ upwards from what the graph says.
 * TITAN_FAKE_CUDNN: "old" an old version, "none" no engine, "fail" executions fail; "count" says at exit how many there
 * were. */
#include <cudnn.h>
#include <dlfcn.h>
#include <link.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"

#define OPERATIONS_MAX 64
#define TENSORS_MAX 128

struct attribute {
    int name;
    int64_t count;
    void *values;
    struct attribute *next;
};
struct descriptor {
    int type;
    bool final;
    struct attribute *attributes;
};

static int executed;

static bool asked_for(const char *what)
{
    const char *const mode = getenv("TITAN_FAKE_CUDNN");
    return mode && strcmp(mode, what) == 0;
}

/* --- descriptors -------------------------------------------------------------------------------------------------- */

static size_t element_bytes(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    default:
        return 4;
    }
}

static const struct attribute *find(const struct descriptor *d, int name)
{
    for (const struct attribute *a = d->attributes; a; a = a->next)
        if (a->name == name)
            return a;
    return NULL;
}

static void *pointer_of(const struct descriptor *d, int name)
{
    const struct attribute *const a = find(d, name);
    return a ? *(void **)a->values : NULL;
}

static int int_of(const struct descriptor *d, int name)
{
    const struct attribute *const a = find(d, name);
    return a ? *(const int *)a->values : -1;
}

size_t cudnnGetVersion(void)
{
    return asked_for("old") ? 90501 : 91900;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_EXECUTION_FAILED";
}

static void say_executed(void)
{
    (void)fprintf(stderr, "cuDNN executed %d graphs\n", executed);
}

struct cudnnContext {
    cudaStream_t stream;
};

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    *handle = calloc(1, sizeof **handle);
    if (asked_for("count"))
        (void)atexit(say_executed);
    return *handle ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *ret)
{
    struct descriptor *const d = calloc(1, sizeof *d);
    if (!d)
        return CUDNN_STATUS_ALLOC_FAILED;
    d->type = (int)type;
    *ret = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    struct descriptor *const d = descriptor;
    for (struct attribute *a = d->attributes, *next; a; a = next) {
        next = a->next;
        free(a->values);
        free(a);
    }
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    struct descriptor *const d = descriptor;
    struct attribute *const a = calloc(1, sizeof *a);
    const size_t bytes = element_bytes(type) * (size_t)count;
    if (!a || d->final || find(d, (int)name) || count <= 0)
        abort();
    a->name = (int)name;
    a->count = count;
    a->values = malloc(bytes < 8 ? 8 : bytes);
    if (!a->values)
        abort();
    memcpy(a->values, values, bytes);
    a->next = d->attributes;
    d->attributes = a;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    ((struct descriptor *)descriptor)->final = true;
    return CUDNN_STATUS_SUCCESS;
}

static const struct descriptor *graph_of(const struct descriptor *plan)
{
    return pointer_of(pointer_of(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG), CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
}

/* Of the first product, which is the scores. */
static int64_t workspace_bytes(const struct descriptor *graph)
{
    const struct attribute *const ops = find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    for (int64_t i = 0; i < ops->count; i++) {
        const struct descriptor *const op = ((struct descriptor **)ops->values)[i];
        if (op->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
            const int64_t *const n =
                find(pointer_of(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC), CUDNN_ATTR_TENSOR_DIMENSIONS)->values;
            return n[0] * n[1] * n[2] * n[3] * 2;
        }
    }
    abort();
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *ret_count, void *values)
{
    const struct descriptor *const d = descriptor;
    (void)type;
    if (!d->final || room < 1)
        abort();
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        *(int64_t *)values = workspace_bytes(graph_of(d));
        return CUDNN_STATUS_SUCCESS;
    }
    if (name != CUDNN_ATTR_ENGINEHEUR_RESULTS)
        abort();
    *ret_count = asked_for("none") ? 0 : 1;
    if (*ret_count == 0)
        return CUDNN_STATUS_SUCCESS;
    void *const graph = pointer_of(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    return cudnnBackendSetAttribute(*(cudnnBackendDescriptor_t *)values, CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
}

/* --- operations --------------------------------------------------------------------------------------------------- */

/* A tensor of a graph; what lies between operations is fp32 in memory of its own, laid out by its strides. */
struct view {
    const struct descriptor *of;
    int type;
    const int64_t *dims, *strides;
    void *real;   /* memory of the caller's, or of the tensor that this one is another view of */
    float *own;   /* otherwise */
    float scalar; /* of one that is given by value */
    bool by_value;
};

struct job {
    const struct descriptor *graph;
    int64_t n, ids[TENSORS_MAX];
    void *at[TENSORS_MAX], *workspace;
    float scalars[TENSORS_MAX];
    struct view views[TENSORS_MAX];
    int n_views;
};

static size_t span(const struct view *v)
{
    size_t last = 0;
    for (int k = 0; k < 4; k++)
        last += (size_t)((v->dims[k] - 1) * v->strides[k]);
    return last + 1;
}

static struct view *view_of(struct job *j, const struct descriptor *d)
{
    for (int i = 0; i < j->n_views; i++)
        if (j->views[i].of == d)
            return &j->views[i];
    if (!d || j->n_views == TENSORS_MAX)
        abort();
    struct view *const v = &j->views[j->n_views++];
    const int64_t id = *(const int64_t *)find(d, CUDNN_ATTR_TENSOR_UNIQUE_ID)->values;
    *v = (struct view){.of = d,
                       .type = int_of(d, CUDNN_ATTR_TENSOR_DATA_TYPE),
                       .dims = find(d, CUDNN_ATTR_TENSOR_DIMENSIONS)->values,
                       .strides = find(d, CUDNN_ATTR_TENSOR_STRIDES)->values,
                       .by_value = *(const bool *)find(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE)->values};
    const bool virtual = *(const bool *)find(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL)->values;
    for (int64_t i = 0; i < j->n && !virtual; i++)
        if (j->ids[i] == id) {
            v->real = j->at[i];
            v->scalar = j->scalars[i];
        }
    if (!virtual && !v->real)
        abort(); /* the caller gave no memory for it */
    if (virtual && !(v->own = calloc(span(v), sizeof *v->own)))
        abort();
    return v;
}

static size_t place(const struct view *v, const int64_t i[4])
{
    size_t at = 0;
    for (int k = 0; k < 4; k++)
        at += (size_t)((v->dims[k] == 1 ? 0 : i[k]) * v->strides[k]);
    return at;
}

static float load(const struct view *v, const int64_t i[4])
{
    const size_t at = place(v, i);
    if (v->by_value)
        return v->scalar;
    if (v->own)
        return v->own[at];
    return v->type == CUDNN_DATA_BFLOAT16 ? bf16_to_f32(((uint16_t *)v->real)[at]) : ((float *)v->real)[at];
}

static void store(const struct view *v, const int64_t i[4], float x)
{
    const size_t at = place(v, i);
    if (v->own)
        v->own[at] = v->type == CUDNN_DATA_BFLOAT16 ? bf16_to_f32(bf16_from_f32(x)) : x;
    else if (v->type == CUDNN_DATA_BFLOAT16)
        ((uint16_t *)v->real)[at] = bf16_from_f32(x);
    else
        ((float *)v->real)[at] = x;
}

/* The next index within dims; false at the end. */
static bool next(int64_t i[4], const int64_t dims[4])
{
    for (int k = 3; k >= 0; k--) {
        if (++i[k] < dims[k])
            return true;
        i[k] = 0;
    }
    return false;
}

static void matmul(struct job *j, const struct descriptor *op)
{
    const struct view *const a = view_of(j, pointer_of(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC));
    const struct view *const b = view_of(j, pointer_of(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC));
    const struct view *const c = view_of(j, pointer_of(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
    const int64_t group = c->dims[1] / b->dims[1];
    int64_t i[4] = {0};
    if (a->dims[3] != b->dims[2] || a->dims[2] != c->dims[2] || b->dims[3] != c->dims[3] || a->dims[1] != c->dims[1] ||
        c->dims[1] % b->dims[1] != 0)
        abort();
    do {
        float sum = 0;
        for (int64_t k = 0; k < a->dims[3]; k++) {
            const int64_t from_a[4] = {i[0], i[1], i[2], k}, from_b[4] = {i[0], i[1] / group, k, i[3]};
            sum += load(a, from_a) * load(b, from_b);
        }
        store(c, i, sum);
    } while (next(i, c->dims));
}

static float value(int mode, float x, float b, float where, const int64_t i[4], int64_t axis)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return expf(x);
    case CUDNN_POINTWISE_LOG:
        return logf(x);
    case CUDNN_POINTWISE_IDENTITY:
        return x;
    case CUDNN_POINTWISE_GEN_INDEX:
        return (float)i[axis];
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return where != 0 ? x : b;
    default:
        abort();
    }
}

static void pointwise(struct job *j, const struct descriptor *op)
{
    const struct descriptor *const how = pointer_of(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const struct attribute *const axis = find(how, CUDNN_ATTR_POINTWISE_AXIS);
    const struct descriptor *const second = pointer_of(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const struct descriptor *const third = pointer_of(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    const struct view *const x = view_of(j, pointer_of(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
    const struct view *const b = second ? view_of(j, second) : NULL, *const t = third ? view_of(j, third) : NULL;
    const struct view *const y = view_of(j, pointer_of(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    int64_t i[4] = {0};
    do {
        const float taken = value(int_of(how, CUDNN_ATTR_POINTWISE_MODE), load(x, i), b ? load(b, i) : 0,
                                  t ? load(t, i) : 0, i, axis ? *(const int64_t *)axis->values : 0);
        store(y, i, taken);
    } while (next(i, y->dims));
}

static void reduction(struct job *j, const struct descriptor *op)
{
    const struct descriptor *const how = pointer_of(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    const bool max = int_of(how, CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
    const struct view *const x = view_of(j, pointer_of(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
    const struct view *const y = view_of(j, pointer_of(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
    int64_t i[4] = {0};
    do {
        float sum = max ? -INFINITY : 0;
        int64_t k[4] = {0}, each[4];
        for (int n = 0; n < 4; n++)
            each[n] = x->dims[n] / y->dims[n];
        do {
            int64_t from[4];
            for (int n = 0; n < 4; n++)
                from[n] = i[n] * each[n] + k[n];
            const float taken = load(x, from);
            sum = !max ? sum + taken : taken > sum ? taken : sum;
        } while (next(k, each));
        store(y, i, sum);
    } while (next(i, y->dims));
}

/* The same memory seen with other sizes and strides. */
static void reshape(struct job *j, const struct descriptor *op)
{
    const struct view *const x = view_of(j, pointer_of(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
    struct view *const y = view_of(j, pointer_of(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
    const size_t n = span(x);
    if (span(y) != n)
        abort();
    if (x->own) {
        for (size_t i = 0; i < n; i++)
            y->own[i] = y->type == CUDNN_DATA_BFLOAT16 ? bf16_to_f32(bf16_from_f32(x->own[i])) : x->own[i];
        return;
    }
    free(y->own);
    y->own = NULL;
    y->real = x->real;
}

static void run(void *arg)
{
    struct job *const j = arg;
    const struct attribute *const ops = find(j->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    memset(j->workspace, 0xff, (size_t)workspace_bytes(j->graph));
    for (int64_t i = 0; i < ops->count; i++) {
        const struct descriptor *const op = ((struct descriptor **)ops->values)[i];
        if (op->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            matmul(j, op);
        else if (op->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
            pointwise(j, op);
        else if (op->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
            reduction(j, op);
        else if (op->type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
            reshape(j, op);
        else
            abort();
    }
    for (int i = 0; i < j->n_views; i++)
        free(j->views[i].own);
    free(j);
}

/* --- the plug-in's runtime ---------------------------------------------------------------------------------------- */

static int find_plugin(struct dl_phdr_info *info, size_t size, void *arg)
{
    const char *const name = strrchr(info->dlpi_name, '/');
    (void)size;
    if (!name || strcmp(name, "/libtitan-cuda.so") != 0)
        return 0;
    *(void **)arg = dlopen(info->dlpi_name, RTLD_NOW | RTLD_NOLOAD);
    return 1;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    cudaError_t (*enqueue)(cudaStream_t, cudaHostFn_t, void *) = NULL;
    void *plugin = NULL;
    const struct attribute *const ids = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const struct attribute *const at = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    if (asked_for("fail"))
        return CUDNN_STATUS_EXECUTION_FAILED;
    (void)dl_iterate_phdr(find_plugin, &plugin);
    *(void **)&enqueue = plugin ? dlsym(plugin, "cudaLaunchHostFunc") : NULL;
    struct job *const j = calloc(1, sizeof *j);
    if (!j || !enqueue || ids->count != at->count || ids->count > TENSORS_MAX)
        abort();
    j->graph = graph_of(plan);
    j->workspace = pointer_of(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    j->n = ids->count;
    memcpy(j->ids, ids->values, (size_t)ids->count * sizeof *j->ids);
    memcpy(j->at, at->values, (size_t)at->count * sizeof *j->at);
    for (int64_t i = 0; i < j->n; i++)
        memcpy(&j->scalars[i], j->at[i], sizeof j->scalars[i]); /* used of those alone that are given by value */
    executed++;
    return enqueue(handle->stream, run, j) == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}
