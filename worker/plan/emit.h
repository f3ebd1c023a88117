/* emit.h - writing a program: tensors that are views of buffers, and one function an operation.
 *
 * Shapes are checked as operations are written: a mismatch is a bug of the caller and aborts with both shapes. What can
 * fail at run time is memory alone; the first failure sticks in emitter.status, everything after it does nothing.
 *
 * A tensor is a matrix (rows, cols) of a buffer with a row stride; vectors are (1, n) or (n, 1). Transfers need dense
 * ones. */
#ifndef TITAN_WORKER_PLAN_EMIT_H
#define TITAN_WORKER_PLAN_EMIT_H

#include "worker/device/device.h"
#include "worker/plan/program.h"

struct tensor {
    int buffer; /* -1: none */
    enum dtype dt;
    int64_t rows, cols, ld; /* elements */
    size_t offset;          /* bytes from the buffer's start */
};
#define TENSOR_NONE ((struct tensor){.buffer = -1})

struct emitter {
    struct program *p;
    titan_status status;
    /* Stamped on every action. */
    enum phase phase;
    enum stream_id stream; /* of device operations; transfers go where their channel says */
    int unit, stage, microbatch;
    struct action none; /* emit_last after a failure */
};

/* A program of one kind; empty. layout is borrowed for its life. */
titan_status emit_open(const struct layout *layout, int pp_rank, struct emitter *ret,
                       struct titan_error *err) TITAN_MUST_USE;

/* --- buffers and views -------------------------------------------------------------------------------------------- */
int emit_buffer(struct emitter *e, enum buffer_kind kind, const char *name, size_t bytes); /* of e's unit, microbatch */
struct tensor emit_tensor(struct emitter *e, enum buffer_kind kind, const char *name, enum dtype dt, int64_t rows,
                          int64_t cols);
/* The buffer from byte offset on as a dense matrix. */
struct tensor tensor_at(int buffer, size_t offset, enum dtype dt, int64_t rows, int64_t cols);
struct tensor tensor_rows(struct tensor t, int64_t from, int64_t count);
struct tensor tensor_cols(struct tensor t, int64_t from, int64_t count);
/* Dense only: the same elements as other rows and columns. */
struct tensor tensor_reshape(struct tensor t, int64_t rows, int64_t cols);
static inline bool tensor_exists(struct tensor t)
{
    return t.buffer >= 0;
}
static inline int64_t tensor_numel(struct tensor t)
{
    return t.rows * t.cols;
}

/* --- any operation ------------------------------------------------------------------------------------------------ */
/* Append an action; operands follow. */
void emit_op(struct emitter *e, enum op op, const struct op_params *params);
void emit_operand(struct emitter *e, struct tensor t, enum access access); /* none: left out */
/* The last action, to change what emit_op stamped. */
struct action *emit_last(struct emitter *e);

/* --- device operations; outputs first ------------------------------------------------------------------------------
 */
void emit_load(struct emitter *e, struct tensor tokens);
void emit_embed(struct emitter *e, struct tensor x, struct tensor tokens, struct tensor table);
void emit_embed_wgrad(struct emitter *e, struct tensor dtable, struct tensor tokens, struct tensor dx);
void emit_rmsnorm(struct emitter *e, struct tensor out, struct tensor rstd, struct tensor x, struct tensor gain,
                  double eps);
void emit_rmsnorm_dgrad(struct emitter *e, struct tensor dx, bool add, struct tensor dout, struct tensor x,
                        struct tensor gain, struct tensor rstd);
void emit_rmsnorm_dgain(struct emitter *e, struct tensor dgain, struct tensor dout, struct tensor x,
                        struct tensor rstd);
/* c = or += op(a) op(b) */
void emit_matmul(struct emitter *e, struct tensor c, bool add, struct tensor a, bool ta, struct tensor b, bool tb);
void emit_rope(struct emitter *e, struct tensor x, struct tensor positions, struct tensor cos, struct tensor sin,
               int64_t heads, bool backward);
/* Who sees whom: none of the three = causal within each of b sequences. */
struct attention_mask {
    struct tensor index, start, key_index;
};
struct attention_heads {
    int64_t b; /* sequences; 1 when masked */
    int64_t h, kv, d, dv;
};
void emit_attention(struct emitter *e, struct tensor out, struct tensor lse, struct tensor q, struct tensor k,
                    struct tensor v, const struct attention_heads *heads, const struct attention_mask *mask);
void emit_attention_dgrad(struct emitter *e, struct tensor dq, struct tensor dk, struct tensor dv, struct tensor dout,
                          struct tensor out, struct tensor lse, struct tensor q, struct tensor k, struct tensor v,
                          struct tensor work, const struct attention_heads *heads, const struct attention_mask *mask);
void emit_attention_merge(struct emitter *e, struct tensor out, struct tensor lse, struct tensor other,
                          struct tensor other_lse, int64_t heads);
void emit_swiglu(struct emitter *e, struct tensor out, struct tensor gate, struct tensor up);
void emit_swiglu_dgrad(struct emitter *e, struct tensor dgate, struct tensor dup, struct tensor dout,
                       struct tensor gate, struct tensor up);
void emit_add(struct emitter *e, struct tensor out, struct tensor a, struct tensor b); /* dense */
/* COPY, or COPY_2D if strided; dst may have a multiple of src's rows (device.h: repeat). */
void emit_copy(struct emitter *e, struct tensor dst, struct tensor src);
void emit_add_to(struct emitter *e, struct tensor dst, struct tensor src); /* ADD_2D; src may have a multiple */
void emit_zero(struct emitter *e, struct tensor dst);
void emit_accumulate(struct emitter *e, struct tensor dst, struct tensor src);
void emit_loss_stats(struct emitter *e, struct tensor stats, struct tensor logits, struct tensor targets);
void emit_loss_finish(struct emitter *e, struct tensor losses, struct tensor dlogits, struct tensor logits,
                      struct tensor targets, struct tensor stats, int64_t parts);
void emit_loss_sum(struct emitter *e, struct tensor report, struct tensor losses);
void emit_check(struct emitter *e, struct tensor report, struct tensor rstd);

/* Mixture of experts, device.h. bias and load (E) may be none; a load is not counted again by recompute_actions. */
struct routing {
    int64_t experts, top_k;
    bool sigmoid, normalize;
    double scale;
};
void emit_route(struct emitter *e, struct tensor chosen, struct tensor weights, struct tensor logits,
                struct tensor bias, struct tensor load, const struct routing *routing);
void emit_route_dgrad(struct emitter *e, struct tensor dlogits, struct tensor dweights, struct tensor logits,
                      struct tensor chosen, const struct routing *routing);
void emit_permute(struct emitter *e, struct tensor place, struct tensor counts, struct tensor rank_counts,
                  struct tensor chosen);
void emit_permute_received(struct emitter *e, struct tensor place, struct tensor counts, struct tensor rank_counts,
                           struct tensor received);
/* place (N,top_k) is where each of the choices of src's (out's, dout's) N rows is; weights: none = 1. */
void emit_scatter_rows(struct emitter *e, struct tensor dst, struct tensor src, struct tensor place,
                       struct tensor weights);
void emit_combine_rows(struct emitter *e, struct tensor out, struct tensor src, struct tensor place,
                       struct tensor weights);
void emit_combine_dweights(struct emitter *e, struct tensor dweights, struct tensor dout, struct tensor src,
                           struct tensor place);
/* Groups as counts has elements. expected: rows of all groups, for the cost model. */
void emit_matmul_grouped(struct emitter *e, struct tensor c, bool add, struct tensor a, bool ta, struct tensor b,
                         bool tb, struct tensor counts, int64_t expected);
void emit_cast(struct emitter *e, struct tensor dst, struct tensor src);

/* --- transfers: on the stream of their channel ---------------------------------------------------------------------
 */
/* A group of one member: nothing is written and the input is the result, so callers need no branch:
 *   y = emit_all_gather(e, CHANNEL_TP, "name", x)
 * is x itself, or a new ACTIVATION of n times the rows. Where the caller brings the output, it gets a copy. */
struct tensor emit_all_gather(struct emitter *e, enum channel channel, enum buffer_kind kind, const char *name,
                              struct tensor in);
struct tensor emit_reduce_scatter(struct emitter *e, enum channel channel, enum buffer_kind kind, const char *name,
                                  struct tensor in);
void emit_all_reduce(struct emitter *e, enum channel channel, struct tensor data);
void emit_all_to_all(struct emitter *e, enum channel channel, struct tensor out, struct tensor in);
/* Rows of in to the ranks of the group by send_counts; expected: how many, for the cost model. */
void emit_all_to_all_v(struct emitter *e, enum channel channel, struct tensor out, struct tensor receive_counts,
                       struct tensor in, struct tensor send_counts, int64_t expected);
void emit_shift(struct emitter *e, enum channel channel, struct tensor out, struct tensor in, int distance);
void emit_send(struct emitter *e, enum channel channel, int peer, struct tensor t);
void emit_recv(struct emitter *e, enum channel channel, int peer, struct tensor t);

/* --- for those who write actions again ---------------------------------------------------------------------------- */
/* One more buffer like this one; -1: no memory. */
int emit_buffer_like(struct emitter *e, int buffer);
/* One more action like this one, without its operands; NULL: no memory. */
struct action *emit_action_like(struct emitter *e, int index);
void emit_operand_like(struct emitter *e, struct operand o);

#endif
