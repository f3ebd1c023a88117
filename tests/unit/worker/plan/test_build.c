/* SPDX-License-Identifier: Apache-2.0 */
/* build.h: programs of every schedule and mesh run to their end on ranks that stop at whatever they wait for; messages
 * match; sums in the tree are the same bits for every data-parallel degree; memory is what schedule and policies say.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/rng.h"
#include "tests/support/programs.h"
#include "worker/tensor/tree.h"

static const char *const schedules[] = {
    "GPipe", "1F1B", "Interleaved1F1B", "ZB1P", "LoopedBFS", "InterleavedZeroBubble", "DualPipeV", "ZBVZeroBubble"};

static const struct model_dims deep = {.dim = 64,
                                       .n_layers = 16,
                                       .n_heads = 4,
                                       .n_kv_heads = 2,
                                       .head_dim = 16,
                                       .ffn_hidden = 128,
                                       .vocab_size = 256,
                                       .rope_theta = 1e4,
                                       .norm_eps = 1e-5};

static void open_case(const struct programs_case *c, struct programs *ret)
{
    struct titan_error err = {0};
    char name[256];

    programs_name(c, name, sizeof name);
    if (programs_open(c, ret, &err) != TITAN_OK)
        fail_msg("%s: %s", name, err.msg);
}

static uint32_t draw(uint64_t *counter, uint32_t n)
{
    uint32_t w[4];
    rng_philox(rng_key(7, "builds"), (*counter)++, 0, w);
    return w[0] % n;
}

/* --- ranks that stop ---------------------------------------------------------------------------------------------- */

/* The strictest machine a program may meet: the host issues an action of the compute stream only when it can run, as
 * the CPU does, and a message passes only when both sides stand at it. */
struct machine_rank {
    const struct program *p;
    int issued;
    bool *done;
    int *next; /* per stream: first action that may not have run */
};

static bool is_message(const struct action *a)
{
    return a->op == OP_SEND || a->op == OP_RECV;
}

static bool can_run(const struct machine_rank *m, int i)
{
    const struct action *a = &m->p->actions[i];

    for (int k = 0; k < a->n_waits; k++)
        if (!m->done[m->p->waits[a->wait + k]])
            return false;
    return true;
}

/* The issued action a stream stands at; -1: none. */
static int standing(struct machine_rank *m, int stream)
{
    int *const next = &m->next[stream];

    while (*next < m->issued && (m->p->actions[*next].stream != stream || m->done[*next]))
        (*next)++;
    return *next < m->issued && can_run(m, *next) ? *next : -1;
}

static bool meets(const struct action *send, const struct action *recv, int sender, int receiver)
{
    return send->op == OP_SEND && recv->op == OP_RECV && send->peer == receiver && recv->peer == sender &&
           send->channel == recv->channel;
}

/* Run what stands on this stream, with its partner if it is a message. */
static bool run_stream(struct machine_rank *ranks, int n, int rank, int stream)
{
    const int i = standing(&ranks[rank], stream);

    if (i < 0)
        return false;
    const struct action *a = &ranks[rank].p->actions[i];
    if (a->channel == CHANNEL_WORLD) /* the last thing that binds ranks: passed here */
        return ranks[rank].done[i] = true;
    if (!is_message(a))
        return ranks[rank].done[i] = true;
    if (a->op != OP_SEND)
        return false;
    const int there = standing(&ranks[a->peer], STREAM_RECV + a->channel - CHANNEL_FORWARD_NEXT);
    if (a->peer >= n || there < 0)
        return false;
    const struct action *r = &ranks[a->peer].p->actions[there];
    if (!meets(a, r, rank, a->peer))
        return false;
    /* the message is the one the receiver means */
    assert_int_equal(a->microbatch, r->microbatch);
    if (a->microbatch >= 0) /* otherwise it is of a tied head */
        assert_int_equal(abs(a->stage - r->stage), 1);
    assert_int_equal(action_params(ranks[rank].p, a)->send.bytes, action_params(ranks[a->peer].p, r)->recv.bytes);
    ranks[rank].done[i] = ranks[a->peer].done[there] = true;
    return true;
}

static bool issue(struct machine_rank *m)
{
    bool moved = false;

    while (m->issued < m->p->n_actions) {
        const int last = m->issued - 1;
        if (last >= 0 && m->p->actions[last].stream == STREAM_COMPUTE && !m->done[last])
            break;
        m->issued++;
        moved = true;
    }
    return moved;
}

static void run_ranks(struct machine_rank *ranks, int n, const char *name)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < n; r++) {
            moved |= issue(&ranks[r]);
            for (int s = 0; s < STREAM_COUNT; s++)
                moved |= run_stream(ranks, n, r, s);
        }
    }
    for (int r = 0; r < n; r++)
        for (int i = 0; i < ranks[r].p->n_actions; i++)
            if (i >= ranks[r].issued || !ranks[r].done[i])
                fail_msg("%s: pp rank %d stands at action %d (%s, microbatch %d)", name, r, i,
                         op_name((enum op)ranks[r].p->actions[i].op), ranks[r].p->actions[i].microbatch);
}

/* One pipeline for each share there is. */
static void assert_runs(const struct programs_case *c)
{
    struct programs p;
    char name[256];

    open_case(c, &p);
    programs_name(c, name, sizeof name);
    const int shares = p.n / c->pp;
    for (int share = 0; share < shares; share++) {
        struct machine_rank ranks[8] = {0};
        for (int r = 0; r < c->pp; r++) {
            ranks[r].p = p.classes[r * shares + share];
            assert_int_equal(ranks[r].p->pp_rank, r);
            ranks[r].done = calloc((size_t)ranks[r].p->n_actions, sizeof *ranks[r].done);
            ranks[r].next = calloc(STREAM_COUNT, sizeof *ranks[r].next);
        }
        run_ranks(ranks, c->pp, name);
        for (int r = 0; r < c->pp; r++) {
            free(ranks[r].done);
            free(ranks[r].next);
        }
    }
    programs_close(&p);
}

static void test_every_schedule_runs(void **state)
{
    (void)state;
    for (size_t s = 0; s < ARRAY_SIZE(schedules); s++)
        for (int pp = 2; pp <= 4; pp++)
            for (int share = 2 * pp; share <= 4 * pp; share += pp)
                assert_runs(&(struct programs_case){.dims = &deep,
                                                    .pp = pp,
                                                    .dp_replicate = 1,
                                                    .dp_shard = 1,
                                                    .cp = 1,
                                                    .tp = 1,
                                                    .schedule = schedules[s],
                                                    .microbatches = share,
                                                    .prefetch = 1,
                                                    .tied = share > 2 * pp});
}

static void test_drawn_meshes_run(void **state)
{
    (void)state;
    uint64_t counter = 0;

    for (int i = 0; i < 150; i++) {
        const int pp = 1 + (int)draw(&counter, 4), dp = 1 + (int)draw(&counter, 3);
        assert_runs(&(struct programs_case){.dims = &deep,
                                            .pp = pp,
                                            .dp_replicate = 1 + (int)draw(&counter, 2),
                                            .dp_shard = dp,
                                            .cp = 1 + (int)draw(&counter, 2),
                                            .tp = 1 + (int)draw(&counter, 2),
                                            .schedule = schedules[draw(&counter, ARRAY_SIZE(schedules))],
                                            .microbatches = (int)(4 * pp * dp + (int)draw(&counter, 5)),
                                            .reshard = (enum reshard)draw(&counter, 3),
                                            .reduce = (enum reduce_when)draw(&counter, 3),
                                            .checkpointing = (enum checkpointing)draw(&counter, 3),
                                            .prefetch = (int)draw(&counter, 3),
                                            .canonical = draw(&counter, 2),
                                            .ring = draw(&counter, 2),
                                            .offload = draw(&counter, 2),
                                            .dt = draw(&counter, 2) ? DTYPE_BF16 : DTYPE_F32,
                                            .tied = draw(&counter, 2)});
    }
}

/* Number of the cell each action stands in, from changes of what the compute stream works on. */
static void number_cells(const struct program *p, int *ret)
{
    const struct action *last = NULL;
    int cell = 0;

    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        if (a->stream == STREAM_COMPUTE && a->microbatch >= 0 && a->op != OP_RELEASE && a->op != OP_LOAD) {
            cell += last && (last->stage != a->stage || last->microbatch != a->microbatch ||
                             (last->phase == PHASE_FORWARD) != (a->phase == PHASE_FORWARD));
            last = a;
        }
        ret[i] = cell;
    }
}

/* What is sent keeps its memory while the next cell computes: the compute stream does not stop for the message. */
static void test_sending_stops_nobody(void **state)
{
    (void)state;
    struct programs p;

    open_case(&(struct programs_case){.dims = &deep,
                                      .pp = 2,
                                      .dp_replicate = 1,
                                      .dp_shard = 1,
                                      .cp = 1,
                                      .tp = 1,
                                      .microbatches = 12,
                                      .schedule = "Interleaved1F1B"},
              &p);
    for (int r = 0; r < 2; r++) {
        const struct program *k = p.classes[r];
        int *const cell = malloc((size_t)k->n_actions * sizeof *cell), sends = 0, stops = 0;
        number_cells(k, cell);
        for (int i = 0; i < k->n_actions; i++) {
            const struct action *a = &k->actions[i];
            sends += a->op == OP_SEND;
            for (int w = 0; w < a->n_waits && a->stream == STREAM_COMPUTE && a->phase < PHASE_REDUCE; w++) {
                const int on = k->waits[a->wait + w];
                stops += k->actions[on].op == OP_SEND && cell[i] < cell[on] + 2;
            }
        }
        assert_int_equal(sends, 36);     /* two of three borders in one direction, one in the other */
        assert_true(stops <= sends / 8); /* where the schedule idles, and at its end */
        free(cell);
    }
    programs_close(&p);
}

/* --- classes ------------------------------------------------------------------------------------------------------ */

static void test_kinds(void **state)
{
    (void)state;
    struct programs p;

    open_case(
        &(struct programs_case){
            .dims = &deep, .pp = 2, .dp_replicate = 2, .dp_shard = 3, .cp = 2, .tp = 2, .microbatches = 16},
        &p);
    assert_int_equal(p.n, 4); /* shares of 2 and 3 */
    int64_t total = 0;
    for (int rank = 0; rank < 48; rank++) {
        const int class = program_class(&p.options, rank);
        int coords[AXIS_COUNT];
        mesh_coords(&p.layout->mesh, rank, coords);
        assert_true(class >= 0 && class < p.n && program_class_rank(&p.options, class) <= rank);
        assert_int_equal(program_class(&p.options, program_class_rank(&p.options, class)), class);
        assert_int_equal(p.classes[class]->pp_rank, coords[AXIS_PP]);
        assert_int_equal(p.classes[class]->share_max, 3);
        if (coords[AXIS_PP] == 0 && coords[AXIS_CP] == 0 && coords[AXIS_TP] == 0)
            total += p.classes[class]->share;
    }
    assert_int_equal(total, 16);
    programs_close(&p);
}

/* --- canonical sums ----------------------------------------------------------------------------------------------- */

struct add {
    float *leaf;
};

static void add_leaves(void *arg, int left, int right)
{
    struct add *add = arg;
    add->leaf[left] += add->leaf[right];
}

static const struct model_dims few_experts = {.dim = 64,
                                              .n_layers = 1,
                                              .n_heads = 4,
                                              .n_kv_heads = 4,
                                              .head_dim = 16,
                                              .ffn_hidden = 128,
                                              .vocab_size = 256,
                                              .rope_theta = 1e4,
                                              .norm_eps = 1e-5,
                                              .n_experts = 12,
                                              .top_k = 2,
                                              .moe_hidden = 32,
                                              .route_scale = 1};

/* What a mesh makes of numbers, one a microbatch and part of its tokens (cp; of experts cp and tp): each rank's
 * subtrees as it adds them up, then adds. ep 0: of a unit without experts. */
static float canonical_sum(int dp_replicate, int dp_shard, int cp, int tp, int ep, int microbatches,
                           const float *numbers)
{
    struct programs p;
    float slices[256] = {0}, leaf[64];

    open_case(&(struct programs_case){.dims = ep ? &few_experts : NULL,
                                      .pp = 1,
                                      .dp_replicate = dp_replicate,
                                      .dp_shard = dp_shard,
                                      .cp = cp,
                                      .tp = tp,
                                      .ep = ep,
                                      .microbatches = microbatches,
                                      .canonical = true},
              &p);
    const int together = MAX(ep, 1), parts = ep ? cp * tp : cp;
    const struct tree_sum *any = ep ? &p.classes[0]->sum_experts : &p.classes[0]->sum;
    for (int at = 0, next = 0; at < dp_replicate * dp_shard * parts; at++) { /* a rank that has tokens */
        const int c = at % parts;
        struct tree_stack own = {.leaves = microbatches};
        struct add add = {.leaf = leaf};
        int64_t from, to;
        memcpy(leaf, numbers + c * microbatches, (size_t)microbatches * sizeof *leaf);
        tree_share(microbatches, dp_replicate * dp_shard, at / parts, &from, &to);
        for (int64_t i = from; i < to; i++)
            tree_push(&own, (struct tree_node){.level = 0, .index = i}, (int)i, add_leaves, &add);
        next = at % together == 0 ? at / together * any->slices : next;
        for (int k = 0; k < own.depth; k++)
            slices[next++] = leaf[own.id[k]];
        assert_true(next <= (at / together + 1) * any->slices);
    }
    for (int k = 0; k < p.n; k++) { /* every rank adds alike */
        const struct tree_sum *other = ep ? &p.classes[k]->sum_experts : &p.classes[k]->sum;
        assert_int_equal(other->n, any->n);
        assert_memory_equal(other->adds, any->adds, (size_t)any->n * sizeof *any->adds);
    }
    for (int i = 0; i < any->n; i++)
        slices[any->adds[i].left] += slices[any->adds[i].right];
    const float sum = slices[any->root];
    programs_close(&p);
    return sum;
}

static void draw_numbers(float *numbers, int n)
{
    for (int i = 0; i < n; i++)
        numbers[i] = rng_normal(rng_key(3, "numbers"), (uint64_t)i) * (i % 5 ? 1.0f : 1e4f);
}

static void test_canonical_sums(void **state)
{
    (void)state;
    float numbers[2 * 13];

    draw_numbers(numbers, 26);
    for (int cp = 1; cp <= 2; cp++) {
        double exact = 0;
        for (int i = 0; i < 13 * cp; i++)
            exact += numbers[i];
        const float one = canonical_sum(1, 1, cp, 1, 0, 13, numbers);
        assert_true(exact - one < 0.05 && one - exact < 0.05);
        for (int replicate = 1; replicate <= 3; replicate++)
            for (int shard = 1; shard <= 4; shard++) {
                const float other = canonical_sum(replicate, shard, cp, 1, 0, 13, numbers);
                assert_memory_equal(&other, &one, sizeof one);
            }
    }
}

/* Experts: whatever ranks share them. Twelve microbatches: those of a rank are no subtree on most meshes. */
static void test_canonical_sums_of_experts(void **state)
{
    static const int meshes[][3] = {{1, 1, 1}, {1, 1, 2}, {1, 1, 4}, {1, 2, 1}, {1, 2, 2}, {1, 2, 4},
                                    {1, 4, 2}, {2, 2, 2}, {2, 2, 4}, {1, 3, 3}, {1, 6, 2}, {2, 3, 6}};
    (void)state;
    float numbers[4 * 12];

    draw_numbers(numbers, 48);
    for (int cp = 1; cp <= 2; cp++)
        for (int tp = 1; tp <= 2; tp++) {
            const int parts = cp * tp;
            double exact = 0;
            for (int i = 0; i < 12 * parts; i++)
                exact += numbers[i];
            const float one = canonical_sum(1, 1, cp, tp, 1, 12, numbers);
            assert_true(exact - one < 0.05 && one - exact < 0.05);
            for (size_t i = 0; i < ARRAY_SIZE(meshes); i++) {
                const int *m = meshes[i];
                if (m[1] * parts % m[2] != 0 || (parts % m[2] != 0 && m[2] % parts != 0))
                    continue;
                const float other = canonical_sum(m[0], m[1], cp, tp, m[2], 12, numbers);
                assert_memory_equal(&other, &one, sizeof one);
            }
        }
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Most buffers of a kind alive at once. */
static int most_alive(const struct program *p, enum buffer_kind kind, const char *name)
{
    int most = 0;

    for (int i = 0; i < p->n_actions; i++) {
        int alive = 0;
        for (int k = 0; k < p->n_buffers; k++) {
            const struct buffer *b = &p->buffers[k];
            alive += b->kind == kind && b->first >= 0 && b->first <= i && i <= b->last &&
                     (!name || strcmp(b->name, name) == 0);
        }
        most = MAX(most, alive);
    }
    return most;
}

static int count_ops(const struct program *p, enum op op, int unit)
{
    int n = 0;
    for (int i = 0; i < p->n_actions; i++)
        n += p->actions[i].op == op && (unit < 0 || p->actions[i].unit == unit);
    return n;
}

static void test_gathers(void **state)
{
    (void)state;
    const int units = 6; /* embedding, four layers, head */
    struct programs_case c = {
        .pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 1, .microbatches = 6, .reduce = REDUCE_STEP};
    struct programs p;

    for (int prefetch = 0; prefetch < 3; prefetch++) {
        c.prefetch = prefetch;
        c.reshard = RESHARD_ALWAYS;
        open_case(&c, &p);
        /* forward everything, backward the layers; the head does both in one execution */
        assert_int_equal(count_ops(p.classes[0], OP_ALL_GATHER, -1), 3 * (units + units - 2));
        assert_int_equal(count_ops(p.classes[0], OP_RELEASE, -1), 3 * (units + units - 2));
        assert_int_equal(most_alive(p.classes[0], BUF_FULL, NULL), 1 + prefetch);
        programs_close(&p);
    }
    c.reshard = RESHARD_NEVER;
    open_case(&c, &p);
    assert_int_equal(count_ops(p.classes[0], OP_ALL_GATHER, -1), units);
    assert_int_equal(count_ops(p.classes[0], OP_RELEASE, -1), units);
    assert_int_equal(count_ops(p.classes[0], OP_REDUCE_SCATTER, -1), units);
    assert_int_equal(most_alive(p.classes[0], BUF_FULL, NULL), units);
    assert_int_equal(most_alive(p.classes[0], BUF_GRAD, NULL), units);
    programs_close(&p);

    /* A unit's whole gradient is gone before the next one's but one. */
    c.reshard = RESHARD_DEFAULT;
    c.reduce = REDUCE_DEFAULT;
    open_case(&c, &p);
    assert_int_equal(count_ops(p.classes[0], OP_REDUCE_SCATTER, -1), 3 * units);
    assert_true(most_alive(p.classes[0], BUF_GRAD, NULL) <= 2);
    assert_int_equal(most_alive(p.classes[0], BUF_GRAD_SHARD, NULL), units);
    programs_close(&p);
}

/* --- parts that go round ------------------------------------------------------------------------------------------ */

/* Bytes that a phase of one layer and microbatch passes on, and the number of its transfers. */
static size_t rotated_bytes(const struct program *p, enum phase phase, int *ret_n)
{
    size_t bytes = 0;

    *ret_n = 0;
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *const a = &p->actions[i];
        if (a->channel != CHANNEL_ROTATE || a->phase != phase || a->unit != 1 || a->microbatch != 0)
            continue;
        assert_int_equal(a->op == OP_SHIFT || a->op == OP_ROTATE, true);
        bytes += action_sent_bytes(p, a);
        (*ret_n)++;
    }
    return bytes;
}

/* Most bytes of layers' buffers of a kind that are alive at once. External ones always are. */
static size_t most_bytes(const struct program *p, enum buffer_kind kind, enum buffer_kind other)
{
    size_t most = 0;

    for (int i = 0; i < p->n_actions; i++) {
        size_t alive = 0;
        for (int k = 0; k < p->n_buffers; k++) {
            const struct buffer *const b = &p->buffers[k];
            const bool there = buffer_is_external(b->kind) || (b->first <= i && i <= b->last && b->first >= 0);
            if ((b->kind == kind || b->kind == other) && there && p->layout->units[b->unit].cut == GROUP_ROTATE)
                alive += b->bytes;
        }
        most = MAX(most, alive);
    }
    return most;
}

/* A layer's matrices are a part of n on each rank. In each pass each rank sends (n - 1) / n of all parts, and no rank
 * has more than two n-ths of the weights: its own parts, and half a layer's part or two that go round. */
static void test_rotation(void **state)
{
    (void)state;
    for (int turn = 0; turn < 16; turn++) {
        const bool in_place = turn & 1, full = turn & 2;
        const int n = turn & 4 ? 4 : 2, cp = turn & 8 ? 2 : 1;
        const struct programs_case c = {.dims = &programs_heads,
                                        .pp = 1,
                                        .dp_replicate = 1,
                                        .dp_shard = n,
                                        .cp = cp,
                                        .tp = 1,
                                        .microbatches = 2 * n,
                                        .dt = DTYPE_BF16,
                                        .checkpointing = full ? CHECKPOINT_FULL : CHECKPOINT_NONE,
                                        .rotate = true,
                                        .in_place = in_place};
        struct programs p;
        int transfers;
        open_case(&c, &p);
        assert_int_equal(p.n, 1);
        const struct program *const q = p.classes[0];
        const size_t attention = (size_t)(4 * 64 * 64 / n), feed_forward = (size_t)(3 * 64 * 128 / n);
        const size_t layer = attention + feed_forward, once = (size_t)(n - 1) * layer;
        assert_int_equal(rotated_bytes(q, PHASE_FORWARD, &transfers), once * 2);
        assert_int_equal(transfers, 2 * (n - 1));
        assert_int_equal(rotated_bytes(q, PHASE_DGRAD, &transfers), once * 2);
        assert_int_equal(rotated_bytes(q, PHASE_WGRAD, &transfers), once * 4);
        assert_int_equal(transfers, 2 * (n - 1));
        /* What is kept of a layer needs both rings, but nothing of the last product. */
        assert_int_equal(rotated_bytes(q, PHASE_RECOMPUTE, &transfers), full ? once * 2 : 0);
        /* Gathers of layers are over cp alone. */
        int gathers = 0;
        for (int i = 0; i < q->n_actions; i++)
            gathers += q->actions[i].unit == 1 && q->actions[i].channel == CHANNEL_EXPERT_GATHER;
        assert_int_equal(gathers, cp > 1 ? 4 : 0);
        assert_int_equal(mesh_group_size(&q->mesh, GROUP_EXPERT_SHARD), cp);

        const size_t norms = 2 * 64 + 1024,
                     own = 4 * (layer + norms) * 2; /* bf16; at most so much of norms, and gaps */
        const size_t travels = (in_place ? 1 : 2) * feed_forward * 2;
        const size_t gathered = cp > 1 ? 3 * (layer + norms) * 2 : 0; /* this layer's, the next one's, the last one's */
        assert_in_range(most_bytes(q, BUF_SHARD, BUF_FULL), own / (size_t)cp / 2,
                        own / (size_t)cp + gathered + travels);
        if (cp == 1)
            assert_true(most_bytes(q, BUF_SHARD, BUF_FULL) <= 2 * 4 * (layer + norms) * 2);
        /* A part's gradient, and one or two halves of others'; the one before may still be reduced. */
        assert_true(most_bytes(q, BUF_GRAD, BUF_GRAD) <= (cp > 1 ? 4 : 3 + 4) * (layer + norms) * 4 + 2 * layer * 4);
        /* The rank's own weights are where they were: only the update writes them. */
        for (int i = 0; i < q->n_actions; i++)
            for (int k = 0; k < q->actions[i].n_operands; k++) {
                const struct operand *const o = &action_operands(q, &q->actions[i])[k];
                if (q->buffers[o->buffer].kind == BUF_SHARD && o->access & ACCESS_WRITE)
                    assert_int_equal(q->actions[i].op, OP_OPTIMISE);
            }
        programs_close(&p);
    }
}

static void test_rotation_is_refused(void **state)
{
    (void)state;
    static const struct programs_case cases[] = {
        {.pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 1, .microbatches = 3},
        {.pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 1, .microbatches = 4, .canonical = true},
        {.pp = 2, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 1, .microbatches = 4},
        {.pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 2, .microbatches = 4},
        {.pp = 1, .dp_replicate = 1, .dp_shard = 4, .cp = 1, .tp = 1, .microbatches = 4}, /* two key/value heads */
        {.dims = &programs_experts, .pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 1, .microbatches = 4},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct programs_case c = cases[i];
        struct titan_error err = {0};
        struct programs p;
        c.rotate = true;
        assert_int_equal(programs_open(&c, &p, &err), TITAN_EINVAL);
    }
}

/* Messages of a tied head: the table, or its gradient. */
static int count_messages(const struct program *p, enum op op, enum phase phase)
{
    int n = 0;

    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        n += a->op == op && a->microbatch < 0 && a->phase == phase && a->unit == 0;
    }
    return n;
}

static int count_buffers(const struct program *p, enum buffer_kind kind, int unit)
{
    int n = 0;

    for (int i = 0; i < p->n_buffers; i++)
        n += p->buffers[i].kind == kind && p->buffers[i].unit == unit;
    return n;
}

/* A matrix is trained on one rank: the head's rank gets it once a step, and gives its part of the gradient back. */
static void test_tied_head(void **state)
{
    (void)state;
    struct programs_case c = {
        .pp = 2, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 1, .layers = 8, .microbatches = 8, .tied = true};
    static const char *const orders[] = {"1F1B", "Interleaved1F1B", "ZBVZeroBubble"};
    struct programs p;

    for (int i = 0; i < 18; i++) {
        c.pp = 2 + i % 3;
        c.schedule = orders[i / 3 % 3];
        c.forward_only = i >= 9;
        const int apart = i / 3 % 3 < 2, trained = apart && !c.forward_only;
        open_case(&c, &p);
        for (int r = 0; r < c.pp; r++) {
            const struct program *q = p.classes[r];
            const int first = r == 0, last = r == c.pp - 1;
            assert_int_equal(count_messages(q, OP_SEND, PHASE_FORWARD), first && apart);
            assert_int_equal(count_messages(q, OP_RECV, PHASE_FORWARD), last && apart);
            assert_int_equal(count_messages(q, OP_SEND, PHASE_REDUCE), last && trained);
            assert_int_equal(count_messages(q, OP_RECV, PHASE_REDUCE), first && trained);
            assert_int_equal(count_ops(q, OP_NORM, 0), first && !c.forward_only);
            assert_int_equal(count_buffers(q, BUF_STATE, 0), first);
            assert_int_equal(count_buffers(q, BUF_SHARD, 0), first);
        }
        programs_close(&p);
    }
}

/* As many microbatches' inputs are kept as the schedule has in flight. */
static void test_in_flight(void **state)
{
    (void)state;
    for (int pp = 2; pp <= 4; pp++) {
        struct programs_case c = {.dims = &deep,
                                  .pp = pp,
                                  .dp_replicate = 1,
                                  .dp_shard = 1,
                                  .cp = 1,
                                  .tp = 1,
                                  .microbatches = 12,
                                  .schedule = "1F1B"};
        struct programs p;
        open_case(&c, &p);
        for (int r = 0; r < pp; r++) {
            assert_int_equal(most_alive(p.classes[r], BUF_TOKENS, NULL), pp - r);
            assert_int_equal(most_alive(p.classes[r], BUF_TOKENS, NULL), schedule_in_flight(p.schedule, r));
        }
        programs_close(&p);
    }
}

/* Recomputed: a layer's forward is written once more, on the parameters gathered for its backward. */
static void test_recomputation(void **state)
{
    (void)state;
    struct programs_case c = {.pp = 1,
                              .dp_replicate = 1,
                              .dp_shard = 2,
                              .cp = 1,
                              .tp = 1,
                              .microbatches = 4,
                              .reshard = RESHARD_ALWAYS,
                              .checkpointing = CHECKPOINT_FULL};
    struct programs p, kept;

    open_case(&c, &p);
    c.checkpointing = CHECKPOINT_NONE;
    open_case(&c, &kept);
    int again = 0;
    for (int i = 0; i < p.classes[0]->n_actions; i++)
        again += p.classes[0]->actions[i].op == OP_ATTENTION && p.classes[0]->actions[i].phase == PHASE_RECOMPUTE;
    assert_int_equal(again, 2 * 4);
    assert_int_equal(count_ops(p.classes[0], OP_ATTENTION, -1), 2 * count_ops(kept.classes[0], OP_ATTENTION, -1));
    assert_int_equal(most_alive(p.classes[0], BUF_ACTIVATION, "xn1"), 1);
    assert_int_equal(most_alive(kept.classes[0], BUF_ACTIVATION, "xn1"), 4);
    assert_int_equal(most_alive(p.classes[0], BUF_FULL, NULL), most_alive(kept.classes[0], BUF_FULL, NULL));
    programs_close(&p);
    programs_close(&kept);
}

/* With all products kept, what is computed again reads memory only, experts and latent attention included. */
static void test_recomputation_without_products(void **state)
{
    static const struct model_dims experts = {.dim = 64,
                                              .n_layers = 3,
                                              .n_heads = 4,
                                              .n_kv_heads = 4,
                                              .head_dim = 24,
                                              .ffn_hidden = 128,
                                              .vocab_size = 256,
                                              .rope_theta = 1e4,
                                              .norm_eps = 1e-5,
                                              .kv_lora_rank = 16,
                                              .qk_nope_head_dim = 16,
                                              .qk_rope_head_dim = 8,
                                              .v_head_dim = 16,
                                              .n_experts = 4,
                                              .top_k = 2,
                                              .n_shared_experts = 1,
                                              .moe_hidden = 32,
                                              .n_dense_layers = 1,
                                              .route_scale = 1.0};

    (void)state;
    for (int i = 0; i < 4; i++) {
        const struct programs_case c = {.dims = i % 2 ? &experts : &deep,
                                        .pp = 1,
                                        .dp_replicate = 1,
                                        .dp_shard = 2,
                                        .cp = 1,
                                        .tp = 1 + i / 2,
                                        .microbatches = 2,
                                        .checkpointing = CHECKPOINT_PRODUCTS};
        struct programs_case all = c;
        struct programs p, kept;
        open_case(&c, &p);
        all.checkpointing = CHECKPOINT_NONE;
        open_case(&all, &kept);
        for (int k = 0; k < OP_COUNT; k++)
            if (op_class((enum op)k) == OP_CLASS_PRODUCT || op_class((enum op)k) == OP_CLASS_ATTENTION)
                assert_int_equal(count_ops(p.classes[0], (enum op)k, -1), count_ops(kept.classes[0], (enum op)k, -1));
        assert_true(count_ops(p.classes[0], OP_SWIGLU, -1) > count_ops(kept.classes[0], OP_SWIGLU, -1));
        assert_true(program_peak(p.classes[0], NULL, NULL) < program_peak(kept.classes[0], NULL, NULL));
        programs_close(&p);
        programs_close(&kept);
    }
}

/* A rank knows of all others from the first gather where they share out one state, and otherwise from AGREE. */
static void test_sync_point(void **state)
{
    (void)state;
    static const struct {
        struct programs_case c;
        enum op first;
    } cases[] = {
        {{.pp = 1, .dp_replicate = 1, .dp_shard = 4, .cp = 1, .tp = 1}, OP_ALL_GATHER},
        {{.pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 2, .tp = 1}, OP_ALL_GATHER},
        {{.pp = 1, .dp_replicate = 4, .dp_shard = 1, .cp = 1, .tp = 1}, OP_ALL_REDUCE},
        {{.pp = 1, .dp_replicate = 2, .dp_shard = 2, .cp = 1, .tp = 1}, OP_AGREE},
        {{.pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 2}, OP_AGREE},
        {{.pp = 4, .dp_replicate = 1, .dp_shard = 1, .cp = 1, .tp = 1}, OP_AGREE},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct programs_case c = cases[i].c;
        struct programs p;
        c.microbatches = 8;
        open_case(&c, &p);
        for (int k = 0; k < p.n; k++) {
            const int at = program_sync_point(p.classes[k]);
            assert_in_range(at, 0, p.classes[k]->n_actions - 1);
            assert_int_equal(p.classes[k]->actions[at].op, cases[i].first);
        }
        programs_close(&p);
    }
    struct programs_case one = {.pp = 1, .dp_replicate = 1, .dp_shard = 1, .cp = 1, .tp = 1, .microbatches = 8};
    struct programs p;
    open_case(&one, &p);
    assert_int_equal(program_sync_point(p.classes[0]), -1);
    programs_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_schedule_runs),
        cmocka_unit_test(test_drawn_meshes_run),
        cmocka_unit_test(test_sending_stops_nobody),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_canonical_sums),
        cmocka_unit_test(test_canonical_sums_of_experts),
        cmocka_unit_test(test_gathers),
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_rotation_is_refused),
        cmocka_unit_test(test_tied_head),
        cmocka_unit_test(test_in_flight),
        cmocka_unit_test(test_recomputation),
        cmocka_unit_test(test_recomputation_without_products),
        cmocka_unit_test(test_sync_point),
    };
    return cmocka_run_group_tests_name("build", tests, NULL, NULL);
}
