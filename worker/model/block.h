/* SPDX-License-Identifier: Apache-2.0 */
/* block.h - each part of the model once, written as operations of a program (program/emit.h): forward, input gradient
 * (dgrad) and weight gradient (wgrad) apart.
 *
 * Nothing here knows of ranks, schedules or owners of memory. Shapes are local; where a layout of the tokens changes,
 * the model says so by a transfer that is nothing when its group has one member (emit.h): activations between blocks
 * are cut by tokens over tp (sequence parallel, Korthikanti et al. 2022, arXiv:2205.05198), inside attention and
 * feed-forward they are whole in tokens and cut in heads or features (Shoeybi et al. 2019, arXiv:1909.08053), keys and
 * values are gathered over cp, or go round it (Liu et al. 2023, arXiv:2310.01889).
 *
 * Shape letters as in device.h, local unless said otherwise: N = b*t/cp tokens, Ns = N/tp of them on this tp rank, C
 * width, H query heads, K key/value heads, D width of a query or key head, Dv of a value head, F feed-forward width, V
 * vocabulary; M width of an expert, top_k experts a token, E experts in all, R rows that experts here may get. */
#ifndef TITAN_WORKER_MODEL_BLOCK_H
#define TITAN_WORKER_MODEL_BLOCK_H

#include "worker/model/converters.h"
#include "worker/program/emit.h"

/* What the parts of one program share. */
struct block {
    struct emitter *e;
    const struct layout *layout; /* model and mesh are in it */
    enum dtype dt;               /* of parameters and activations */
    int64_t b, t;                /* sequences of a microbatch, tokens of each; global */
    bool masked;                 /* attention within documents, or cp > 1: masks and positions from TOKENS */
    bool ring;                   /* context parallel: keys go round instead of being gathered */
    enum attention_order order;  /* of attention without masks; with masks it is fixed */
    bool split_gate_up;          /* gate and up are two products: one can be kept, the other computed again */
    int loss_chunks;
    double
        expert_parallel_room; /* rows that shared experts take at a time, in even shares; 0: as many as there can be */
    double expert_capacity;   /* rows that an expert takes of a rank's tokens, in even shares; 0: all of them */
    /* The rows of each rank of an expert group stay apart, in products and in gradients: sums are those of a rank that
     * has all experts. */
    bool by_rank;
    bool round_robin;                    /* experts in turn instead of by score */
    const struct converters *converters; /* NULL: none */
    const struct device_ops *ops;        /* sizes of work */
    struct device *dev;
    int table[TABLE_COUNT]; /* buffers */
    /* Of each unit with experts: bias (E) of their choice, and where choices are counted expert_tokens (E) and, with
     * expert_capacity, dropped (1); NULL: none. */
    const struct tensor *bias, *expert_tokens, *dropped;
    const struct tensor *statistics; /* the step's, for balance losses; none: they are not reported */
    /* Where rounds are counted, of all units: how many there were behind the first, the most rows (2); none. */
    const struct tensor *seen;
};

/* Tokens of a microbatch, local: (batch_rows,N) int32. module: whose inputs and targets these are; 0: the model's. */
struct block_tokens {
    struct tensor all, inputs, targets, positions, index, start;
    int module;
};
void block_tokens_view(const struct block *k, int buffer, struct block_tokens *ret);
struct block_tokens block_tokens_of(const struct block_tokens *tokens, int module);
int64_t block_tokens_local(const struct block *k);   /* N */
int64_t block_tokens_sharded(const struct block *k); /* Ns */

/* What backward needs of forward, by name; tensors a model does not have stay TENSOR_NONE. */
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
    SAVED_KV,       /* cp > 1: k | v (cp*N,K*(D+Dv)) of all cp ranks; where keys go round: (N,K*(D+Dv)) of this one */
    SAVED_ATTN,     /* (N,H*Dv) */
    SAVED_LSE,      /* (B*H,T), of attention's sequences */
    SAVED_START,    /* (N) int32: the first token that each one sees, in a layer with a window */
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
    SAVED_XN2_OWN, /* mixture of experts (experts.h): (Ns,C) before it was gathered */
    SAVED_LOGITS,  /* (Ns,E) fp32 */
    SAVED_CHOSEN,  /* (Ns,top_k) */
    SAVED_WEIGHTS, /* (Ns,top_k) fp32 */
    SAVED_PLACE,   /* (Ns,top_k) and counts: where choices lie, sorted by expert */
    SAVED_COUNTS,
    SAVED_RANK_COUNTS,
    SAVED_RECEIVED,   /* rounds: (ep,rounds*E/ep) rows from each rank for each expert here */
    SAVED_SENT,       /* rounds: the same of what this rank sends */
    SAVED_PLACE_HERE, /* of the first round: (R,1) and counts: where what arrived lies, sorted by expert; ep > 1 */
    SAVED_COUNTS_HERE,
    SAVED_RANK_COUNTS_HERE,
    SAVED_PLACE_SENT, /* rounds: (Ns*top_k,1) where rows lie among those that are sent, and back, and counts */
    SAVED_ORIGIN,
    SAVED_RANK_COUNTS_SENT,
    SAVED_ROWS,     /* (R,C)  what the experts here got */
    SAVED_ROWS_GU,  /* (R,2M) */
    SAVED_ROWS_ACT, /* (R,M) */
    SAVED_ROWS_OUT, /* (Ns*top_k,C)  what came back from all experts */
    SAVED_COUNT
};
struct layer_saved {
    struct tensor t[SAVED_COUNT];
};
/* What the weight gradients need of the input gradients. */
enum back_tensor {
    BACK_DY,        /* (N,C)  gathered over tp */
    BACK_DY_NORMED, /* (Ns,C) gradient of the output's norm (output_norms) */
    BACK_DY_OWN,    /* (Ns,C) before, where the product has a bias */
    BACK_DGU,       /* (N,2F) */
    BACK_DXN2,      /* (Ns,C) */
    BACK_DH,        /* (N,C)  gathered over tp */
    BACK_DH_NORMED,
    BACK_DH_OWN,    /* (Ns,C) as BACK_DY_OWN */
    BACK_DSINKS,    /* (H) fp32, of attention sinks */
    BACK_DQKV,      /* (N,(H+2K)*D) */
    BACK_DQ_NORMED, /* gradients before the heads' norm (qk_norm) */
    BACK_DK_NORMED,
    BACK_DQ, /* latent attention: of the products' outputs and of the norms' */
    BACK_DQ_LATENT,
    BACK_DQ_LATENT_NORMED,
    BACK_DKV_B,
    BACK_DKV_LATENT,
    BACK_DKV_LATENT_NORMED,
    BACK_DK_ROPE,
    BACK_DROWS_OUT, /* mixture of experts: (Ns*top_k,C) before it is sent, where there are rounds */
    BACK_DROWS,     /* (R,C) */
    BACK_DROWS_GU,
    BACK_DLOGITS, /* (Ns,E) compute type */
    BACK_DXN1,    /* (Ns,C) */
    BACK_COUNT
};
struct layer_back {
    struct tensor t[BACK_COUNT];
};

/* Parameters and gradients are whole units: buffers (local flat, layout.h) of the compute type and of fp32. A tied head
 * needs the embedding's too. Experts by_rank have a gradient of each rank of their group (experts_parts()), in buffers
 * one behind the other. */
struct unit_buffers {
    int unit, params, grads;   /* -1: not needed */
    bool first;                /* gradients are overwritten (and gaps zeroed), otherwise added to */
    const struct coded *coded; /* params is laid out so, with these scales (fp32); NULL: it is the flat buffer */
    struct tensor scales;
};

/* x (Ns,C) */
struct tensor embedding_forward(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens);
void embedding_wgrad(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                     struct tensor dx);

/* A layer has one unit, or a second one with its experts; NULL: none. */
struct layer_units {
    const struct unit_buffers *own, *experts;
};
/* y (Ns,C). statistics: the executor's statistics buffer; none: no CHECK (recomputation). */
struct tensor layer_forward(struct block *k, struct layer_units u, const struct block_tokens *tokens, struct tensor x,
                            struct tensor statistics, struct layer_saved *saved);
/* dx (Ns,C) */
struct tensor layer_dgrad(struct block *k, struct layer_units u, const struct block_tokens *tokens,
                          const struct layer_saved *saved, struct tensor dy, struct layer_back *back);
void layer_wgrad(struct block *k, struct layer_units u, const struct layer_saved *saved, const struct layer_back *back);
/* In how many rounds a layer's experts take their rows. With more than one, layer_wgrad() reads their parameters and
 * exchanges rows. Of k it reads layout, b, t, expert_parallel_room and expert_capacity. */
int64_t experts_rounds(const struct block *k);
/* Rows of a microbatch that a rank's experts get if all get equally many. Of k it reads the same. */
int64_t experts_rows_even(const struct block *k);
/* How many gradients an experts' unit has: of each rank of the group by_rank, otherwise one. Of k it reads layout and
 * by_rank. */
int experts_parts(const struct block *k);

/* --- multi-token prediction (mtp.c) ------------------------------------------------------------------------------- */

/* What the gradients of a norm need. */
struct norm_saved {
    struct tensor x, rstd;
};
/* h (Ns,C) = norm(x): the model's last norm where modules follow it. */
struct tensor mtp_norm_forward(struct block *k, const struct unit_buffers *u, struct tensor x, struct tensor statistics,
                               struct norm_saved *saved);
struct tensor mtp_norm_dgrad(struct block *k, const struct unit_buffers *u, const struct norm_saved *saved,
                             struct tensor dh);
void mtp_norm_wgrad(struct block *k, const struct unit_buffers *u, const struct norm_saved *saved, struct tensor dh);

/* A module between what the one before gives, h (Ns,C), and its own: x = eh_proj [enorm(embedding) | hnorm(h)], a layer
 * from x to y, and a norm of y. tokens are the module's. */
struct mtp_saved {
    struct norm_saved embedding, hidden, out;
    struct tensor both; /* (Ns,2C) */
    struct tensor h;    /* (Ns,C)  what it gives */
};
struct mtp_back {
    struct tensor dh, dx, dembedding, dhidden; /* (Ns,C), of the norms' outputs but for dx */
    struct tensor dtable;                      /* (Ns,C), of the embedding */
};
/* x (Ns,C) */
struct tensor mtp_join(struct block *k, const struct unit_buffers *u, const struct unit_buffers *table,
                       const struct block_tokens *tokens, struct tensor h, struct mtp_saved *saved);
void mtp_out(struct block *k, const struct unit_buffers *u, struct tensor y, struct mtp_saved *saved);
/* dh (Ns,C) -> dy (Ns,C) */
struct tensor mtp_out_dgrad(struct block *k, const struct unit_buffers *u, const struct mtp_saved *saved,
                            struct tensor dh, struct mtp_back *back);
/* dx (Ns,C) -> dh of the one before; residual: what that has of its own loss. */
struct tensor mtp_join_dgrad(struct block *k, const struct unit_buffers *u, const struct mtp_saved *saved,
                             struct tensor dx, struct tensor residual, struct mtp_back *back);
/* Behind layer_wgrad() of the same unit. */
void mtp_wgrad(struct block *k, const struct unit_buffers *u, const struct unit_buffers *table,
               const struct block_tokens *tokens, const struct mtp_saved *saved, const struct mtp_back *back);

/* The whole of the head for one microbatch: loss and, where grads are given, input and weight gradients, in loss_chunks
 * pieces so that only one piece's logits exist at a time. Cross-entropy runs on logits cut by vocabulary (loss
 * parallel): 3 numbers a token are exchanged. Returns dx (Ns,C), none without grads. losses: (N) fp32 where the caller
 * wants them (OUTPUT), otherwise none. tied: the embedding's buffers, NULL otherwise. x has gone through the norm where
 * that is no part of the unit. With tokens of a module: its loss, and gradients times the part of the loss that this
 * is. */
struct tensor head_step(struct block *k, const struct unit_buffers *u, const struct unit_buffers *tied,
                        const struct block_tokens *tokens, struct tensor x, struct tensor statistics,
                        struct tensor losses);
/* logits (n,V) of rows [from, from+n) of x into a tensor of the caller's; tp and cp must be 1. */
void head_logits(struct block *k, const struct unit_buffers *u, const struct unit_buffers *tied, struct tensor x,
                 struct tensor logits);

#endif
