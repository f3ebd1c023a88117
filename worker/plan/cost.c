/* SPDX-License-Identifier: Apache-2.0 */
/* cost.c - times of actions on a modelled machine. */
#include "worker/plan/cost.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "worker/device/device.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
/* Measured: runs of one rank on an H100 and an H200 took 0.57 GiB more than their plans (0.64 in float8); tiny runs of
 * two and four ranks took 1.17 and 1.07 GiB more on each rank. */
#define GPU_FIXED (590 * MIB)
#define GPU_PEERS (530 * MIB)
/* Measured: resident pages of the program and its libraries, 10 MiB; heap, stacks and compiled kernels, 2.5 MiB. */
#define CPU_FIXED (MIB * 25 / 2)

/* Peaks: NVIDIA data sheets, dense. Efficiencies: docs/plan.md, Machines. cost_machine_of() finds only machines whose
 * name is part of a device's name. */
static const struct machine machines[] = {
    {.name = "h100",
     .doc = "NVIDIA H100 SXM 80 GB, 8 in a machine, NVLink 450 GB/s, 400 Gb/s network each",
     .flops_bf16 = 989e12,
     .flops_f32 = 67e12,
     .flops_f8 = 1979e12,
     .flops_i8 = 1979e12,
     .memory_bandwidth = 3.35e12,
     .memory_bytes = 81079 * MIB,
     .node = 8,
     .link_bandwidth = 450e9,
     .net_bandwidth = 50e9,
     .host_bandwidth = 55e9,
     .link_latency = 3e-6,
     .net_latency = 8e-6,
     .start = 3e-6,
     .issue = 2e-6,
     .matmul_efficiency = 0.62,
     .matmul_f8_efficiency = 0.46,
     .attention_masked = 1.16,
     .matmul_half = 2e9,
     .attention_efficiency = 0.578,
     .attention_dgrad_efficiency = 0.475,
     .attention_repeatable = 1.2,
     .attention_own_tensor = true,
     .attention_own = 15e12,
     .attention_own_dgrad = 11e12,
     .memory_efficiency = 0.83,
     .memory_fixed = GPU_FIXED,
     .memory_peers = GPU_PEERS},
    {.name = "h200",
     .doc = "NVIDIA H200 SXM 141 GB, 8 in a machine, NVLink 450 GB/s, 400 Gb/s network each",
     .flops_bf16 = 989e12,
     .flops_f32 = 67e12,
     .flops_f8 = 1979e12,
     .flops_i8 = 1979e12,
     .memory_bandwidth = 4.8e12,
     .memory_bytes = 143156 * MIB,
     .node = 8,
     .link_bandwidth = 450e9,
     .net_bandwidth = 50e9,
     .host_bandwidth = 55e9,
     .link_latency = 3e-6,
     .net_latency = 8e-6,
     .start = 3e-6,
     .issue = 2e-6,
     .matmul_efficiency = 0.705,
     .matmul_f8_efficiency = 0.585,
     .attention_masked = 1.05,
     .matmul_half = 2e9,
     .attention_efficiency = 0.51,
     .attention_dgrad_efficiency = 0.468,
     .attention_repeatable = 1.17,
     .attention_own_tensor = true,
     .attention_own = 15e12,
     .attention_own_dgrad = 11e12,
     .memory_efficiency = 0.77,
     .memory_fixed = GPU_FIXED,
     .memory_peers = GPU_PEERS},
    {.name = "b200",
     .doc = "NVIDIA B200 180 GB, 8 in a machine, NVLink 900 GB/s, 400 Gb/s network each",
     .flops_bf16 = 2250e12,
     .flops_f32 = 75e12,
     .flops_f8 = 4500e12,
     .flops_i8 = 4500e12,
     .memory_bandwidth = 8e12,
     .memory_bytes = 180 * GIB,
     .node = 8,
     .link_bandwidth = 900e9,
     .net_bandwidth = 50e9,
     .host_bandwidth = 55e9,
     .link_latency = 3e-6,
     .net_latency = 8e-6,
     .start = 3e-6,
     .issue = 2e-6,
     .matmul_efficiency = 0.60,
     .matmul_f8_efficiency = 0.38,
     .attention_masked = 1.15,
     .matmul_half = 4e9,
     .attention_efficiency = 0.40,
     .attention_dgrad_efficiency = 0.33,
     .attention_repeatable = 60, /* by our own kernels */
     .attention_own = 17e12,
     .attention_own_dgrad = 12e12,
     .memory_efficiency = 0.75,
     .mxfp8 = true,
     .memory_fixed = GPU_FIXED,
     .memory_peers = GPU_PEERS},
    {.name = "cpu",
     .doc = "one core of a server processor with AVX-512 for each worker, shared memory between them",
     .flops_bf16 = 0.1e12,
     .flops_f32 = 0.1e12,
     .flops_i8 = 0.4e12,
     .memory_bandwidth = 15e9,
     .memory_bytes = 16 * GIB,
     .node = 64,
     .link_bandwidth = 5e9,
     .net_bandwidth = 1e9,
     .host_bandwidth = 10e9,
     .link_latency = 20e-6,
     .net_latency = 50e-6,
     .start = 1e-6,
     .issue = 0.2e-6,
     .matmul_efficiency = 0.8,
     .matmul_f8_efficiency = 0.38,
     .attention_masked = 1.15,
     .matmul_half = 1e4,
     .attention_efficiency = 0.4,
     .attention_dgrad_efficiency = 0.4,
     .memory_efficiency = 0.7,
     .mxfp8 = true,
     .memory_fixed = CPU_FIXED,
     .host_memory = true},
    {.name = "torchtitan-h100",
     .doc = "NVIDIA H100 as PyTorch's kernels use it, 8 in a machine, NVLink 450 GB/s, 400 Gb/s network each",
     .flops_bf16 = 989e12,
     .flops_f32 = 67e12,
     .flops_f8 = 1979e12,
     .flops_i8 = 1979e12,
     .memory_bandwidth = 3.35e12,
     .memory_bytes = 80 * GIB,
     .node = 8,
     .link_bandwidth = 450e9,
     .net_bandwidth = 50e9,
     .host_bandwidth = 55e9,
     .link_latency = 3e-6,
     .net_latency = 8e-6,
     .start = 3e-6,
     .issue = 2e-6,
     .matmul_efficiency = 0.52,
     .matmul_f8_efficiency = 0.40,
     .attention_masked = 1.16,
     .matmul_half = 2e9,
     .attention_efficiency = 0.25,
     .attention_dgrad_efficiency = 0.19,
     .attention_repeatable = 1.7,
     .attention_own = 15e12,
     .attention_own_dgrad = 11e12,
     .memory_efficiency = 0.75,
     .memory_fixed = 3 * GIB},
};

const struct machine *cost_machine_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(machines); i++)
        if (strcasecmp(machines[i].name, name) == 0)
            return &machines[i];
    return NULL;
}

const struct machine *cost_machine_of(const char *device)
{
    for (size_t i = 0; i < ARRAY_SIZE(machines); i++)
        if (strcasestr(device, machines[i].name))
            return &machines[i];
    return NULL;
}

const char *cost_machine_names(void)
{
    return "h100|h200|b200|cpu";
}

/* --- compute ------------------------------------------------------------------------------------------------------ */

double cost_flops(const struct program *p, const struct action *a)
{
    return op_flops((enum op)a->op, action_params(p, a));
}

static double touched_bytes(const struct program *p, const struct action *a)
{
    const struct operand *o = action_operands(p, a);
    const struct op_params *q = action_params(p, a);
    const bool ta = q->flags & OP_TA;
    const int rows = ta ? OPERAND_OF(matmul_grouped, b) : OPERAND_OF(matmul_grouped, c);
    double bytes = 0;

    /* Float8 operands are counted in the time of the code that makes them. */
    const int n = a->op == OP_MATMUL ? OPERAND_OF(matmul, work) : a->n_operands;

    for (int i = 0; i < n; i++) {
        /* Bytes that also lie in the span of the previous operand. Example: gate and up are columns of one matrix, so
         * the rows of up lie between the rows of gate. */
        size_t shared = 0;
        if (i > 0 && o[i].buffer == o[i - 1].buffer && o[i].access == o[i - 1].access && o[i].bytes == o[i - 1].bytes) {
            const size_t from = MAX(o[i - 1].offset, o[i].offset);
            const size_t to = MIN(o[i - 1].offset, o[i].offset) + o[i].bytes;
            shared = to > from ? to - from : 0;
        }
        /* The share of the operand that is touched. In a grouped product, only the existing rows of a, and of c or b,
         * are touched. In the embedding's table, only the tokens' rows are touched. */
        double touched = 1;
        if (a->op == OP_EMBED && i == OPERAND_OF(embed, table))
            touched = MIN(1.0, (double)q->embed.N / (double)q->embed.V);
        else if (a->op == OP_EMBED_WGRAD && i == OPERAND_OF(embed_wgrad, dtable))
            touched = MIN(1.0, (double)q->embed_wgrad.N / (double)q->embed_wgrad.V);
        else if (a->op == OP_MATMUL_GROUPED && (i == OPERAND_OF(matmul_grouped, a) || i == rows))
            touched = (double)q->matmul_grouped.rows / (double)(ta ? q->matmul_grouped.K : q->matmul_grouped.M);
        bytes += (double)(o[i].bytes - shared) * (o[i].access == ACCESS_UPDATE ? 2 : 1) * touched;
    }
    return bytes;
}

static double memory_time(const struct machine *m, double bytes)
{
    return bytes / (m->memory_bandwidth * m->memory_efficiency);
}

static bool in_float8(const struct cost *c, const struct program *p, const struct action *a)
{
    return a->op == OP_MATMUL && action_params(p, a)->flags & OP_F8 && c->machine->flops_f8 > 0;
}

static bool in_int8(const struct program *p, const struct action *a)
{
    return a->op == OP_MATMUL && action_params(p, a)->flags & OP_I8;
}

/* FLOP/s */
static double peak_of(const struct cost *c, const struct program *p, const struct action *a)
{
    const struct machine *m = c->machine;
    if (in_int8(p, a))
        return m->flops_i8;
    const int dt = a->op == OP_WHOLE ? (int)action_params(p, a)->whole.compute : action_params(p, a)->dt;
    return dt == DTYPE_F32 ? m->flops_f32 : in_float8(c, p, a) ? m->flops_f8 : m->flops_bf16;
}

/* Has the previous product made the same float8 operand? It has for q, k and v, which have the same input. */
static bool made_before(const struct program *p, const struct action *a, int operand)
{
    const struct action *before = a - 1;

    if (a == p->actions || before->op != OP_MATMUL || !(action_params(p, before)->flags & OP_F8))
        return false;
    const struct operand *x = &action_operands(p, a)[operand], *y = &action_operands(p, before)[operand];
    return x->buffer == y->buffer && x->offset == y->offset && x->bytes == y->bytes;
}

static double matmul_time(const struct cost *c, const struct program *p, const struct action *a)
{
    const struct machine *m = c->machine;
    const struct op_params *q = action_params(p, a);
    const bool grouped = a->op == OP_MATMUL_GROUPED;
    const double M = (double)(grouped ? q->matmul_grouped.M : q->matmul.M);
    const double N = (double)(grouped ? q->matmul_grouped.N : q->matmul.N);
    const double K = (double)(grouped ? q->matmul_grouped.K : q->matmul.K);
    const double flops = cost_flops(p, a), mnk = flops / 2;
    const bool f8 = in_float8(c, p, a);
    const bool i8 = in_int8(p, a);
    const double efficiency =
        (f8 || i8 ? m->matmul_f8_efficiency : m->matmul_efficiency) * mnk / (mnk + m->matmul_half);
    /* Float8 operands are made first: for each element 2 bytes are read and 1 is written. In emulation, operands are
     * read twice, if their scales are not given, and written in their own type. For the input gradient, existing codes
     * are transposed; in emulation, the codes become values. Blocks of MXFP8 are read once, and each product makes its
     * own blocks. */
    const double elem = (double)dtype_bytes((enum dtype)q->dt);
    const bool coded = q->flags & OP_F8_B_CODES;
    const bool blocks = q->flags & OP_F8_BLOCKS, once = f8 || q->flags & (OP_F8_BLOCKS | OP_F8_GIVEN);
    const bool a_made = f8 && !blocks && made_before(p, a, OPERAND_OF(matmul, a)),
               b_made = f8 && !blocks && made_before(p, a, OPERAND_OF(matmul, b));
    const double made = (a_made ? 0 : M * K) + (b_made || coded ? 0 : N * K);
    const double turned = !coded ? 0 : f8 ? (q->flags & OP_TB ? 0 : 2 * N * K) : (1 + elem) * N * K;
    const double written = !f8 ? elem : blocks ? 1 + 1.0 / MX_BLOCK : 1;
    /* Int8: operands are read for their largest magnitudes, and again to become codes. Sums are written and read. */
    const double casts = i8 ? (M * K + N * K) * (2 * elem + 1) + M * N * 2 * sizeof(int32_t)
                            : (q->flags & OP_F8 ? made : 0) * (elem * (once ? 1 : 2) + written) + turned;

    return MAX(flops / (peak_of(c, p, a) * efficiency), memory_time(m, touched_bytes(p, a))) + memory_time(m, casts);
}

/* Time of attention in a library. It is the time of our own kernels where the library does not serve and these kernels
 * use no tensor cores. Masked attention counts as served, as in the runs that gave the efficiencies. */
static double attention_time(const struct cost *c, const struct program *p, const struct action *a)
{
    const struct machine *m = c->machine;
    const struct op_params *q = action_params(p, a);
    const enum attention_order order = op_attention_order(q->flags);
    const bool forward = a->op == OP_ATTENTION, masked = q->flags & OP_MASKED;
    const bool own_order = order == ATTENTION_FIXED && m->attention_own_tensor;
    const bool repeats = !forward && (order == ATTENTION_REPEATABLE || own_order);

    /* Repeatable gradients may need more scratch memory than the library gets. */
    const struct op_attention_dgrad *const g = &q->attention_dgrad;
    const bool too_long = !forward && (double)g->H / (double)g->K * (double)g->Tq * (double)g->Tk * 2 >
                                          (double)ATTENTION_GROUP_PARTS * (double)ATTENTION_PART_BYTES;
    const bool served =
        m->attention_own_tensor || order == ATTENTION_ANY || (order == ATTENTION_FIXED ? masked : !too_long);

    double rate = forward ? m->attention_own : m->attention_own_dgrad; /* FLOP/s */
    if (rate <= 0 || (q->dt != DTYPE_F32 && served))
        rate = peak_of(c, p, a) * (forward ? m->attention_efficiency : m->attention_dgrad_efficiency) /
               (repeats && m->attention_repeatable > 0 ? m->attention_repeatable : 1);
    return (masked ? m->attention_masked : 1) * cost_flops(p, a) / rate;
}

/* --- transfers ---------------------------------------------------------------------------------------------------- */

/* Members of a group that share a machine. */
static int members_on_one(const struct machine *m, const struct mesh *mesh, enum group group)
{
    return MAX(1, MIN(mesh_group_size(mesh, group), m->node / mesh_group_stride(mesh, group)));
}

bool cost_uses_network(const struct machine *m, const struct mesh *mesh, enum group group)
{
    return members_on_one(m, mesh, group) < mesh_group_size(mesh, group);
}

double cost_transfer(const struct machine *m, const struct mesh *mesh, enum op op, enum group group, double bytes)
{
    const int members = mesh_group_size(mesh, group), on_one = members_on_one(m, mesh, group);
    const int nodes = (members + on_one - 1) / on_one;
    const double latency = nodes == 1 ? m->link_latency : m->net_latency, net = m->net_bandwidth * on_one;
    const double bandwidth = nodes == 1 ? m->link_bandwidth : on_one == 1 ? net : MIN(m->link_bandwidth, net);
    const double n = members, steps = nodes > 1 ? MIN(n - 1, nodes + log2(n)) : n - 1;

    titan_assert(on_one <= m->node && bytes >= 0 && bandwidth > 0);
    switch (op) {
    case OP_ALL_GATHER: /* bytes: one rank's part */
        return steps * latency + bytes * (n - 1) / bandwidth;
    case OP_REDUCE_SCATTER: /* bytes: the whole */
    case OP_ALL_TO_ALL:
    case OP_ALL_TO_ALL_V:
    case OP_TO_OWNERS:
    case OP_FROM_OWNERS:
        return steps * latency + bytes * (n - 1) / n / bandwidth;
    case OP_ALL_REDUCE:
    case OP_AGREE:
    case OP_COMMIT: /* small messages go up and down a tree */
        return 2 * (log2(n) * latency + bytes * (n - 1) / n / bandwidth);
    default: /* one message */
        return latency + bytes / (nodes > 1 ? m->net_bandwidth : m->link_bandwidth);
    }
}

/* --- what was measured -------------------------------------------------------------------------------------------- */

void cost_key(const struct program *p, const struct action *a, char ret[COST_KEY_MAX])
{
    static const char *const types[] = {"f32", "bf16", "f64", "i32", "u8"};
    _cleanup_(buf_free) struct buf numbers = {.limit = COST_KEY_MAX};
    const struct op_params *q = action_params(p, a);
    const enum op op = a->op == OP_RECV ? OP_SEND : (enum op)a->op; /* SEND and RECV are the two ends of one message */

    titan_assert(q->dt < ARRAY_SIZE(types) && q->dt2 < ARRAY_SIZE(types));
    if (!op_is_transfer(op))
        program_print_params(p, a, &numbers);
    if (op == OP_OPTIMISE) { /* parameters of all units of the launch, and the types of masters and moments */
        const struct operand *o = action_operands(p, a);
        size_t bytes = 0;
        titan_assert(a->n_operands >= UPDATE_OPERANDS);
        for (int k = 0; k + UPDATE_OPERANDS <= a->n_operands; k += UPDATE_OPERANDS)
            bytes += o[k + OPERAND_OF(optimise, state)].bytes;
        buf_printf(&numbers, " state=%zu", bytes);
    }
    if (!op_is_transfer(op) && a->stream != STREAM_COMPUTE)
        buf_printf(&numbers, " on %s", program_stream_name((enum stream_id)a->stream));
    (void)snprintf(ret, COST_KEY_MAX, "%s%s%s %s%s", types[q->dt], op == OP_CAST ? "/" : "",
                   op == OP_CAST ? types[q->dt2] : "", op_name(op), numbers.len > 0 ? numbers.data : "");
}

uint64_t cost_bytes(const struct program *p, const struct action *a)
{
    if (!op_is_transfer((enum op)a->op))
        return 0;
    return a->op == OP_RECV ? (uint64_t)action_params(p, a)->recv.bytes : action_sent_bytes(p, a);
}

int cost_members(const struct program *p, const struct action *a)
{
    titan_assert(op_is_transfer((enum op)a->op));
    if (a->channel < 0) /* AGREE of one rank */
        return 1;
    return op_is_collective((enum op)a->op) ? mesh_group_size(&p->mesh, channel_group((enum channel)a->channel)) : 2;
}

bool cost_measured(const struct cost *cost, const struct program *p, const struct action *a, double *ret_seconds,
                   double *ret_processor)
{
    char key[COST_KEY_MAX];

    if (!cost->table || op_class((enum op)a->op) == OP_CLASS_NO_TIME)
        return false;
    if (cost->network && a->channel >= 0 &&
        cost_uses_network(cost->machine, &p->mesh, channel_group((enum channel)a->channel)))
        return false;
    cost_key(p, a, key);
    if (op_is_transfer((enum op)a->op))
        return cost_table_transfer(cost->table, cost_members(p, a), key, cost_bytes(p, a), ret_seconds, ret_processor);
    const struct cost_row *row = cost_table_operation(cost->table, cost->threads, key);
    if (!row)
        return false;
    *ret_seconds = row->seconds;
    *ret_processor = row->seconds * (a->stream == STREAM_COMPUTE ? row->size : 1);
    return true;
}

double cost_spread(const struct cost *cost, const struct program *p, const struct action *a)
{
    char key[COST_KEY_MAX];

    if (!cost->table || op_is_transfer((enum op)a->op) || op_class((enum op)a->op) == OP_CLASS_NO_TIME)
        return 0;
    cost_key(p, a, key);
    const struct cost_row *row = cost_table_operation(cost->table, cost->threads, key);
    return row ? row->spread : 0;
}

double cost_to_buddy(const struct cost *cost, const struct mesh *mesh, double bytes)
{
    const struct machine *m = cost->machine;
    const bool elsewhere = mesh->world > m->node;
    double seconds, processor;

    titan_assert(mesh->world > 1 && bytes >= 0);
    if (cost->table && !(cost->network && elsewhere) &&
        cost_table_transfer(cost->table, 2, "f32 SEND", (uint64_t)bytes, &seconds, &processor))
        return seconds;
    return m->start + (elsewhere ? m->net_latency : m->link_latency) +
           bytes / (elsewhere ? m->net_bandwidth : m->link_bandwidth);
}

/* --- an action ---------------------------------------------------------------------------------------------------- */

/* Where scales are held, one step of several looks for the largest magnitudes: a step's mean counts. */
static double share_of_steps(const struct program *p, const struct action *a)
{
    return a->op == OP_FLOAT8_LARGEST ? 1 / (double)MAX(p->scales_every, 1) : 1;
}

double cost_action(const struct cost *cost, const struct program *p, const struct action *a)
{
    const struct machine *m = cost->machine;
    double seconds, processor;

    titan_assert(m && a->op < OP_COUNT);
    const double share = share_of_steps(p, a);
    if (cost_measured(cost, p, a, &seconds, &processor))
        return seconds * share;
    if (op_is_transfer((enum op)a->op)) {
        if (op_is_agreement((enum op)a->op) && p->mesh.world == 1)
            return 0;
        return m->start + cost_transfer(m, &p->mesh, (enum op)a->op, channel_group((enum channel)a->channel),
                                        (double)cost_bytes(p, a));
    }
    switch (op_class((enum op)a->op)) {
    case OP_CLASS_NO_TIME:
        return 0;
    case OP_CLASS_PRODUCT:
        return m->start + matmul_time(cost, p, a);
    case OP_CLASS_ATTENTION:
        return m->start + attention_time(cost, p, a);
    case OP_CLASS_FROM_HOST:
        return m->start + touched_bytes(p, a) / m->host_bandwidth;
    default:
        if (a->op == OP_WHOLE)
            return m->start + cost_flops(p, a) / (peak_of(cost, p, a) * m->matmul_efficiency) +
                   memory_time(m, touched_bytes(p, a));
        if (a->op == OP_COPY && a->stream == STREAM_COPY)
            return m->start + (double)action_params(p, a)->copy.bytes / m->host_bandwidth;
        return (m->start + memory_time(m, touched_bytes(p, a))) * share;
    }
}

double cost_floor(const struct cost *cost, const struct program *p, const struct action *a)
{
    titan_assert(cost->machine && a->op < OP_COUNT);
    const enum op_class class = op_class((enum op)a->op);
    if (op_is_transfer((enum op)a->op)) {
        /* The floor of a transfer: its bytes at the bandwidth of the group's links, without latency. */
        struct machine prompt = *cost->machine;
        prompt.link_latency = prompt.net_latency = 0;
        return p->mesh.world == 1 ? 0
                                  : cost_transfer(&prompt, &p->mesh, (enum op)a->op,
                                                  channel_group((enum channel)a->channel), (double)cost_bytes(p, a));
    }
    if (class == OP_CLASS_NO_TIME || class == OP_CLASS_FROM_HOST || a->stream == STREAM_COPY)
        return 0;
    return MAX(cost_flops(p, a) / peak_of(cost, p, a), touched_bytes(p, a) / cost->machine->memory_bandwidth) *
           share_of_steps(p, a);
}
