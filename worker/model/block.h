/* SPDX-License-Identifier: Apache-2.0 */
/* block.h - writes each part of the model as operations of a program (program/emit.h). Forward, input gradient (dgrad)
 * and weight gradient (wgrad) have separate functions.
 *
 * Nothing here knows of ranks, schedules or owners of memory. Shapes are local. Where the layout of tokens changes, the
 * model emits a transfer. In a group of one member, nothing is emitted (emit.h). Layouts:
 * - Between blocks, activations are cut by tokens over tp (sequence parallel, Korthikanti et al. 2022,
 * arXiv:2205.05198).
 * - Inside attention and feed-forward layers, activations have all tokens, and are cut in heads or features (Shoeybi et
 *   al. 2019, arXiv:1909.08053).
 * - Keys and values are gathered over cp, or go round the cp ranks in a ring (Liu et al. 2023, arXiv:2310.01889).
 *
 * Shape letters are those of device.h, local unless noted: N = b*t/cp tokens, Ns = N/tp of them on this tp rank, C
 * width, H query heads, K key/value heads, D width of a query or key head, Dv width of a value head, F feed-forward
 * width, V vocabulary; M width of an expert, top_k experts per token, E experts in all, R the largest number of rows
 * that this rank's experts may get. */
#ifndef TITAN_WORKER_MODEL_BLOCK_H
#define TITAN_WORKER_MODEL_BLOCK_H

#include "worker/model/converters.h"
#include "worker/program/emit.h"

/* Values that all parts of one program share. */
struct block {
    struct emitter *e;
    const struct layout *layout; /* model and mesh are in it */
    enum dtype dt;               /* type of parameters and activations */
    int64_t b, t;                /* sequences of a microbatch, tokens of each; global */
    bool masked;                 /* attention within documents, or cp > 1: masks and positions are taken from TOKENS */
    bool ring;                   /* context parallel: keys go round in a ring instead of being gathered */
    bool rotate_in_place;        /* a mesh that rotates: a part is sent when it has been used, piece by piece */
    enum attention_order order;  /* order of attention without masks; with masks the order is fixed */
    bool split_gate_up;          /* gate and up are two products, so that one can be kept and the other recomputed */
    int loss_chunks;
    /* With expert parallelism: rows that a rank's experts take in one round, in even shares. 0: as many as can
     * arrive. */
    double expert_parallel_room;
    double expert_capacity; /* rows that an expert takes from a rank's tokens, in even shares; 0: all */
    /* Products and gradients keep the rows from each rank of an expert group apart. So sums are the same as on a rank
     * that has all experts. */
    bool by_rank;
    bool round_robin;                    /* experts are chosen in turn, not by score */
    const struct converters *converters; /* NULL: none */
    bool keeps_codes;                    /* of a program with gradients: converters->keeps_codes */
    const struct device_ops *ops;        /* sizes of work */
    struct device *dev;
    int table[TABLE_COUNT]; /* buffers */
    /* For each unit with experts. bias (E): for choosing experts. expert_tokens (E): where choices are counted. dropped
     * (1): with expert_capacity. NULL: the program has no such tensors. */
    const struct tensor *bias, *expert_tokens, *dropped;
    const struct tensor *statistics; /* of the step, for balance losses; no tensor: balance losses are not reported */
    /* Where rounds are counted, two totals over all units: number of rounds after the first, and most rows. Otherwise
     * no tensor. */
    const struct tensor *seen;
};

/* Local tokens of a microbatch: (batch_rows,N) int32. module: multi-token prediction module of the inputs and targets;
 * 0: the model itself. */
struct block_tokens {
    struct tensor all, inputs, targets, positions, index, start;
    int module;
};
void block_tokens_view(const struct block *k, int buffer, struct block_tokens *ret);
struct block_tokens block_tokens_of(const struct block_tokens *tokens, int module);
int64_t block_tokens_local(const struct block *k);   /* N */
int64_t block_tokens_sharded(const struct block *k); /* Ns */

/* Tensors of forward that backward needs. Tensors that a model does not have stay TENSOR_NONE. With keeps_codes, inputs
 * of linear layers that no other operation reads in backward may be codes (block_kept()). */
enum saved_tensor {
    SAVED_X,     /* (Ns,C)  the block's input */
    SAVED_RSTD1, /* (Ns) */
    SAVED_XN1,   /* (N,C)   normed, gathered over tp */
    SAVED_Q,     /* (N,H*D) after norm and rotary embedding */
    SAVED_K,     /* (N,K*D) the same */
    SAVED_V,     /* (N,K*Dv) */
    SAVED_Q_RAW, /* before the heads' norm (qk_norm) */
    SAVED_K_RAW,
    SAVED_Q_RSTD,
    SAVED_K_RSTD,
    SAVED_Q_LATENT, /* latent attention (latent.h) */
    SAVED_Q_LATENT_RSTD,
    SAVED_Q_LATENT_NORMED,
    SAVED_KV_LATENT,
    SAVED_KV_LATENT_RSTD,
    SAVED_KV_LATENT_NORMED,
    SAVED_KV,       /* cp > 1: k | v (cp*N,K*(D+Dv)) of all cp ranks; in a ring (N,K*(D+Dv)) of this rank */
    SAVED_ATTN,     /* (N,H*Dv) */
    SAVED_LSE,      /* (B*H,T), with B sequences of T tokens in attention */
    SAVED_START,    /* (N) int32: first token that each token sees, in a layer with a window */
    SAVED_ATTN_OUT, /* (Ns,C) of the output product, before its norm (output_norms) */
    SAVED_ATTN_OUT_RSTD,
    SAVED_H,       /* (Ns,C)  x + attention */
    SAVED_RSTD2,   /* (Ns) */
    SAVED_XN2,     /* (N,C) */
    SAVED_GATE,    /* (N,F) */
    SAVED_UP,      /* (N,F) */
    SAVED_ACT,     /* (N,F)   silu(gate) * up */
    SAVED_FFN_OUT, /* as SAVED_ATTN_OUT */
    SAVED_FFN_OUT_RSTD,
    SAVED_XN2_OWN, /* mixture of experts (experts.h): (Ns,C) SAVED_XN2 before its gather */
    SAVED_LOGITS,  /* (Ns,E) fp32 */
    SAVED_CHOSEN,  /* (Ns,top_k) */
    SAVED_WEIGHTS, /* (Ns,top_k) fp32 */
    SAVED_PLACE,   /* (Ns,top_k) places of the chosen rows in the order by expert, and the counts of rows */
    SAVED_COUNTS,
    SAVED_RANK_COUNTS,
    SAVED_RECEIVED, /* several rounds: (ep,rounds*E/ep) numbers of rows from each rank for each expert here */
    SAVED_SENT,     /* several rounds: these numbers for the rows that this rank sends */
    /* First round, ep > 1: (R,1) places of the arrived rows in the order by expert, and the counts of rows. */
    SAVED_PLACE_HERE,
    SAVED_COUNTS_HERE,
    SAVED_RANK_COUNTS_HERE,
    /* Several rounds: (Ns*top_k,1) places of rows among the sent rows, the inverse of these places, and counts. */
    SAVED_PLACE_SENT,
    SAVED_ORIGIN,
    SAVED_RANK_COUNTS_SENT,
    SAVED_ROWS,     /* (R,C) input rows of the experts here */
    SAVED_ROWS_GU,  /* (R,2M) */
    SAVED_ROWS_ACT, /* (R,M) */
    SAVED_ROWS_OUT, /* (Ns*top_k,C) rows that came back from all experts */
    SAVED_COUNT
};
struct layer_saved {
    struct tensor t[SAVED_COUNT];
    struct layer_saved *parts; /* of a layer that rotates: one for each turn (rotated.h); otherwise NULL */
};
/* Tensors of the input gradient that weight gradients need. */
enum back_tensor {
    BACK_DY,        /* (N,C)  gathered over tp */
    BACK_DY_NORMED, /* (Ns,C) gradient of the output norm's result (output_norms) */
    BACK_DY_OWN,    /* (Ns,C) before the gather, where the product has a bias */
    BACK_DGU,       /* (N,2F) */
    BACK_DXN2,      /* (Ns,C) */
    BACK_DH,        /* (N,C)  gathered over tp */
    BACK_DH_NORMED,
    BACK_DH_OWN,    /* (Ns,C) as BACK_DY_OWN */
    BACK_DSINKS,    /* (H) fp32, of attention sinks */
    BACK_DQKV,      /* (N,(H+2K)*D) */
    BACK_DQ_NORMED, /* gradients before the heads' norm (qk_norm) */
    BACK_DK_NORMED,
    BACK_DQ, /* latent attention: gradients of the products' and the norms' outputs */
    BACK_DQ_LATENT,
    BACK_DQ_LATENT_NORMED,
    BACK_DKV_B,
    BACK_DKV_LATENT,
    BACK_DKV_LATENT_NORMED,
    BACK_DK_ROPE,
    BACK_DROWS_OUT, /* mixture of experts with several rounds: (Ns*top_k,C) gradient before it is sent */
    BACK_DROWS,     /* (R,C) */
    BACK_DROWS_GU,
    BACK_DLOGITS, /* (Ns,E) compute type */
    BACK_DXN1,    /* (Ns,C) */
    BACK_COUNT
};
struct layer_back {
    struct tensor t[BACK_COUNT];
    struct layer_back *parts; /* as in struct layer_saved */
};

/* Parameters and gradients of a whole unit: buffers (local flat, layout.h) of the compute type and of fp32. A tied head
 * also needs the embedding's buffers. With by_rank, experts have one gradient per rank of their group
 * (experts_parts()), in consecutive buffers. */
struct unit_buffers {
    int unit, params, grads; /* -1: not needed */
    bool first; /* the first gradient of a step: it overwrites, and zeroes gaps; later gradients are added */
    /* coded: layout of `params` as codes. NULL: `params` is the flat buffer. scales: fp32, of weights in float8. */
    const struct coded *coded;
    uint64_t scaled; /* bits of the unit's tensors that have a place in `scales`, in order */
    struct tensor scales;
};

/* x (Ns,C) */
struct tensor embedding_forward(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens);
void embedding_wgrad(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                     struct tensor dx);

/* Units of a layer. `experts` is the unit of the layer's experts; NULL: the layer has none. */
struct layer_units {
    const struct unit_buffers *own, *experts;
};
/* y (Ns,C). statistics: the step's statistics buffer; no tensor: no CHECK is emitted (recomputation). */
struct tensor layer_forward(struct block *k, struct layer_units u, const struct block_tokens *tokens, struct tensor x,
                            struct tensor statistics, struct layer_saved *saved);
/* dx (Ns,C) */
struct tensor layer_dgrad(struct block *k, struct layer_units u, const struct block_tokens *tokens,
                          const struct layer_saved *saved, struct tensor dy, struct layer_back *back);
void layer_wgrad(struct block *k, struct layer_units u, const struct layer_saved *saved, const struct layer_back *back);
/* Number of rounds in which a layer's experts take their rows. With several rounds, layer_wgrad() reads the experts'
 * parameters and exchanges rows. Reads from k: layout, b, t, expert_parallel_room and expert_capacity. */
int64_t experts_rounds(const struct block *k);
/* Rows of a microbatch that a rank's experts get if every expert gets the same number. Reads the same fields of k. */
int64_t experts_rows_even(const struct block *k);
/* Number of gradients that a unit of experts has: with by_rank one for each rank of the group, otherwise one. Reads
 * from k: layout and by_rank. */
int experts_parts(const struct block *k);

/* --- multi-token prediction (mtp.c) ------------------------------------------------------------------------------- */

/* Tensors that the gradients of a norm need. */
struct norm_saved {
    struct tensor x, rstd;
};
/* h (Ns,C) = norm(x): the model's last norm, if modules follow it. */
struct tensor mtp_norm_forward(struct block *k, const struct unit_buffers *u, struct tensor x, struct tensor statistics,
                               struct norm_saved *saved);
struct tensor mtp_norm_dgrad(struct block *k, const struct unit_buffers *u, const struct norm_saved *saved,
                             struct tensor dh);
void mtp_norm_wgrad(struct block *k, const struct unit_buffers *u, const struct norm_saved *saved, struct tensor dh);

/* A module takes h (Ns,C), the output of the previous module or of the model. It computes x = eh_proj [enorm(embedding)
 * | hnorm(h)], then a layer from x to y, then a norm of y. tokens are the module's tokens. */
struct mtp_saved {
    struct norm_saved embedding, hidden, out;
    struct tensor both; /* (Ns,2C) */
    struct tensor h;    /* (Ns,C) the module's output */
};
struct mtp_back {
    struct tensor dh, dx, dembedding, dhidden; /* (Ns,C); all but dx are gradients of norms' outputs */
    struct tensor dtable;                      /* (Ns,C), gradient of the embedding */
};
/* x (Ns,C) */
struct tensor mtp_join(struct block *k, const struct unit_buffers *u, const struct unit_buffers *table,
                       const struct block_tokens *tokens, struct tensor h, struct mtp_saved *saved);
void mtp_out(struct block *k, const struct unit_buffers *u, struct tensor y, struct mtp_saved *saved);
/* dh (Ns,C) -> dy (Ns,C) */
struct tensor mtp_out_dgrad(struct block *k, const struct unit_buffers *u, const struct mtp_saved *saved,
                            struct tensor dh, struct mtp_back *back);
/* dx (Ns,C) -> gradient of the previous module's output. residual: the part of this gradient that comes from the
 * previous module's own loss. */
struct tensor mtp_join_dgrad(struct block *k, const struct unit_buffers *u, const struct mtp_saved *saved,
                             struct tensor dx, struct tensor residual, struct mtp_back *back);
/* Call it after layer_wgrad() of the same unit. */
void mtp_wgrad(struct block *k, const struct unit_buffers *u, const struct unit_buffers *table,
               const struct block_tokens *tokens, const struct mtp_saved *saved, const struct mtp_back *back);

/* Units of a head. `tied` is the embedding's unit; NULL: the two are not tied. */
struct head_units {
    const struct unit_buffers *own, *tied;
};
/* Runs the whole head for one microbatch: the loss, and with u.own->grads input and weight gradients. It works in
 * loss_chunks pieces, so only one piece's logits exist at a time. Cross-entropy runs on logits cut by vocabulary (loss
 * parallel): ranks exchange 3 numbers per token. Returns dx (Ns,C); without gradients TENSOR_NONE. losses: (N) fp32 if
 * the caller wants the losses (OUTPUT), otherwise no tensor. If the unit does not have the last norm, x is the output
 * of this norm. With tokens of a module, the loss is the module's, and gradients are multiplied by the weight of the
 * module's loss. */
struct tensor head_step(struct block *k, struct head_units u, const struct block_tokens *tokens, struct tensor x,
                        struct tensor statistics, struct tensor losses);
/* Writes logits (n,V) of rows [from, from+n) of x into the caller's tensor. tp and cp must be 1. */
void head_logits(struct block *k, struct head_units u, struct tensor x, struct tensor logits);

#endif
