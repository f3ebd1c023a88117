/* SPDX-License-Identifier: Apache-2.0 */
/* program.h - one training step of one rank as data: operations over buffers.
 *
 * The host issues the actions in array order. Each is enqueued on its stream and runs in that stream's order; between
 * streams only the declared waits hold. A buffer is memory with a lifetime: from the first action that touches it to
 * the last. Buffers of the arena share memory when their lifetimes do not meet; external ones belong to others (the
 * training state, tables, what comes from the host).
 *
 * Ranks of one program class - same pp coordinate, same number of microbatches - have the same program: nothing in it
 * depends on the other coordinates. What does (which samples, which rows of the vocabulary, where this rank's numbers
 * stand in the statistics) the executor fills in.
 *
 * Written through emit.h by the model (model/block.h) and the builder (build.h), changed by passes, proved by check.h
 * over all kinds, executed by exec/. */
#ifndef TITAN_WORKER_PROGRAM_PROGRAM_H
#define TITAN_WORKER_PROGRAM_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "worker/program/ops.h"
#include "worker/tensor/coded.h"
#include "worker/tensor/layout.h"
#include "worker/tensor/mesh.h"

/* What a part of the step is for: timelines and bubble go by it. */
enum phase { PHASE_FORWARD, PHASE_RECOMPUTE, PHASE_DGRAD, PHASE_WGRAD, PHASE_REDUCE, PHASE_UPDATE, PHASE_COUNT };

/* X(name, external, kind of memory in reports) */
enum memory_kind {
    MEMORY_PARAMETERS,
    MEMORY_GRADIENTS,
    MEMORY_OPTIMIZER,
    MEMORY_ACTIVATIONS,
    MEMORY_BUFFERS,
    MEMORY_HOST,
    MEMORY_COUNT
};
#define BUFFER_KINDS(X)                                                                                                \
    X(SHARD, true, MEMORY_PARAMETERS) /* a unit's own range in the compute type: what is gathered */                   \
    X(STATE, true, MEMORY_OPTIMIZER)  /* masters and moments of that range */                                          \
    X(STATE_HOST, true, MEMORY_HOST)  /* the same in host memory (offload) */                                          \
    X(TABLE, true, MEMORY_BUFFERS)    /* static: see enum table */                                                     \
    X(BIAS, true, MEMORY_BUFFERS)     /* expert biases of a unit */                                                    \
    X(OUTPUT, true, MEMORY_BUFFERS)   /* what a caller without a training state wants back: logits, losses */          \
    X(FULL, false, MEMORY_PARAMETERS)                                                                                  \
    X(TOKENS, false, MEMORY_BUFFERS)                                                                                   \
    X(ACTIVATION, false, MEMORY_ACTIVATIONS)                                                                           \
    X(DACTIVATION, false, MEMORY_ACTIVATIONS) /* gradient of one */                                                    \
    X(GRAD, false, MEMORY_GRADIENTS)                                                                                   \
    X(GRAD_SHARD, false, MEMORY_GRADIENTS)                                                                             \
    X(EXPERT_TOKENS, false, MEMORY_BUFFERS) /* how often this rank's tokens chose each expert of a unit in a step */   \
    X(WORK, false, MEMORY_BUFFERS)                                                                                     \
    X(EXCHANGE, false, MEMORY_BUFFERS)                                                                                 \
    X(STATISTICS, false, MEMORY_BUFFERS)

enum buffer_kind {
#define X(name, external, memory) BUF_##name,
    BUFFER_KINDS(X)
#undef X
        BUF_COUNT
};

/* A TABLE's unit says which. */
enum table {
    TABLE_COS, /* (positions, D/2) */
    TABLE_SIN,
    TABLE_KEYS_GATHERED, /* index of the keys of all cp ranks, in rank order: (cp*N) int32 */
    TABLE_KEYS_RING,     /* the same, this rank's first, then of the rank before it, and so on */
    TABLE_COS_LOCAL,     /* as the first two, of layers with a window (rope_local_theta) */
    TABLE_SIN_LOCAL,
    TABLE_COUNT
};

/* A point-to-point channel has a stream for each direction, so that neither waits behind the other. */
enum stream_id {
    STREAM_COMPUTE,
    STREAM_GATHER,
    STREAM_REDUCE,
    STREAM_TENSOR, /* tp, cp and ep collectives */
    STREAM_COPY,   /* host memory */
    STREAM_SEND,   /* one for each point-to-point channel, CHANNEL_FORWARD_NEXT first */
    STREAM_RECV = STREAM_SEND + CHANNEL_COUNT - CHANNEL_FORWARD_NEXT,
    STREAM_COUNT = STREAM_RECV + CHANNEL_COUNT - CHANNEL_FORWARD_NEXT
};

/* Part of a buffer. A strided view covers from its first to its last element. */
struct operand {
    int buffer;
    uint32_t access;
    size_t offset, bytes;
};

struct action {
    uint16_t op;
    uint8_t stream, phase;
    int8_t channel;  /* collectives, SEND, RECV; -1 none */
    bool signal;     /* an action on another stream waits for it */
    int16_t peer;    /* SEND, RECV: pp rank */
    int unit, stage; /* -1 where none */
    int microbatch;  /* slot in this rank's share, -1 where none */
    int params;      /* index into program.params */
    int operand, n_operands;
    int wait, n_waits; /* index into program.waits: actions of other streams that must have run */
};

struct buffer {
    enum buffer_kind kind;
    const char *name; /* static */
    int unit;         /* or table; -1 where none */
    int microbatch;   /* slot; -1 where none */
    size_t bytes;
    size_t offset;   /* in the arena; not for external ones */
    int first, last; /* actions between which it lives; -1: untouched */
};

/* Canonical summation across ranks: slice left += slice right of what was received, in this order; the sum is in root.
 */
struct tree_add {
    int left, right;
};
struct tree_sum {
    int slices; /* that a rank sends to each owner, at most */
    int n, cap;
    struct tree_add *adds;
    int root;
};

/* A step's statistics: doubles, all-reduced over the world; each number is contributed by one rank (or by several,
 * where it is a sum), the others add zero. Their layout is the same on all ranks.
 *   losses [cp][microbatches]  sums over a microbatch's tokens on one cp rank
 *   counts [cp][microbatches]  tokens counted
 *   commands [STATISTICS_COMMANDS]  bits that any rank was given, or says (worker/epoch/due.h)
 *   values [world][STATISTICS_VALUES]  what each rank says of its step so far; from STATISTICS_SAID on what
 *                              EXPERT_ROUNDS says
 *   masters [units]            squares of the masters, as the step found them; 0 where they were not asked for
 *   checks [units]             not finite where the input of a unit was not
 *   norms                      canonical: block sums [unit][parts of the unit, see layout.h][blocks of the unit];
 *                              otherwise [unit]
 *   mtp [cp][microbatches]     with model.mtp_layers: sums over a microbatch's tokens and all modules on one cp rank
 *   balance [microbatches]     with model.balance_loss: of all layers with experts, balance losses times the tokens of
 *                              their sequences that count; a sum over pp ranks
 *   drops [layers with experts] rows that experts had no room for; a sum over ranks
 *   expert_tokens              at layout_bias_offset: how often each expert was chosen; a sum over ranks */
#define STATISTICS_COMMANDS 4
/* A rank's step begins where it leaves the agreement of the one before. Milliseconds; STATISTICS_WAITED is NaN where it
 * was not measured. */
enum statistics_value {
    STATISTICS_ARRIVED,    /* until it came to the agreement */
    STATISTICS_WAITED,     /* of it for transfers, and with them for other ranks */
    STATISTICS_DATA,       /* of it for samples */
    STATISTICS_CHECKPOINT, /* of it for checkpoints */
    STATISTICS_MEMORY,     /* bytes: the most that it has had since its epoch began; 0: not known */
    STATISTICS_SAID,
    STATISTICS_ROUNDS = STATISTICS_SAID, /* of experts, behind the first of each layer and microbatch */
    STATISTICS_ROWS,                     /* the most that its experts got of a layer and microbatch; 0: not counted */
    STATISTICS_VALUES
};
struct step_statistics {
    int64_t microbatches; /* of the global batch */
    int world, cp, units;
    bool canonical;
    int64_t losses, counts, commands, values, masters, checks, norms, mtp, balance, drops,
        expert_tokens; /* first index of each */
    int64_t size;
};

struct program {
    /* --- which ranks it is for */
    int pp_rank;
    int64_t share;     /* microbatches of its data-parallel rank; slots 0..share-1 */
    int64_t share_max; /* largest share of any */
    int64_t rows_even; /* of a microbatch, for a rank's experts: the even share; 0: there are no experts */
    struct mesh mesh;
    const struct layout *layout; /* borrowed */
    struct step_statistics statistics;
    bool forward_only; /* an evaluation's: no gradients, and nothing of the state changes */
    bool canonical;
    struct tree_sum sum, sum_experts; /* of units' slices, and of experts' */

    /* --- the step */
    int n_actions, n_buffers, n_operands, n_params, n_waits;
    int cap_actions, cap_buffers, cap_operands, cap_params, cap_waits;
    struct action *actions;
    struct buffer *buffers;
    struct operand *operands;
    struct op_params *params; /* each distinct one once */
    int *waits;
    void *params_index; /* private to emit.c */
    size_t arena_bytes;
    uint32_t streams, channels; /* bits: those it uses */
};

const char *phase_name(enum phase phase);
const char *buffer_kind_name(enum buffer_kind kind);
bool buffer_is_external(enum buffer_kind kind);
enum memory_kind buffer_memory(enum buffer_kind kind);
const char *memory_kind_name(enum memory_kind kind);
const char *program_stream_name(enum stream_id stream);
/* Bytes this rank hands to the communicator. */
size_t action_sent_bytes(const struct program *p, const struct action *a);
/* Bytes of them that leave it, where collectives go round a ring: what it has for itself stays, what is gathered or
 * summed for others passes on (Thakur et al. 2005). 0 in a group of one. */
double action_wire_bytes(const struct program *p, const struct action *a);

/* Of where in the arena collectives read and write. */
uint64_t program_collectives_hash(const struct program *p);

static inline const struct operand *action_operands(const struct program *p, const struct action *a)
{
    return p->operands + a->operand;
}
static inline const struct op_params *action_params(const struct program *p, const struct action *a)
{
    return p->params + a->params;
}

const struct tree_sum *program_tree_sum(const struct program *p, int unit);
void statistics_init(struct step_statistics *ret, const struct layout *layout, int64_t microbatches, bool canonical);
/* Numbers a unit has among the norms. */
int64_t statistics_norms(const struct step_statistics *statistics, const struct layout *layout, int unit);

void program_close(struct program *p); /* NULL is fine */
/* Fill lifetimes, place the arena, derive waits and signals. Called when the actions stand, and again after a pass.
 * Waits are derived from the parts of buffers that are touched and from memory that is used again. Near-linear in
 * actions: 10^6 of them in a few seconds. */
titan_status program_finish(struct program *p, struct titan_error *err) TITAN_MUST_USE;
/* Lifetimes only, and the most bytes of arena buffers alive at once, by kind (MEMORY_COUNT; NULL is fine): a lower
 * bound of arena_bytes that needs no placement. *ret_action: where that is. */
size_t program_peak(struct program *p, size_t *ret_by_kind, int *ret_action);
/* The first action that cannot end here before every other rank has begun the same step: a collective of all of them,
 * AGREE at the latest. -1: the rank is alone. */
int program_sync_point(const struct program *p);
/* Over what it does, with what, on which stream and in which order: two programs with one hash do the same. Not of the
 * sizes of scratch, which depend on the device and its threads, nor of places in the arena and waits, which follow; nor
 * of the canonical sums (sum, sum_experts) and the layout, which follow from the recipe. */
uint64_t program_hash(const struct program *p);
/* One line an action. */
void program_print(const struct program *p, struct buf *out);
/* An action's numbers, each with a blank before it. */
void program_print_params(const struct program *p, const struct action *a, struct buf *out);

#endif
