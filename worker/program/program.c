/* SPDX-License-Identifier: Apache-2.0 */
/* program.c - names, lifetimes and the printed form of a step program. */
#include "worker/program/program.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "worker/program/arena_placement.h"
#include "worker/program/waits.h"

#define NONE (-1)

/* --- names -------------------------------------------------------------------------------------------------------- */

const char *phase_name(enum phase phase)
{
    static const char *const names[PHASE_COUNT] = {"forward", "recompute", "dgrad", "wgrad", "reduce", "update"};
    return phase < PHASE_COUNT ? names[phase] : "?";
}

static const struct {
    const char *name;
    bool external;
    enum memory_kind memory;
} buffer_kinds[BUF_COUNT] = {
#define X(name, external, memory) {#name, external, memory},
    BUFFER_KINDS(X)
#undef X
};

const char *buffer_kind_name(enum buffer_kind kind)
{
    return kind < BUF_COUNT ? buffer_kinds[kind].name : "?";
}

bool buffer_is_external(enum buffer_kind kind)
{
    titan_assert(kind < BUF_COUNT);
    return buffer_kinds[kind].external;
}

enum memory_kind buffer_memory(enum buffer_kind kind)
{
    titan_assert(kind < BUF_COUNT);
    return buffer_kinds[kind].memory;
}

const char *memory_kind_name(enum memory_kind kind)
{
    static const char *const names[MEMORY_COUNT] = {"parameters",  "gradients", "optimizer",
                                                    "activations", "buffers",   "host"};
    return kind < MEMORY_COUNT ? names[kind] : "?";
}

const char *program_stream_name(enum stream_id stream)
{
    static const char *const names[STREAM_COUNT] = {"compute",       "gather",        "reduce",        "tensor",
                                                    "copy",          "send_fwd_next", "send_fwd_prev", "send_bwd_next",
                                                    "send_bwd_prev", "recv_fwd_next", "recv_fwd_prev", "recv_bwd_next",
                                                    "recv_bwd_prev"};
    return stream < STREAM_COUNT ? names[stream] : "?";
}

size_t action_sent_bytes(const struct program *p, const struct action *a)
{
    const struct operand *o = action_operands(p, a);
    size_t bytes = 0;

    if (!op_is_transfer((enum op)a->op))
        return 0;
    if (a->op == OP_ALL_TO_ALL_V) { /* an operand has room for more than is sent; the counts are not sent */
        const struct op_all_to_all_v *v = &action_params(p, a)->all_to_all_v;
        return (size_t)(v->bytes * v->rows);
    }
    if (a->op == OP_TO_OWNERS || a->op == OP_FROM_OWNERS) /* on average a rank owns as much as it has in its ranges */
        return (size_t)action_params(p, a)->to_owners.n * sizeof(float);
    for (int k = 0; k < a->n_operands; k++)
        if (o[k].access & ACCESS_READ)
            bytes += o[k].bytes;
    return bytes;
}

uint64_t program_collectives_hash(const struct program *p)
{
    uint64_t hash = HASH_INIT;

    for (int i = 0; i < p->n_actions; i++) {
        const struct action *const a = &p->actions[i];
        if (!op_is_collective((enum op)a->op))
            continue;
        for (int k = 0; k < a->n_operands; k++) {
            const struct operand *const o = &action_operands(p, a)[k];
            const struct buffer *const b = &p->buffers[o->buffer];
            hash = hash_word(hash, buffer_is_external(b->kind) ? UINT64_MAX : b->offset + o->offset);
        }
    }
    return hash;
}

double action_wire_bytes(const struct program *p, const struct action *a)
{
    const double bytes = (double)action_sent_bytes(p, a);

    if (bytes == 0)
        return 0;
    const double n = mesh_group_size(&p->mesh, channel_group((enum channel)a->channel));
    titan_assert(n >= 1);
    switch (a->op) {
    case OP_ALL_GATHER:
        return bytes * (n - 1);
    case OP_REDUCE_SCATTER:
    case OP_ALL_TO_ALL:
    case OP_ALL_TO_ALL_V:
    case OP_TO_OWNERS:
    case OP_FROM_OWNERS:
        return bytes * (n - 1) / n;
    case OP_ALL_REDUCE:
    case OP_AGREE:
    case OP_COMMIT:
        return 2 * bytes * (n - 1) / n;
    default:
        return bytes;
    }
}

/* --- parts -------------------------------------------------------------------------------------------------------- */

void statistics_init(struct step_statistics *ret, const struct layout *layout, int64_t microbatches, bool canonical,
                     bool held)
{
    const int units = layout->model->n_units;
    struct step_statistics r = {.microbatches = microbatches,
                                .world = layout->mesh.world,
                                .cp = layout->mesh.size[AXIS_CP],
                                .units = units,
                                .canonical = canonical};

    titan_assert(microbatches >= 1 && r.cp >= 1 && units >= 1);
    r.losses = 0;
    r.counts = r.losses + r.cp * microbatches;
    r.commands = r.counts + r.cp * microbatches;
    r.values = r.commands + STATISTICS_COMMANDS;
    r.masters = r.values + r.world * STATISTICS_VALUES;
    r.checks = r.masters + units;
    r.norms = r.checks + units;
    r.size = r.norms;
    for (int u = 0; u < units; u++)
        r.size += statistics_norms(&r, layout, u);
    r.mtp = r.size;
    r.size += layout->model->dims.mtp_layers > 0 ? r.cp * microbatches : 0;
    r.balance = r.size;
    r.size += layout->model->dims.balance_loss > 0 ? microbatches : 0;
    r.drops = r.size;
    r.size += layout_all_experts(layout->model) / MAX(layout->model->dims.n_experts, 1);
    r.expert_tokens = r.size;
    r.size += layout_all_experts(layout->model);
    r.scales = r.size;
    r.size += held ? layout->model->n_tensors : 0;
    titan_assert(r.losses < r.counts && r.counts < r.commands && r.commands < r.values && r.values < r.masters &&
                 r.masters < r.checks && r.checks < r.norms);
    titan_assert(r.norms <= r.mtp && r.mtp <= r.balance && r.balance <= r.drops && r.drops <= r.expert_tokens &&
                 r.expert_tokens <= r.scales && r.scales <= r.size);
    *ret = r;
}

const struct tree_sum *program_tree_sum(const struct program *p, int unit)
{
    titan_assert(unit >= 0 && unit < p->layout->model->n_units);
    return p->layout->units[unit].group == GROUP_EXPERT_SHARD ? &p->sum_experts : &p->sum;
}

int64_t statistics_norms(const struct step_statistics *statistics, const struct layout *layout, int unit)
{
    titan_assert(unit >= 0 && unit < layout->model->n_units);
    return statistics->canonical ? layout_unit_parts(layout, unit) * layout_unit_blocks(layout, unit) : 1;
}

void program_close(struct program *p)
{
    if (!p)
        return;
    free(p->sum.adds);
    free(p->sum_experts.adds);
    free(p->actions);
    free(p->buffers);
    free(p->operands);
    free(p->params);
    free(p->waits);
    free(p->params_index);
    free(p);
}

/* --- lifetimes ---------------------------------------------------------------------------------------------------- */

static void find_lifetimes(struct program *p)
{
    p->streams = p->channels = 0;
    for (int i = 0; i < p->n_buffers; i++)
        p->buffers[i].first = p->buffers[i].last = NONE;
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        p->streams |= 1u << a->stream;
        if (a->channel >= 0)
            p->channels |= 1u << a->channel;
        for (int k = 0; k < a->n_operands; k++) {
            struct buffer *b = &p->buffers[action_operands(p, a)[k].buffer];
            if (b->first == NONE)
                b->first = i;
            b->last = i;
        }
    }
}

/* Walks over the actions. A buffer's bytes are added at the first action that touches it and subtracted after the last.
 * Both actions have the buffer as an operand, so the walk needs no list of births and deaths. */
size_t program_peak(struct program *p, size_t *ret_by_kind, int *ret_action)
{
    size_t by_kind[MEMORY_COUNT] = {0}, most[MEMORY_COUNT] = {0}, now = 0, peak = 0;
    int where = 0;

    find_lifetimes(p);
    for (int i = 0; i < p->n_actions; i++) {
        const struct operand *o = action_operands(p, &p->actions[i]);
        const int n = p->actions[i].n_operands;
        for (int end = 0; end < 2; end++) {
            for (int k = 0; k < n; k++) {
                const struct buffer *b = &p->buffers[o[k].buffer];
                bool again = false;
                for (int j = 0; j < k; j++)
                    again |= o[j].buffer == o[k].buffer;
                if (again || buffer_is_external(b->kind) || (end ? b->last : b->first) != i)
                    continue;
                const size_t bytes = arena_round_up(b->bytes);
                now += end ? -bytes : bytes;
                by_kind[buffer_memory(b->kind)] += end ? -bytes : bytes;
            }
            if (!end && now > peak) {
                peak = now;
                where = i;
                memcpy(most, by_kind, sizeof most);
            }
        }
    }
    titan_assert(now == 0);
    if (ret_by_kind)
        memcpy(ret_by_kind, most, sizeof most);
    if (ret_action)
        *ret_action = where;
    return peak;
}

titan_status program_finish(struct program *p, struct titan_error *err)
{
    find_lifetimes(p);
    TRY(program_arena_place(p, err));
    return waits_derive(p, err);
}

/* --- hash --------------------------------------------------------------------------------------------------------- */

/* Leaves out scratch: its size depends on the device and on its threads. */
static size_t hashed_bytes(const struct program *p, int buffer, size_t bytes)
{
    titan_assert(buffer >= 0 && buffer < p->n_buffers);
    return p->buffers[buffer].kind == BUF_WORK ? 0 : bytes;
}

uint64_t program_hash(const struct program *p)
{
    uint64_t hash = hash_word(hash_word(HASH_INIT, (uint64_t)p->pp_rank), (uint64_t)p->share);

    titan_assert(p->n_actions > 0);
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        const struct op_params *q = action_params(p, a);
        /* OWNERS and ROTATE were added before the point-to-point channels. Older programs keep their hashes. */
        const int added = CHANNEL_FORWARD_NEXT - CHANNEL_OWNERS;
        const int channel = a->channel < CHANNEL_OWNERS ? a->channel
                            : a->channel >= CHANNEL_FORWARD_NEXT
                                ? a->channel - added
                                : a->channel - CHANNEL_OWNERS + CHANNEL_COUNT + 1 - added;
        const int64_t words[] = {a->op,    a->stream,     a->phase,      channel,  a->peer, a->unit,
                                 a->stage, a->microbatch, a->n_operands, q->flags, q->dt,   q->dt2};
        for (size_t k = 0; k < ARRAY_SIZE(words); k++)
            hash = hash_word(hash, (uint64_t)words[k]);
        /* The last number of attention, the cap of scores, was added later. It is not hashed if there is no cap, so
         * that older programs keep their hashes. */
        int n = op_words((enum op)a->op);
        n -= (a->op == OP_ATTENTION || a->op == OP_ATTENTION_DGRAD) && q->word[n - 1] == 0;
        for (int k = 0; k < n; k++)
            hash = hash_word(hash, (uint64_t)q->word[k]);
        for (int k = 0; k < a->n_operands; k++) {
            const struct operand *o = &action_operands(p, a)[k];
            hash = hash_word(hash_word(hash, (uint64_t)o->buffer), o->access);
            hash = hash_word(hash_word(hash, o->offset), hashed_bytes(p, o->buffer, o->bytes));
        }
    }
    for (int i = 0; i < p->n_buffers; i++) {
        const struct buffer *b = &p->buffers[i];
        hash = hash_word(hash_word(hash, (uint64_t)b->kind), (uint64_t)b->unit);
        hash = hash_word(hash, hashed_bytes(p, i, b->bytes));
        if (b->from > 0) /* added later */
            hash = hash_word(hash, (uint64_t)b->from);
    }
    return hash_mix(hash);
}

/* --- final gradients ---------------------------------------------------------------------------------------------- */

static int by_writer(const void *a, const void *b)
{
    const struct final *x = a, *y = b;
    return x->writer != y->writer ? (x->writer > y->writer) - (x->writer < y->writer)
                                  : (x->norm > y->norm) - (x->norm < y->norm);
}

titan_status program_finals(const struct program *p, struct final **ret, int *ret_n, struct titan_error *err)
{
    struct final *const finals = calloc((size_t)p->layout->model->n_units + 1, sizeof *finals);
    _cleanup_free_ int *writer = calloc((size_t)p->n_buffers + 1, sizeof *writer);
    _cleanup_free_ bool *released = calloc((size_t)p->n_buffers + 1, sizeof *released);
    int n = 0;

    if (!finals || !writer || !released) {
        free(finals);
        return titan_fail(err, TITAN_ENOMEM, "final gradients: out of memory");
    }
    /* Behind the commit point, what was a gradient is only changed by the update. */
    for (int i = 0; i < p->n_actions && (i == 0 || p->actions[i - 1].op != OP_COMMIT); i++) {
        const struct action *a = &p->actions[i];
        const struct operand *o = action_operands(p, a);
        if (a->op == OP_NORM)
            finals[n++] = (struct final){.norm = i};
        if (a->op == OP_RELEASE)
            released[o[0].buffer] = true;
        for (int k = 0; k < a->n_operands; k++)
            if (o[k].access & ACCESS_WRITE)
                writer[o[k].buffer] = i;
    }
    for (int i = 0; i < n; i++) { /* FROM_OWNERS writes behind the norm */
        const struct action *const norm = &p->actions[finals[i].norm];
        finals[i].writer = writer[action_operands(p, norm)[OPERAND_OF(norm, gradient)].buffer];
        const struct action *const last = &p->actions[finals[i].writer];
        const int codes =
            last->op == OP_DECODE_SUM ? action_operands(p, last)[OPERAND_OF(decode_sum, codes)].buffer : NONE;
        finals[i].codes = codes != NONE && released[codes] ? codes : NONE;
    }
    qsort(finals, (size_t)n, sizeof *finals, by_writer);
    *ret = finals;
    *ret_n = n;
    return TITAN_OK;
}

struct decode_sum_args program_codes(const struct program *p, const struct final *f)
{
    const struct op_decode_sum *const q = &action_params(p, &p->actions[f->writer])->decode_sum;

    titan_assert(f->codes != NONE);
    return (struct decode_sum_args){.codec = (enum codec)q->codec, .pieces = q->pieces, .n = q->n};
}

/* --- printing ----------------------------------------------------------------------------------------------------- */

void program_print_params(const struct program *p, const struct action *a, struct buf *out)
{
    static const char *const flags[] = {
        "ta",        "tb",     "add",    "f32",     "backward", "masked", "no_gradient", "sigmoid", "normalize",
        "any_order", "f8",     "a_e5m2", "a_lines", "b_lines",  "power",  "repeatable",  "b_codes", "in_turn",
        "by_rank",   "blocks", "biased", "keep",    "offset",   "gelu",   "given",       "i8",      "i8_b_lines"};
    const struct op_params *q = action_params(p, a);
    const char *name = op_numbers((enum op)a->op);

    for (int i = 0; i < op_words((enum op)a->op); i++) {
        if (name && *name) {
            const size_t length = strcspn(name, " ");
            buf_printf(out, " %.*s=%ld", (int)length, name, (long)q->word[i]);
            name += length + 1;
        } else if (!name && q->part[i] != 0) {
            buf_printf(out, "%s%ld", i == 0 ? " n=" : ",", (long)q->part[i]);
        }
    }
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++)
        if (flags[i] && q->flags >> i & 1)
            buf_printf(out, " %s", flags[i]);
}

int program_sync_point(const struct program *p)
{
    for (int i = 0; i < p->n_actions && p->mesh.world > 1; i++) {
        const struct action *a = &p->actions[i];
        /* Does this rank get a part from every rank? SHIFT and ROTATE bring a part of only one neighbour. ALL_TO_ALL_V
         * may bring no rows, and owners need not get something from every rank. */
        if (op_is_collective((enum op)a->op) && a->op != OP_SHIFT && a->op != OP_ROTATE && a->op != OP_ALL_TO_ALL_V &&
            a->op != OP_TO_OWNERS && a->op != OP_FROM_OWNERS &&
            mesh_group_size(&p->mesh, channel_group((enum channel)a->channel)) == p->mesh.world)
            return i;
    }
    return -1;
}

void program_print(const struct program *p, struct buf *out)
{
    static const char *const access[] = {"", "r", "w", "u"};

    buf_printf(out, "pp rank %d, %ld microbatches: %d actions, %d buffers, arena %.1f MiB\n", p->pp_rank,
               (long)p->share, p->n_actions, p->n_buffers, (double)p->arena_bytes / 1048576.0);
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        buf_printf(out, "%5d %-13s %-9s %-15s", i, program_stream_name((enum stream_id)a->stream),
                   phase_name((enum phase)a->phase), op_name((enum op)a->op));
        if (a->stage >= 0)
            buf_printf(out, " stage=%d", a->stage);
        if (a->unit >= 0)
            buf_printf(out, " unit=%d", a->unit);
        if (a->microbatch >= 0)
            buf_printf(out, " microbatch=%d", a->microbatch);
        for (int k = 0; k < a->n_operands; k++) {
            const struct operand *o = &action_operands(p, a)[k];
            const struct buffer *b = &p->buffers[o->buffer];
            titan_assert(o->buffer >= 0 && o->buffer < p->n_buffers);
            buf_printf(out, " %s:%s", access[o->access & ACCESS_UPDATE], b->name ? b->name : buffer_kind_name(b->kind));
            if (b->unit >= 0)
                buf_printf(out, "(%d)", b->unit);
            buf_printf(out, "#%d", o->buffer);
            if (o->offset != 0 || o->bytes != b->bytes)
                buf_printf(out, "[%zu+%zu]", o->offset, o->bytes);
        }
        if (a->channel >= 0)
            buf_printf(out, " on %s", channel_name((enum channel)a->channel));
        if (a->op == OP_SEND || a->op == OP_RECV)
            buf_printf(out, " peer=%d", a->peer);
        program_print_params(p, a, out);
        for (int k = 0; k < a->n_waits; k++)
            buf_printf(out, "%s%d", k == 0 ? " wait=" : ",", p->waits[a->wait + k]);
        buf_puts(out, "\n");
    }
}
