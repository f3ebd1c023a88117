/* SPDX-License-Identifier: Apache-2.0 */
/* ops.h - the operations of a step program, as ops.def states them: numbers, operands, costs. */
#ifndef TITAN_WORKER_PROGRAM_OPS_H
#define TITAN_WORKER_PROGRAM_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/device/device.h"
#include "worker/tensor/sequence.h"

enum op {
#define OP(NAME, ...) OP_##NAME,
#include "worker/program/ops.def"
    OP_COUNT
};

/* What an operation's time depends on. The last two classes involve other ranks. */
enum op_class {
    OP_CLASS_MEMORY,    /* the bytes that it touches */
    OP_CLASS_PRODUCT,   /* flops of matrix products, at their efficiency */
    OP_CLASS_ATTENTION, /* flops of attention */
    OP_CLASS_FROM_HOST, /* bytes that come from the host */
    OP_CLASS_NO_TIME,
    OP_CLASS_COLLECTIVE, /* every member of the channel's group takes part */
    OP_CLASS_MESSAGE     /* two ranks */
};

enum op_flag {
    OP_TA = 1, /* a of a product is transposed */
    OP_TB = 2,
    OP_ADD_TO = 4, /* the result is added to the first operand */
    OP_F32 = 8,    /* the result is fp32, whatever the operands are */
    OP_BACKWARD = 16,
    OP_MASKED = 32,
    OP_NO_GRADIENT = 64,
    OP_SIGMOID = 128,
    OP_NORMALIZE = 256,
    OP_ANY_ORDER = 512, /* attention_order of device.h: any; OP_REPEATABLE: repeatable; neither: fixed */
    OP_F8 = 1024, /* a product's operands become float8: e4m3 with one scale each, unless other flags change this */
    OP_F8_A_E5M2 = 2048,
    OP_F8_A_LINES = 4096, /* a scale for each line along k */
    OP_F8_B_LINES = 8192,
    OP_F8_POWER = 16384, /* scales are powers of two */
    OP_REPEATABLE = 32768,
    OP_F8_B_CODES = 65536,   /* b is e4m3 codes with one scale, which is an operand */
    OP_ROUND_ROBIN = 131072, /* ROUTE: experts are chosen in turn, whatever the scores */
    OP_BY_RANK = 262144,     /* rows for experts stay apart by the rank that sent them */
    OP_F8_BLOCKS = 524288,   /* MXFP8: a scale for each block of a line along k */
    OP_BIASED = 1048576,     /* ROUTE: experts have biases */
    OP_KEEP = 2097152,       /* COMBINE_ROWS: rows to which nothing is added stay as they are */
    OP_OFFSET = 4194304,     /* norms: a stored gain is the gain minus 1 */
    OP_GELU = 8388608,       /* SWIGLU: GELU in place of SiLU */
    OP_F8_GIVEN = 16777216,  /* the scales of a and b are operands: no pass looks for the largest magnitudes */
    OP_I8 = 33554432,        /* a product's operands become int8: a scale for each row of a, and one for b */
    OP_I8_B_LINES = 67108864 /* a scale for each column of b */
};

static inline enum attention_order op_attention_order(uint32_t flags)
{
    return flags & OP_ANY_ORDER ? ATTENTION_ANY : flags & OP_REPEATABLE ? ATTENTION_REPEATABLE : ATTENTION_FIXED;
}

/* Each operation's numbers: struct op_matmul {M, N, K, lda, ldb, ldc}. */
#define OP_WORDS 17
#define OP_PARTS 16 /* most parts of a bucket */
#define OP(NAME, name, class, type, flops, numbers, ...)                                                               \
    struct op_##name {                                                                                                 \
        numbers                                                                                                        \
    };
#define NUM(name, ...) int64_t name;
#define GIVEN(name) int64_t name;
#define REAL(name) double name;
#define PART int64_t part[OP_PARTS];
#include "worker/program/ops.def"

struct op_params {
    union {
        int64_t word[OP_WORDS]; /* any operation's numbers, to compare or print them */
        int64_t part[OP_PARTS]; /* ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE */
#define OP(NAME, name, ...) struct op_##name name;
#include "worker/program/ops.def"
    };
    uint32_t flags;
    uint8_t dt, dt2; /* dt: type of the data; dt2: type of the other side of a CAST */
};

/* Index of an operand by its name: OPERAND_OF(matmul, a) is 1. It is right only for operands before the first optional
 * operand. */
#define OP(NAME, name, class, type, flops, numbers, operands, ...)                                                     \
    struct op_##name##_operands {                                                                                      \
        operands                                                                                                       \
    };
#define OPERAND(name, ...) char name;
#define EACH(...) __VA_ARGS__
#include "worker/program/ops.def"
#define OPERAND_OF(op, name) ((int)offsetof(struct op_##op##_operands, name))
#define UPDATE_OPERANDS 3 /* operands of OPTIMISE for each unit */

const char *op_name(enum op op);
enum op_class op_class(enum op op);
bool op_is_collective(enum op op);
bool op_is_transfer(enum op op); /* collective, SEND or RECV */
/* Is the operation a sum over the world, at which ranks agree? */
static inline bool op_is_agreement(enum op op)
{
    return op == OP_AGREE || op == OP_COMMIT;
}
/* Names of an operation's numbers in the order of op_params.word, each followed by a blank. NULL: the operation has
 * parts instead of named numbers. */
const char *op_numbers(enum op op);
/* How many words of op_params the operation uses. */
int op_words(enum op op);
/* Do two actions of operation `op` have the same flags, types and words? */
bool op_params_same(enum op op, const struct op_params *a, const struct op_params *b);
/* FLOPs of a product or of attention; 0 for others. Causal attention counts the visible half. */
double op_flops(enum op op, const struct op_params *params);

enum access { ACCESS_READ = 1, ACCESS_WRITE = 2, ACCESS_UPDATE = 3 };

enum form_shape {
    FORM_DENSE,
    FORM_STRIDED,
    FORM_VECTOR, /* rows is 1 */
    FORM_BYTES,  /* cols bytes */
    FORM_ROWS,   /* rows of cols elements, as many as the buffer has */
    FORM_WHOLE,  /* all of the buffer */
    FORM_STATISTICS
};
#define ANY_TYPE (-1)

/* What an operand must be, according to the operation's numbers. */
struct operand_form {
    const char *name;
    enum access access;
    int dt; /* or ANY_TYPE */
    enum form_shape shape;
    int64_t rows, cols, ld;
};

/* Fills in the forms of an operation's operands, the first FORMS_MAX of them. given: number of operands that the action
 * has; members: size of a collective's group. Returns how many operands the operation takes; this is `given` if the
 * action has the right number. */
#define FORMS_MAX 130 /* PACK has the most operands: twice the depth of a tree, plus one */
int op_forms(enum op op, const struct op_params *params, int members, int given, struct operand_form ret[FORMS_MAX]);
/* Bytes from a form's first to its last element. SIZE_MAX: unknown from the form's numbers. */
size_t form_bytes(const struct operand_form *form);

#endif
