/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_graph.h - causal attention, forward and backward, as operation graphs of cuDNN's backend API. This header also
 * declares the functions of the library, which is loaded at run time. Graphs can be made without a GPU; running them
 * needs one.
 *
 * If cuDNN's headers are missing at build time, the plug-in does not use cuDNN, and CUDNN_HEADERS is 0. */
#ifndef TITAN_WORKER_DEVICE_CUDA_CUDNN_GRAPH_H
#define TITAN_WORKER_DEVICE_CUDA_CUDNN_GRAPH_H

#if __has_include(<cudnn.h>)
#define CUDNN_HEADERS 1
#include <cudnn.h>
#else
#define CUDNN_HEADERS 0
#endif

#if CUDNN_HEADERS
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Since 9.10, -inf marks a masked score. Since 9.6, the sums of dQ need not be zeroed first. */
#define CUDNN_VERSION_MIN 91000

struct cudnn_library {
    void *handle;
    size_t version; /* 91900 is 9.19.0 */
    const char *(*error_string)(cudnnStatus_t status);
    cudnnStatus_t (*create)(cudnnHandle_t *ret);
    cudnnStatus_t (*destroy)(cudnnHandle_t handle);
    cudnnStatus_t (*set_stream)(cudnnHandle_t handle, cudaStream_t stream);
    cudnnStatus_t (*descriptor_create)(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *ret);
    cudnnStatus_t (*descriptor_destroy)(cudnnBackendDescriptor_t descriptor);
    cudnnStatus_t (*finalize)(cudnnBackendDescriptor_t descriptor);
    cudnnStatus_t (*set)(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t count, const void *values);
    cudnnStatus_t (*get)(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t room, int64_t *ret_count, void *values);
    cudnnStatus_t (*execute)(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack);
};

/* Opens the library at path; path NULL: libcudnn.so.9 where the loader finds it. TITAN_EUNSUPPORTED: not found, or
 * older than CUDNN_VERSION_MIN. */
titan_status cudnn_library_open(struct cudnn_library *ret, const char *path, struct titan_error *err) TITAN_MUST_USE;
void cudnn_library_close(struct cudnn_library *library);

/* A problem in bf16; sizes and strides in elements, as in device.h. ldd* are strides of gradients; the forward pass
 * ignores them. */
struct cudnn_problem {
    int64_t b, t, h, kv, d, dv;
    int64_t ldq, ldk, ldv, ldo, lddq, lddk, lddv, lddo;
};

/* Tensors that a graph reads and writes. */
enum cudnn_tensor {
    CUDNN_Q = 1,
    CUDNN_K,
    CUDNN_V,
    CUDNN_OUT,
    CUDNN_LSE, /* (B,H,T) fp32 */
    CUDNN_DQ,
    CUDNN_DK,
    CUDNN_DV,
    CUDNN_DOUT,
    CUDNN_DELTA,  /* (B,H,T) fp32 scratch: sums over Dv of out * dout */
    CUDNN_DQ_SUM, /* (B,H,T,D) fp32 scratch, CUDNN_BACKWARD_ANY only */
    CUDNN_SCALE,  /* factor of the scores; CUDNN_SCALE and the next two are one float each in host memory */
    CUDNN_MASKED, /* -inf */
    CUDNN_ONE,
    CUDNN_VIRTUAL = 100 /* this id and above: tensors between operations */
};

/* CUDNN_BACKWARD_ANY sums dQ by atomics, in any order. CUDNN_BACKWARD_REPEATABLE repeats to the bit: the engine keeps
 * scores' gradients as bf16 in its workspace, about B*H*T*T*2 bytes. */
enum cudnn_pass { CUDNN_FORWARD, CUDNN_BACKWARD_ANY, CUDNN_BACKWARD_REPEATABLE };

struct cudnn_graph {
    const struct cudnn_library *library;
    /* all: the descriptors that close destroys, graph among them */
    cudnnBackendDescriptor_t all[160], operations[32], graph;
    int n_all, n_operations;
    int64_t n_virtual;
    cudnnStatus_t status; /* the first failure and the attribute that failed; 0: none */
    int attribute;
};

/* Makes a finalised graph. handle may be NULL: then no engine can be queried for the graph. Formulas: Dao 2023,
 * arXiv:2307.08691. */
titan_status cudnn_graph_open(const struct cudnn_library *library, cudnnHandle_t handle,
                              const struct cudnn_problem *problem, enum cudnn_pass pass, struct cudnn_graph **ret,
                              struct titan_error *err) TITAN_MUST_USE;
void cudnn_graph_close(struct cudnn_graph *graph); /* NULL is fine */
#endif

#endif
