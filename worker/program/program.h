/* SPDX-License-Identifier: Apache-2.0 */
/* program.h - one training step of one rank as data: operations over buffers.
 *
 * The host issues the actions in array order. Each action is enqueued on its stream and runs in that stream's order.
 * Actions of different streams are ordered only by the declared waits. A buffer is memory with a lifetime, from the
 * first to the last action that touches it. Buffers of the arena share memory when their lifetimes do not overlap.
 * External buffers do not belong to the program: the training state, tables, data from the host.
 *
 * Ranks of one program class have the same program. They have the same pp coordinate and the same number of
 * microbatches (canonical: the same microbatches). Nothing in the program depends on the other coordinates. What
 * depends on them comes from the executor: which samples, which rows of the vocabulary, and where this rank's numbers
 * stand in the statistics.
 *
 * The model (model/block.h) and the builder (build.h) write programs through emit.h. Passes change them, check.h proves
 * the programs of all classes, exec/ executes them. */
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

/* What a part of the step is for. Timelines and the measured bubble use the phase. */
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
    X(SHARD, true, MEMORY_PARAMETERS) /* this rank's range of a unit, in the compute type; gathers send this buffer */ \
    X(STATE, true, MEMORY_OPTIMIZER)  /* masters and moments of the same range */                                      \
    X(STATE_HOST, true, MEMORY_HOST)  /* STATE in host memory (offload) */                                             \
    X(TABLE, true, MEMORY_BUFFERS)    /* static: see enum table */                                                     \
    X(BIAS, true, MEMORY_BUFFERS)     /* expert biases of a unit */                                                    \
    X(OUTPUT, true, MEMORY_BUFFERS)   /* results for a caller without a training state: logits, losses */              \
    X(FULL, false, MEMORY_PARAMETERS)                                                                                  \
    X(TOKENS, false, MEMORY_BUFFERS)                                                                                   \
    X(ACTIVATION, false, MEMORY_ACTIVATIONS)                                                                           \
    X(DACTIVATION, false, MEMORY_ACTIVATIONS) /* gradient of an ACTIVATION */                                          \
    X(GRAD, false, MEMORY_GRADIENTS)                                                                                   \
    X(GRAD_SHARD, false, MEMORY_GRADIENTS)                                                                             \
    X(EXPERT_TOKENS, false, MEMORY_BUFFERS) /* how often this rank's tokens chose each expert of a unit in a step */   \
    X(WORK, false, MEMORY_BUFFERS)                                                                                     \
    X(EXCHANGE, false, MEMORY_BUFFERS)                                                                                 \
    X(STATISTICS, false, MEMORY_BUFFERS)                                                                               \
    X(OWNED, true, MEMORY_OPTIMIZER) /* state of the matrices that this rank owns (tensor/owners.h) */                 \
    X(OWNED_HOST, true, MEMORY_HOST) /* OWNED in host memory (offload) */                                              \
    X(ERROR, true, MEMORY_OPTIMIZER) /* what codes of this rank's gradient of a unit have lost (base/codecs.h) */      \
    X(REPLICA_ERROR, true, MEMORY_OPTIMIZER) /* what codes between replicas have lost (layout_replica_error_bytes) */

enum buffer_kind {
#define X(name, external, memory) BUF_##name,
    BUFFER_KINDS(X)
#undef X
        BUF_COUNT
};

/* A TABLE's buffer.unit is one of these. */
enum table {
    TABLE_COS, /* (positions, D/2) */
    TABLE_SIN,
    TABLE_KEYS_GATHERED, /* index of the keys of all cp ranks, in rank order: (cp*N) int32 */
    TABLE_KEYS_RING,     /* the same keys in ring order: this rank's first, then the previous rank's, and so on */
    TABLE_COS_LOCAL,     /* TABLE_COS of layers with a window (rope_local_theta) */
    TABLE_SIN_LOCAL,
    TABLE_POWERS, /* fp32: 2^(i - POWERS_ZERO), i below POWERS: the static scales of float8 products */
    TABLE_COUNT
};
#define POWERS 128
#define POWERS_ZERO 63

/* A point-to-point channel has a stream for each direction, so that sends and receives do not wait for each other. */
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

/* Part of a buffer. The part of a strided view reaches from its first to its last element. */
struct operand {
    int buffer;
    uint32_t access;
    size_t offset, bytes;
};

struct action {
    uint16_t op;
    uint8_t stream, phase;
    int8_t channel;  /* collectives, SEND, RECV; -1 none */
    bool signal;     /* an action on another stream waits for this action */
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
    int64_t from;  /* element of its unit's flat buffer that a FULL or a GRAD begins with: a travelling part's first */
    size_t offset; /* offset in the arena; external buffers have none */
    int first, last; /* first and last action that touch it; -1: none */
};

/* Canonical summation across ranks. The additions run in array order: received slice `left` += received slice `right`.
 * At the end, slice `root` is the sum. */
struct tree_add {
    int left, right;
};
struct tree_sum {
    int slices; /* most slices that a rank sends to each owner */
    int n, cap;
    struct tree_add *adds;
    int root;
};

/* A step's statistics: doubles, all-reduced over the world. A number comes from one rank, or from several ranks where
 * it is a sum. All other ranks add zero. The layout is the same on all ranks.
 *   losses [cp][microbatches]  sums over a microbatch's tokens on one cp rank
 *   counts [cp][microbatches]  number of counted tokens
 *   commands [STATISTICS_COMMANDS]  bits: commands that any rank was given or reports (worker/epoch/due.h)
 *   values [world][STATISTICS_VALUES]  what each rank reports of its step so far; from STATISTICS_SAID on, the
 *                              numbers that EXPERT_ROUNDS adds
 *   masters [units]            sums of squares of the masters before the step; 0 where not asked for
 *   checks [units]             not finite where the unit's input was not finite
 *   norms                      canonical: block sums [unit][parts of the unit, see layout.h][blocks of the unit];
 *                              otherwise [unit]
 *   mtp [cp][microbatches]     with model.mtp_layers: sums over a microbatch's tokens and all modules on one cp rank
 *   balance [microbatches]     with model.balance_loss: a sequence's balance loss times its tokens that count, as a sum
 *                              over the sequences, all layers with experts, and pp ranks
 *   drops [layers with experts] rows that experts had no room for; a sum over ranks
 *   expert_tokens              at layout_bias_offset: how often each expert was chosen; a sum over ranks
 *   scales [tensors]           with scales_every > 1: this step's scales of weights, a unit's from its first tensor
 *                              on, in order; from one rank of each pp rank */
#define STATISTICS_COMMANDS 4
/* Times are in milliseconds. A rank's step begins when the rank leaves the agreement of the previous step.
 * STATISTICS_WAITED is NaN if it was not measured. */
enum statistics_value {
    STATISTICS_ARRIVED,    /* from the step's begin until the rank came to the agreement */
    STATISTICS_WAITED,     /* the part of STATISTICS_ARRIVED spent on transfers, and so on waiting for other ranks */
    STATISTICS_DATA,       /* part spent on samples */
    STATISTICS_CHECKPOINT, /* part spent on checkpoints */
    STATISTICS_MEMORY,     /* bytes: the rank's peak since its epoch began; 0: not known */
    STATISTICS_SAID,
    STATISTICS_ROUNDS = STATISTICS_SAID, /* experts' rounds after the first round of each layer and microbatch */
    STATISTICS_ROWS, /* most rows that this rank's experts got in one layer and microbatch; 0: not counted */
    STATISTICS_VALUES
};
struct step_statistics {
    int64_t microbatches; /* of the global batch */
    int world, cp, units;
    bool canonical;
    int64_t losses, counts, commands, values, masters, checks, norms, mtp, balance, drops, expert_tokens,
        scales; /* first index of each */
    int64_t size;
    int64_t sums; /* of tensors, which COMMIT adds up behind the statistics; 0: the step has no direction section */
};

struct program {
    /* --- which ranks it is for */
    int pp_rank;
    int64_t share;     /* microbatches of the program's data-parallel rank; slots 0..share-1 */
    int64_t share_max; /* largest share of any rank */
    int64_t rows_even; /* rows of a microbatch that one rank's experts get in an even share; 0: no experts */
    struct mesh mesh;
    const struct layout *layout; /* borrowed */
    struct step_statistics statistics;
    bool forward_only; /* an evaluation's program: no gradients, no change of the state */
    bool canonical;
    int64_t scales_every; /* steps between two looks for weights' static scales; at most 1: scales are not held */
    struct tree_sum sum, sum_experts; /* sum of a unit's slices; sum of experts' slices */

    /* --- the step */
    int n_actions, n_buffers, n_operands, n_params, n_waits;
    int cap_actions, cap_buffers, cap_operands, cap_params, cap_waits;
    struct action *actions;
    struct buffer *buffers;
    struct operand *operands;
    struct op_params *params; /* each distinct value once */
    int *waits;
    void *params_index; /* private to emit.c */
    size_t arena_bytes;
    uint32_t streams, channels; /* bits of the streams and channels in use */
};

const char *phase_name(enum phase phase);
const char *buffer_kind_name(enum buffer_kind kind);
bool buffer_is_external(enum buffer_kind kind);
enum memory_kind buffer_memory(enum buffer_kind kind);
const char *memory_kind_name(enum memory_kind kind);
const char *program_stream_name(enum stream_id stream);
/* Bytes this rank hands to the communicator. */
size_t action_sent_bytes(const struct program *p, const struct action *a);
/* Bytes that leave this rank, where collectives go round a ring (Thakur et al. 2005). The rank's part for itself is not
 * counted. Data that the rank passes on for others is counted. 0 in a group of one. */
double action_wire_bytes(const struct program *p, const struct action *a);

/* Hash of the places in the arena that collectives read or write. */
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
/* Numbers of a step that ranks agree on: the statistics, then the sums of tensors. */
static inline int64_t statistics_all(const struct step_statistics *r)
{
    return r->size + r->sums;
}
/* held: there are scales. */
void statistics_init(struct step_statistics *ret, const struct layout *layout, int64_t microbatches, bool canonical,
                     bool held);
/* How many of the norms' numbers belong to a unit. */
int64_t statistics_norms(const struct step_statistics *statistics, const struct layout *layout, int unit);

void program_close(struct program *p); /* NULL is fine */
/* Fills lifetimes, places the arena, derives waits and signals. Call it when all actions are written, and again after a
 * pass. Waits follow from the parts of buffers that actions touch and from memory that is used again. Time is
 * near-linear in actions: 10^6 actions take a few seconds. */
titan_status program_finish(struct program *p, struct titan_error *err) TITAN_MUST_USE;
/* Fills lifetimes only. Returns the largest number of bytes of arena buffers that are alive at once. This is a lower
 * bound of arena_bytes, found without a placement. ret_by_kind (MEMORY_COUNT; NULL is fine): these bytes by kind.
 * *ret_action: the action at which they are alive. */
size_t program_peak(struct program *p, size_t *ret_by_kind, int *ret_action);
/* Index of the first action that cannot end on this rank before every other rank has begun the same step. Such an
 * action is a collective of all ranks, AGREE at the latest. -1: the rank is alone. */
int program_sync_point(const struct program *p);
/* A gradient shard: its last writing action, and the NORM that reads it. codes: buffer of the codes that the shard is
 * the sum of, if the writer is a DECODE_SUM and the codes are kept up to AGREE; -1: there are none. */
struct final {
    int writer, norm, codes;
};
/* The gradient shards of a step, in the order in which they become final. Owned (free). Shards of units whose matrices
 * have owners become final with FROM_OWNERS, behind AGREE. */
titan_status program_finals(const struct program *p, struct final **ret, int *ret_n,
                            struct titan_error *err) TITAN_MUST_USE;
/* How the codes of a final gradient are summed; without addresses. */
struct decode_sum_args program_codes(const struct program *p, const struct final *f);
/* Hash of the actions with their operands, streams and order: programs with the same hash do the same. The hash leaves
 * out sizes of scratch, which depend on the device and its threads. It leaves out places in the arena and waits, which
 * follow from the rest. The canonical sums (sum, sum_experts) and the layout follow from the recipe and are left out,
 * too. */
uint64_t program_hash(const struct program *p);
/* Prints one line for each action. */
void program_print(const struct program *p, struct buf *out);
/* An action's numbers, each with a blank before it. */
void program_print_params(const struct program *p, const struct action *a, struct buf *out);

#endif
