/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_graph.c - attention as cuDNN's operations: products, sums along rows, and element-wise operations. cuDNN finds
 * a fused kernel by the operations' pattern. So the kernel depends on the order of the operations and on the types
 * between them. */
#include "worker/device/cuda/cudnn_graph.h"

#if CUDNN_HEADERS
#include <dlfcn.h>
#include <stdlib.h>

#include "base/cleanup.h"

/* --- the library -------------------------------------------------------------------------------------------------- */

static titan_status find(void *handle, const char *name, void *ret, struct titan_error *err)
{
    titan_assert(handle && ret);
    void *const symbol = dlsym(handle, name);
    if (!symbol)
        return titan_fail(err, TITAN_EUNSUPPORTED, "cuDNN has no %s", name);
    *(void **)ret = symbol;
    return TITAN_OK;
}

titan_status cudnn_library_open(struct cudnn_library *ret, const char *path, struct titan_error *err)
{
    size_t (*get_version)(void) = NULL;
    const struct {
        const char *name;
        void *at;
    } functions[] = {{"cudnnGetErrorString", &ret->error_string},
                     {"cudnnCreate", &ret->create},
                     {"cudnnDestroy", &ret->destroy},
                     {"cudnnSetStream", &ret->set_stream},
                     {"cudnnBackendCreateDescriptor", &ret->descriptor_create},
                     {"cudnnBackendDestroyDescriptor", &ret->descriptor_destroy},
                     {"cudnnBackendFinalize", &ret->finalize},
                     {"cudnnBackendSetAttribute", &ret->set},
                     {"cudnnBackendGetAttribute", &ret->get},
                     {"cudnnBackendExecute", &ret->execute}};

    *ret = (struct cudnn_library){.handle = dlopen(path ? path : "libcudnn.so.9", RTLD_NOW | RTLD_LOCAL)};
    if (!ret->handle)
        return titan_fail(err, TITAN_EUNSUPPORTED, "cuDNN cannot be loaded: %s", dlerror());
    titan_status status = find(ret->handle, "cudnnGetVersion", &get_version, err);
    if (status == TITAN_OK)
        ret->version = get_version();
    if (status == TITAN_OK && ret->version < CUDNN_VERSION_MIN)
        status = titan_fail(err, TITAN_EUNSUPPORTED, "cuDNN %zu.%zu.%zu is too old: %d.%d or later is needed",
                            ret->version / 10000, ret->version / 100 % 100, ret->version % 100,
                            CUDNN_VERSION_MIN / 10000, CUDNN_VERSION_MIN / 100 % 100);
    for (size_t i = 0; i < ARRAY_SIZE(functions) && status == TITAN_OK; i++)
        status = find(ret->handle, functions[i].name, functions[i].at, err);
    if (status != TITAN_OK)
        cudnn_library_close(ret);
    return status;
}

void cudnn_library_close(struct cudnn_library *library)
{
    if (library->handle)
        (void)dlclose(library->handle);
    *library = (struct cudnn_library){0};
}

/* --- descriptors -------------------------------------------------------------------------------------------------- */

/* After a failure, this and the following functions do nothing. */
static cudnnBackendDescriptor_t create(struct cudnn_graph *g, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t made = NULL;

    titan_assert(g->n_all < (int)ARRAY_SIZE(g->all));
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = g->library->descriptor_create(type, &made);
    if (made)
        g->all[g->n_all++] = made;
    return made;
}

static void set(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    titan_assert(count > 0 && values);
    if (g->status != CUDNN_STATUS_SUCCESS)
        return;
    g->status = g->library->set(d, name, type, count, values);
    if (g->status != CUDNN_STATUS_SUCCESS)
        g->attribute = (int)name;
}

static void set_descriptor(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                           cudnnBackendDescriptor_t value)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finalize(struct cudnn_graph *g, cudnnBackendDescriptor_t d)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = g->library->finalize(d);
}

static void finalize_operation(struct cudnn_graph *g, cudnnBackendDescriptor_t operation)
{
    titan_assert(g->n_operations < (int)ARRAY_SIZE(g->operations));
    finalize(g, operation);
    g->operations[g->n_operations++] = operation;
}

/* --- tensors ------------------------------------------------------------------------------------------------------ */

struct sizes {
    int64_t n[4];
};
struct node {
    cudnnBackendDescriptor_t it;
    cudnnDataType_t type;
    struct sizes dims, strides;
};

static struct sizes sizes(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (struct sizes){{a, b, c, d}};
}

static struct sizes packed(struct sizes dims)
{
    const int64_t *const n = dims.n;
    return sizes(n[1] * n[2] * n[3], n[2] * n[3], n[3], 1);
}

static struct node tensor(struct cudnn_graph *g, int64_t id, cudnnDataType_t type, struct sizes dims,
                          struct sizes strides)
{
    const struct node x = {create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR), type, dims, strides};
    const int64_t alignment = 16;
    titan_assert(id > 0);
    const bool between = id >= CUDNN_VIRTUAL, by_value = id >= CUDNN_SCALE && id <= CUDNN_ONE;

    set(g, x.it, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, x.it, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.n);
    set(g, x.it, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.n);
    set(g, x.it, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, x.it, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(g, x.it, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &between);
    set(g, x.it, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize(g, x.it);
    return x;
}

/* A node (B, heads, T, width): `heads` heads, each `width` wide, in rows ld apart. */
static struct node rows(struct cudnn_graph *g, const struct cudnn_problem *p, int64_t id, int64_t heads, int64_t width,
                        int64_t ld)
{
    return tensor(g, id, CUDNN_DATA_BFLOAT16, sizes(p->b, heads, p->t, width), sizes(p->t * ld, width, ld, 1));
}

/* The same node as (B, heads, width, T). */
static struct node columns(struct cudnn_graph *g, const struct cudnn_problem *p, int64_t id, int64_t heads,
                           int64_t width, int64_t ld)
{
    return tensor(g, id, CUDNN_DATA_BFLOAT16, sizes(p->b, heads, width, p->t), sizes(p->t * ld, width, 1, ld));
}

static struct node scalar(struct cudnn_graph *g, int64_t id)
{
    return tensor(g, id, CUDNN_DATA_FLOAT, sizes(1, 1, 1, 1), sizes(1, 1, 1, 1));
}

static struct node between(struct cudnn_graph *g, cudnnDataType_t type, struct sizes dims)
{
    return tensor(g, CUDNN_VIRTUAL + g->n_virtual++, type, dims, packed(dims));
}

/* --- operations --------------------------------------------------------------------------------------------------- */

static const struct node nothing;

/* y = a b */
static void multiply(struct cudnn_graph *g, struct node a, struct node b, struct node y)
{
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnBackendDescriptor_t how = create(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    const cudnnBackendDescriptor_t operation = create(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);

    titan_assert(a.dims.n[3] == b.dims.n[2] && a.dims.n[2] == y.dims.n[2] && b.dims.n[3] == y.dims.n[3]);
    titan_assert(a.dims.n[1] == y.dims.n[1] && y.dims.n[1] % b.dims.n[1] == 0);
    set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finalize(g, how);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.it);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.it);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y.it);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    finalize_operation(g, operation);
}

/* y = mode(x, b), or mode(x, b, where). Only GEN_INDEX uses axis. */
static void each(struct cudnn_graph *g, cudnnPointwiseMode_t mode, struct node x, struct node b, struct node where,
                 int64_t axis, struct node y)
{
    const cudnnDataType_t compute = y.type == CUDNN_DATA_BFLOAT16 ? CUDNN_DATA_FLOAT : y.type;
    const cudnnBackendDescriptor_t how = create(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    const cudnnBackendDescriptor_t operation = create(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);

    titan_assert(axis >= 0 && axis < 4);
    set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finalize(g, how);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.it);
    if (b.it)
        set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b.it);
    if (where.it)
        set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, where.it);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.it);
    finalize_operation(g, operation);
}

/* Returns mode(x, b) as a tensor like x. */
static struct node of_two(struct cudnn_graph *g, cudnnPointwiseMode_t mode, struct node x, struct node b)
{
    const struct node y = between(g, CUDNN_DATA_FLOAT, x.dims);
    each(g, mode, x, b, nothing, 0, y);
    return y;
}

static struct node of_one(struct cudnn_graph *g, cudnnPointwiseMode_t mode, struct node x)
{
    return of_two(g, mode, x, nothing);
}

/* Reduces x to y, along the dimensions in which y is smaller. */
static void reduce(struct cudnn_graph *g, cudnnReduceTensorOp_t how_to, struct node x, struct node y)
{
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnBackendDescriptor_t how = create(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    const cudnnBackendDescriptor_t operation = create(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);

    titan_assert(x.dims.n[0] == y.dims.n[0] && x.dims.n[1] % y.dims.n[1] == 0);
    set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how_to);
    finalize(g, how);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.it);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.it);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    finalize_operation(g, operation);
}

/* Reduces x to one number for each row. */
static struct node by_row(struct cudnn_graph *g, cudnnReduceTensorOp_t how_to, struct node x)
{
    const struct node y = between(g, CUDNN_DATA_FLOAT, sizes(x.dims.n[0], x.dims.n[1], x.dims.n[2], 1));
    reduce(g, how_to, x, y);
    return y;
}

/* x with its last two dimensions exchanged, as bf16, for a product. */
static struct node transposed(struct cudnn_graph *g, struct node x)
{
    const int64_t *const n = x.dims.n, *const s = x.strides.n;
    const struct node y = tensor(g, CUDNN_VIRTUAL + g->n_virtual++, CUDNN_DATA_BFLOAT16, sizes(n[0], n[1], n[3], n[2]),
                                 sizes(s[0], s[1], s[3], s[2]));
    const cudnnBackendDescriptor_t operation = create(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);

    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.it);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.it);
    finalize_operation(g, operation);
    return y;
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* Products of queries and keys, (B,H,T,T), times the scale. */
static struct node scores(struct cudnn_graph *g, const struct cudnn_problem *p, struct node q, struct node keys,
                          struct node scale)
{
    const struct node s = between(g, CUDNN_DATA_FLOAT, sizes(p->b, p->h, p->t, p->t));
    multiply(g, q, keys, s);
    return of_two(g, CUDNN_POINTWISE_MUL, s, scale);
}

/* x, with -inf where the key comes after the query. */
static struct node causal(struct cudnn_graph *g, struct node x, struct node masked)
{
    const struct node row = between(g, CUDNN_DATA_INT32, x.dims), column = between(g, CUDNN_DATA_INT32, x.dims);
    const struct node seen = between(g, CUDNN_DATA_BOOLEAN, x.dims), y = between(g, CUDNN_DATA_FLOAT, x.dims);

    each(g, CUDNN_POINTWISE_GEN_INDEX, x, nothing, nothing, 2, row);
    each(g, CUDNN_POINTWISE_GEN_INDEX, x, nothing, nothing, 3, column);
    each(g, CUDNN_POINTWISE_CMP_GE, row, column, nothing, 0, seen);
    each(g, CUDNN_POINTWISE_BINARY_SELECT, x, masked, seen, 0, y);
    return y;
}

static struct node log_sum_exps(struct cudnn_graph *g, const struct cudnn_problem *p, int64_t id)
{
    const struct sizes dims = sizes(p->b, p->h, p->t, 1);
    return tensor(g, id, CUDNN_DATA_FLOAT, dims, packed(dims));
}

static void forward(struct cudnn_graph *g, const struct cudnn_problem *p)
{
    const struct node q = rows(g, p, CUDNN_Q, p->h, p->d, p->ldq), keys = columns(g, p, CUDNN_K, p->kv, p->d, p->ldk);
    const struct node v = rows(g, p, CUDNN_V, p->kv, p->dv, p->ldv);
    const struct node out = rows(g, p, CUDNN_OUT, p->h, p->dv, p->ldo), lse = log_sum_exps(g, p, CUDNN_LSE);

    const struct node s = causal(g, scores(g, p, q, keys, scalar(g, CUDNN_SCALE)), scalar(g, CUDNN_MASKED));
    const struct node top = by_row(g, CUDNN_REDUCE_TENSOR_MAX, s);
    const struct node e = of_one(g, CUDNN_POINTWISE_EXP, of_two(g, CUDNN_POINTWISE_SUB, s, top));
    const struct node sum = by_row(g, CUDNN_REDUCE_TENSOR_ADD, e);
    each(g, CUDNN_POINTWISE_ADD, top, of_one(g, CUDNN_POINTWISE_LOG, sum), nothing, 0, lse);
    const struct node weights = between(g, CUDNN_DATA_BFLOAT16, s.dims);
    each(g, CUDNN_POINTWISE_DIV, e, sum, nothing, 0, weights);
    multiply(g, weights, v, out);
}

/* to = a b, (B,H,T,width) summed over the query heads that share a key head. */
static void multiply_to_heads(struct cudnn_graph *g, const struct cudnn_problem *p, struct node a, struct node b,
                              struct node to)
{
    if (p->h == p->kv) {
        multiply(g, a, b, to);
        return;
    }
    const struct node full = between(g, CUDNN_DATA_BFLOAT16, sizes(p->b, p->h, p->t, to.dims.n[3]));
    multiply(g, a, b, full);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, full, to);
}

/* repeatable: dQ is the result of a product that stores ds. Otherwise dQ is a sum to which all blocks add. */
static void backward(struct cudnn_graph *g, const struct cudnn_problem *p, bool repeatable)
{
    const struct node q = rows(g, p, CUDNN_Q, p->h, p->d, p->ldq), keys = columns(g, p, CUDNN_K, p->kv, p->d, p->ldk);
    const struct node values = columns(g, p, CUDNN_V, p->kv, p->dv, p->ldv);
    const struct node out = rows(g, p, CUDNN_OUT, p->h, p->dv, p->ldo), lse = log_sum_exps(g, p, CUDNN_LSE);
    const struct node dout = rows(g, p, CUDNN_DOUT, p->h, p->dv, p->lddo);
    const struct node dq = rows(g, p, CUDNN_DQ, p->h, p->d, p->lddq), dk = rows(g, p, CUDNN_DK, p->kv, p->d, p->lddk);
    const struct node dv = rows(g, p, CUDNN_DV, p->kv, p->dv, p->lddv);
    const struct node scale = scalar(g, CUDNN_SCALE), delta = log_sum_exps(g, p, CUDNN_DELTA);

    const struct node dots = by_row(g, CUDNN_REDUCE_TENSOR_ADD, of_two(g, CUDNN_POINTWISE_MUL, dout, out));
    each(g, CUDNN_POINTWISE_MUL, dots, scalar(g, CUDNN_ONE), nothing, 0,
         delta); /* delta takes the place of dropout's scale */

    const struct node s = of_two(g, CUDNN_POINTWISE_SUB, scores(g, p, q, keys, scale), lse);
    const struct node weights = of_one(g, CUDNN_POINTWISE_EXP, causal(g, s, scalar(g, CUDNN_MASKED)));
    multiply_to_heads(g, p, transposed(g, weights), dout, dv);

    const struct node dp = between(g, CUDNN_DATA_FLOAT, s.dims);
    multiply(g, dout, values, dp);
    const struct node change = of_two(g, CUDNN_POINTWISE_MUL, of_two(g, CUDNN_POINTWISE_SUB, dp, delta), weights);
    const struct node ds = of_two(g, CUDNN_POINTWISE_MUL, change, scale);
    multiply_to_heads(g, p, transposed(g, ds), q, dk);

    if (repeatable) {
        multiply(g, ds, transposed(g, keys), dq);
        return;
    }
    const struct sizes dims = sizes(p->b, p->h, p->t, p->d);
    const struct node sum = tensor(g, CUDNN_DQ_SUM, CUDNN_DATA_FLOAT, dims, packed(dims));
    multiply(g, ds, transposed(g, keys), sum);
    each(g, CUDNN_POINTWISE_IDENTITY, sum, nothing, nothing, 0, dq);
}

titan_status cudnn_graph_open(const struct cudnn_library *library, cudnnHandle_t handle,
                              const struct cudnn_problem *problem, enum cudnn_pass pass, struct cudnn_graph **ret,
                              struct titan_error *err)
{
    titan_assert(problem->kv > 0 && problem->h % problem->kv == 0 && problem->b > 0 && problem->t > 0);
    struct cudnn_graph *const g = calloc(1, sizeof *g);

    if (!g)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a graph of cuDNN");
    g->library = library;
    if (pass == CUDNN_FORWARD)
        forward(g, problem);
    else
        backward(g, problem, pass == CUDNN_BACKWARD_REPEATABLE);
    g->graph = create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_operations, g->operations);
    if (handle)
        set(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize(g, g->graph);
    if (g->status != CUDNN_STATUS_SUCCESS) {
        (void)titan_fail(err, TITAN_EDEVICE, "cuDNN takes no graph of attention: %s, attribute %d",
                         library->error_string(g->status), g->attribute);
        cudnn_graph_close(g);
        return TITAN_EDEVICE;
    }
    *ret = g;
    return TITAN_OK;
}

void cudnn_graph_close(struct cudnn_graph *graph)
{
    if (!graph)
        return;
    titan_assert(graph->n_all <= (int)ARRAY_SIZE(graph->all));
    while (graph->n_all > 0)
        (void)graph->library->descriptor_destroy(graph->all[--graph->n_all]);
    free(graph);
}
#endif
