/* SPDX-License-Identifier: Apache-2.0 */
/* emit.h - writing a program: tensors that are views of buffers, and operations on them.
 *
 * Shapes are checked as operations are written. A mismatch is a bug of the caller and aborts with both shapes. Only a
 * lack of memory can fail at run time. The first failure sticks in emitter.status; later calls do nothing.
 *
 * A tensor is a matrix (rows, cols) of a buffer with a row stride; vectors are (1, n) or (n, 1). Transfers need dense
 * tensors. */
#ifndef TITAN_WORKER_PROGRAM_EMIT_H
#define TITAN_WORKER_PROGRAM_EMIT_H

#include "worker/device/device.h"
#include "worker/program/program.h"

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
    enum stream_id stream; /* stream of device operations; a transfer's stream follows from its channel */
    int unit, stage, microbatch;
    struct action none; /* what emit_last() returns after a failure */
};

/* Opens an empty program of pp_rank. layout is borrowed for the program's life. */
titan_status emit_open(const struct layout *layout, int pp_rank, struct emitter *ret,
                       struct titan_error *err) TITAN_MUST_USE;

/* --- buffers and views -------------------------------------------------------------------------------------------- */
/* The buffer gets unit and microbatch of `e`. */
int emit_buffer(struct emitter *e, enum buffer_kind kind, const char *name, size_t bytes);
struct tensor emit_tensor(struct emitter *e, enum buffer_kind kind, const char *name, enum dtype dt, int64_t rows,
                          int64_t cols);
/* A dense matrix that begins at byte `offset` of the buffer. */
struct tensor tensor_at(int buffer, size_t offset, enum dtype dt, int64_t rows, int64_t cols);
struct tensor tensor_rows(struct tensor t, int64_t from, int64_t count);
struct tensor tensor_cols(struct tensor t, int64_t from, int64_t count);
/* The same elements in other rows and columns. t must be dense. */
struct tensor tensor_reshape(struct tensor t, int64_t rows, int64_t cols);
static inline bool tensor_exists(struct tensor t)
{
    return t.buffer >= 0;
}
static inline int64_t tensor_numel(struct tensor t)
{
    return t.rows * t.cols;
}

/* Bytes from the first to the last element. */
size_t tensor_span(struct tensor t);

/* --- any operation ------------------------------------------------------------------------------------------------ */
/* EMIT(e, swiglu, out, gate, up) appends an operation of ops.def. Operands come in their order or by name (.gate = x);
 * TENSOR_NONE leaves one out. After them come the GIVEN numbers, REALs and FLAGS of the operation's row, in the row's
 * order. */
#define EMIT(e, name, ...) emit_op_##name(e, &(const struct emit_##name){__VA_ARGS__})
#define OP(NAME, name, class, type, flops, numbers, operands, ...)                                                     \
    struct emit_##name {                                                                                               \
        operands numbers                                                                                               \
    };                                                                                                                 \
    void emit_op_##name(struct emitter *e, const struct emit_##name *x);
#define OP_BY_HAND(...)
#define OPERAND(name, ...) struct tensor name;
#define GIVEN(name) int64_t name;
#define REAL(name) double name;
#define FLAGS uint32_t flags;
#include "worker/program/ops.def"

/* Appends an action, unchecked. emit_operand() then adds its operands. params NULL: no numbers. */
void emit_action(struct emitter *e, enum op op, const struct op_params *params);
void emit_operand(struct emitter *e, struct tensor t, enum access access);
/* The last action. Use it to change what emit_action() stamped. */
struct action *emit_last(struct emitter *e);

/* --- operations with writers by hand; outputs first --------------------------------------------------------------- */
/* Which query sees which key. Without these tensors, attention is causal within each of b sequences. */
struct attention_mask {
    struct tensor index, start, key_index;
};
struct attention_heads {
    int64_t b; /* sequences; 1 when masked */
    int64_t h, kv, d, dv;
    double scale;   /* factor of the scores; 0: 1/sqrt(d) */
    double softcap; /* as in device.h */
    enum attention_order order;
};
/* out and lse from q, k and v. */
struct attention_tensors {
    struct tensor out, lse, q, k, v;
};
/* Gradients of q, k and v from dout, with scratch. */
struct attention_dtensors {
    struct tensor dq, dk, dv, dout, work;
};
void emit_attention(struct emitter *e, const struct attention_tensors *t, const struct attention_heads *heads,
                    const struct attention_mask *mask);
void emit_attention_dgrad(struct emitter *e, const struct attention_dtensors *d, const struct attention_tensors *t,
                          const struct attention_heads *heads, const struct attention_mask *mask);
/* COPY, or COPY_2D if strided; dst may have a multiple of src's rows (device.h: repeat). */
void emit_copy(struct emitter *e, struct tensor dst, struct tensor src);
/* PACK: cuts n gradients, each of a whole unit, into slices for `owners` owners. */
void emit_pack(struct emitter *e, struct tensor slices, const struct tensor *gradients, int n, int64_t owners);
/* OPTIMISE: state, shard and gradient of each of n units, OP_PARTS at most. */
void emit_optimise(struct emitter *e, const struct tensor (*units)[UPDATE_OPERANDS], int n);

/* --- transfers: on the stream of their channel -------------------------------------------------------------------- */
/* In a group of one member, emit_all_gather() writes nothing and returns its input. So callers need no branch:
 *   y = emit_all_gather(e, CHANNEL_TP, BUF_ACTIVATION, "name", x)
 * In a group of n members y is a new buffer of the given kind with n times the rows. emit_reduce_scatter() works the
 * same way. emit_all_to_all() and emit_shift() get the output from the caller. In a group of one member they copy the
 * input to the output. */
struct tensor emit_all_gather(struct emitter *e, enum channel channel, enum buffer_kind kind, const char *name,
                              struct tensor in);
/* Gathers two tensors in one launch, as bytes, into the caller's outputs. The group has several members. */
void emit_all_gather_both(struct emitter *e, enum channel channel, struct tensor out, struct tensor in,
                          struct tensor second_out, struct tensor second_in);
struct tensor emit_reduce_scatter(struct emitter *e, enum channel channel, enum buffer_kind kind, const char *name,
                                  struct tensor in);
void emit_all_reduce(struct emitter *e, enum channel channel, struct tensor data);
void emit_all_to_all(struct emitter *e, enum channel channel, struct tensor out, struct tensor in);
/* Rows that come from the ranks of a group, or go to them, and the number of rows for each rank. */
struct counted_rows {
    struct tensor rows, counts;
};
/* Sends rows of `in` to the ranks of the group. expected: number of rows, for the cost model. */
void emit_all_to_all_v(struct emitter *e, enum channel channel, struct counted_rows out, struct counted_rows in,
                       int64_t expected);
/* TO_OWNERS and FROM_OWNERS of the unit of the stamp, also in a group of one. */
void emit_to_owners(struct emitter *e, struct tensor values, struct tensor cut_parts, struct tensor gradient,
                    bool masters);
void emit_from_owners(struct emitter *e, struct tensor gradient, struct tensor cut_parts, struct tensor values);
void emit_shift(struct emitter *e, enum channel channel, struct tensor out, struct tensor in, int distance);
/* ROTATE: a shift by 1 in place, piece by piece through scratch. The group has several members. */
void emit_rotate(struct emitter *e, enum channel channel, struct tensor data);
void emit_send(struct emitter *e, enum channel channel, int peer, struct tensor t);
void emit_recv(struct emitter *e, enum channel channel, int peer, struct tensor t);

/* --- to write actions again --------------------------------------------------------------------------------------- */
/* Appends a buffer like `buffer`. -1: no memory. */
int emit_buffer_like(struct emitter *e, int buffer);
/* Appends an action like action `index`, without its operands. NULL: no memory. */
struct action *emit_action_like(struct emitter *e, int index);
void emit_operand_like(struct emitter *e, struct operand o);

#endif
