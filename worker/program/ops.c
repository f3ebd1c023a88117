/* SPDX-License-Identifier: Apache-2.0 */
/* ops.c - functions that tell what ops.def has about any operation. */
#include "worker/program/ops.h"

#include "base/cleanup.h"

static const struct {
    const char *name, *numbers;
    enum op_class class;
    int words;
} infos[OP_COUNT] = {
#define OP(NAME, name, class, type, flops, numbers, ...)                                                               \
    {#NAME, numbers "", OP_CLASS_##class, sizeof(struct op_##name) / sizeof(int64_t)},
#define NUM(name, ...) #name " "
#define GIVEN(name) #name " "
#include "worker/program/ops.def"
};

#define OP(NAME, name, ...)                                                                                            \
    _Static_assert(sizeof(struct op_##name) <= sizeof(int64_t[OP_WORDS]), #NAME " has more numbers than there is "     \
                                                                                "room");
#include "worker/program/ops.def"

const char *op_name(enum op op)
{
    return op < OP_COUNT ? infos[op].name : "?";
}

enum op_class op_class(enum op op)
{
    titan_assert(op < OP_COUNT);
    return infos[op].class;
}

bool op_is_collective(enum op op)
{
    return op < OP_COUNT && infos[op].class == OP_CLASS_COLLECTIVE;
}

bool op_is_transfer(enum op op)
{
    return op_is_collective(op) || op == OP_SEND || op == OP_RECV;
}

const char *op_numbers(enum op op)
{
    titan_assert(op < OP_COUNT);
    return op == OP_ALL_GATHER || op == OP_REDUCE_SCATTER || op == OP_ALL_REDUCE ? NULL : infos[op].numbers;
}

int op_words(enum op op)
{
    titan_assert(op < OP_COUNT);
    return infos[op].words;
}

bool op_params_same(enum op op, const struct op_params *a, const struct op_params *b)
{
    return a->flags == b->flags && a->dt == b->dt && a->dt2 == b->dt2 &&
           memcmp(a->word, b->word, (size_t)op_words(op) * sizeof a->word[0]) == 0;
}

/* Declares an operation's numbers by their names. UNUSED, because not every expression reads every number. */
#define UNUSED __attribute__((unused))
#define BEGIN(name)                                                                                                    \
    const struct op_##name *const own UNUSED = &params->name;                                                          \
    const enum dtype dt UNUSED = (enum dtype)params->dt, dt2 UNUSED = (enum dtype)params->dt2;                         \
    const uint32_t flags UNUSED = params->flags;                                                                       \
    const bool ta UNUSED = flags & OP_TA, tb UNUSED = flags & OP_TB;                                                   \
    int most UNUSED = FORMS_MAX;

double op_flops(enum op op, const struct op_params *params)
{
    switch (op) {
#define OP(NAME, name, class, type, flops, numbers, ...)                                                               \
    case OP_##NAME: {                                                                                                  \
        BEGIN(name)                                                                                                    \
        numbers return flops;                                                                                          \
    }
#define NUM(name, ...) const int64_t name UNUSED = own->name;
#define GIVEN(name) const int64_t name UNUSED = own->name;
#include "worker/program/ops.def"
    default:
        return 0;
    }
}

int op_forms(enum op op, const struct op_params *params, int members, int given, struct operand_form ret[FORMS_MAX])
{
    int count = 0;

    titan_assert(members >= 1 && given >= 0);
    switch (op) {
#define OP(NAME, name, class, type, flops, numbers, operands, run)                                                     \
    case OP_##NAME: {                                                                                                  \
        BEGIN(name)                                                                                                    \
        numbers operands break;                                                                                        \
    }
#define NUM(name, ...) const int64_t name UNUSED = own->name;
#define GIVEN(name) const int64_t name UNUSED = own->name;
#define PART                                                                                                           \
    const int64_t *const part = own->part;                                                                             \
    most = OP_PARTS;
#define OPERAND(called, how, when, type, ...)                                                                          \
    if (when) {                                                                                                        \
        if (count < FORMS_MAX)                                                                                         \
            ret[count] = (struct operand_form){.name = #called, .access = how, .dt = type, __VA_ARGS__};               \
        count++;                                                                                                       \
    }
#define MORE_OPERANDS (count < given)
#define EACH(...)                                                                                                      \
    for (int k UNUSED = 0; count < given && count < FORMS_MAX && k < most; k++) {                                      \
        __VA_ARGS__                                                                                                    \
    }
#define DENSE(r, c) .shape = FORM_DENSE, .rows = (r), .cols = (c), .ld = (c)
#define STRIDED(r, c, l) .shape = FORM_STRIDED, .rows = (r), .cols = (c), .ld = (l)
#define VECTOR(elements) .shape = FORM_VECTOR, .rows = 1, .cols = (elements), .ld = (elements)
#define BYTES(bytes) .shape = FORM_BYTES, .rows = 1, .cols = (bytes), .ld = (bytes)
#define ROWS(c) .shape = FORM_ROWS, .cols = (c), .ld = (c)
#define WHOLE .shape = FORM_WHOLE
#define STATISTICS .shape = FORM_STATISTICS
#include "worker/program/ops.def"
    default:
        break;
    }
    return count;
}

size_t form_bytes(const struct operand_form *form)
{
    if (form->shape > FORM_BYTES)
        return SIZE_MAX;
    if (form->rows == 0 || form->cols == 0)
        return 0;
    return (size_t)((form->rows - 1) * form->ld + form->cols) *
           (form->shape == FORM_BYTES ? 1 : dtype_bytes((enum dtype)form->dt));
}
