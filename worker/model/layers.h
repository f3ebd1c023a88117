/* layers.h - each part of the model once, as device operations: forward, input gradient (dgrad) and weight gradient
 * (wgrad) apart.
 *
 * Nothing here knows of ranks, programs or who owns memory: parameters come as one flat buffer per unit (model.h) in
 * the compute type, gradients go to one flat fp32 buffer of the same order. What backward needs of forward lies in a
 * `saved` bundle, what the weight gradients need of the input gradients in a `back` bundle; a bundle is one piece of
 * memory whose parts the *_bytes/_carve functions lay out.
 *
 * Everything is enqueued on ctx->stream. wgrad with first overwrites the unit's gradient (and zeroes what belongs to no
 * parameter up to padded elements); without it adds.
 *
 * Shape letters as in device.h: N tokens, C width, H query heads, K key/value heads, D head width, F feed-forward
 * width, V vocabulary; Q = (H+2K)*D. */
#ifndef TITAN_WORKER_MODEL_LAYERS_H
#define TITAN_WORKER_MODEL_LAYERS_H

#include "worker/device/device.h"
#include "worker/model/model.h"

/* What the operations of one microbatch share. */
struct layer_ctx {
    const struct device_ops *ops;
    struct device *dev;
    struct stream *stream;
    const struct model *model;
    enum dtype dt;            /* of parameters and activations */
    int64_t b, t;             /* sequences and tokens of each; N = b*t */
    const int32_t *positions; /* (N), device */
    const float *cos, *sin;   /* (T, D/2), device */
};

struct layer_saved {
    void *xn1;    /* (N,C)   normed input */
    float *rstd1; /* (N) */
    void *qkv;    /* (N,Q)   after the rotary embedding */
    void *attn;   /* (N,H*D) */
    float *lse;   /* (H,N) */
    void *h;      /* (N,C)   x + attention */
    void *xn2;    /* (N,C) */
    float *rstd2; /* (N) */
    void *gu;     /* (N,2F)  gate | up */
    void *act;    /* (N,F)   silu(gate) * up */
};
struct layer_back {
    void *dgu;  /* (N,2F) */
    void *dxn2; /* (N,C) */
    void *dh;   /* (N,C) */
    void *dqkv; /* (N,Q) */
    void *dxn1; /* (N,C) */
};
struct head_saved {
    void *xn;     /* (N,C) */
    float *rstd;  /* (N) */
    void *logits; /* (N,V), overwritten by their gradient */
};
struct head_back {
    void *dxn; /* (N,C) */
};

/* Bytes of a bundle; with base (64-byte aligned) its parts. */
size_t layer_saved_carve(const struct layer_ctx *ctx, void *base, struct layer_saved *ret);
size_t layer_back_carve(const struct layer_ctx *ctx, void *base, struct layer_back *ret);
size_t head_saved_carve(const struct layer_ctx *ctx, void *base, struct head_saved *ret);
size_t head_back_carve(const struct layer_ctx *ctx, void *base, struct head_back *ret);
/* Scratch of layer_forward and layer_dgrad. */
size_t layer_work_bytes(const struct layer_ctx *ctx);
/* Bytes of one (N,C) activation. */
size_t residual_bytes(const struct layer_ctx *ctx);

/* x (N,C) = table[tokens]; tokens (N). */
titan_status embedding_forward(const struct layer_ctx *ctx, void *x, const void *params, const int32_t *tokens);
titan_status embedding_wgrad(const struct layer_ctx *ctx, float *grads, int64_t padded, bool first,
                             const int32_t *tokens, const void *dx);

/* y (N,C) = layer(x). y may not alias x; NULL: only what backward needs (recomputation). */
titan_status layer_forward(const struct layer_ctx *ctx, int layer, void *y, const struct layer_saved *saved,
                           const void *params, const void *x);
/* dx (N,C) from dy; dx may not alias dy. */
titan_status layer_dgrad(const struct layer_ctx *ctx, int layer, void *dx, const struct layer_back *back,
                         const struct layer_saved *saved, const void *params, const void *x, const void *dy,
                         void *work);
titan_status layer_wgrad(const struct layer_ctx *ctx, int layer, float *grads, int64_t padded, bool first,
                         const struct layer_saved *saved, const struct layer_back *back, const void *x, const void *dy);

/* logits (N,V) of x, in saved->logits. */
titan_status head_forward(const struct layer_ctx *ctx, const struct head_saved *saved, const void *params,
                          const void *x);
/* losses (N) fp32 nats; with gradient, the logits become the gradient of their sum. */
titan_status head_loss(const struct layer_ctx *ctx, const struct head_saved *saved, float *losses,
                       const int32_t *targets, bool gradient);
titan_status head_dgrad(const struct layer_ctx *ctx, void *dx, const struct head_back *back,
                        const struct head_saved *saved, const void *params, const void *x);
titan_status head_wgrad(const struct layer_ctx *ctx, float *grads, int64_t padded, bool first,
                        const struct head_saved *saved, const struct head_back *back, const void *x);

#endif
