/* SPDX-License-Identifier: Apache-2.0 */
/* check_values.c - reads and writes in order, and what every execution of a unit does.
 *
 * The program is run on symbols. A write gives a part of a buffer a value: a hash of the operation, its numbers and the
 * values that it reads. An execution is what is done with one unit, in one phase, for one microbatch. Values from
 * outside the execution stand for themselves. Values of the same unit count by name, values of other units by kind and
 * by the distance to their unit.
 *
 * The hashes of an execution's actions have a sum. This sum must be the same for all microbatches and for all layers of
 * a kind. The order of independent actions does not change the sum. A missing, double or misplaced action changes it,
 * and so does an action that reads another value. A fused action is run as the two actions that it stands for, each in
 * its own execution. The tests of block.h show that an execution is right; this file shows that all are the same. */
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/vec.h"
#include "worker/plan/checker.h"
#include "worker/plan/fuse.h"

#define EXECUTION_PHASES (PHASE_WGRAD + 1) /* forward, recompute, dgrad, wgrad */

/* A part of a buffer that has been written. */
struct part {
    size_t from, to;
    uint64_t value;
    int execution; /* NONE: of no execution */
    int stage;     /* stage in which the part was received; NONE: it was not received */
    bool handed;   /* another execution has read the part; its own execution must not write to it any more */
};

struct contents {
    struct part *parts; /* by address, disjoint */
    int n, cap;
    bool released;
};

struct execution {
    uint64_t sum;
    uint64_t exact; /* `sum` with the units of outside values; the same for all microbatches of a unit */
    int n;
    int checks; /* number of CHECK actions in a forward */
};

/* What is counted for a microbatch. */
struct slot {
    int64_t tokens; /* loaded */
    int64_t losses; /* reported */
    int64_t mtp_losses;
};

struct values {
    struct checker *c;
    struct contents *contents;    /* per buffer */
    uint64_t *names;              /* per buffer: hash of kind and name */
    struct execution *executions; /* [unit][phase][slot] */
    struct slot *slots;
    /* For plain actions; each action has FUSE_ACTIONS places: */
    uint64_t *hash, *exact; /* hashes of the actions of executions */
    int *execution;         /* NONE: of no execution */
    uint64_t *converted;    /* per unit: a hash of which of its layers are converted */
};

static uint64_t mix(uint64_t h, uint64_t x)
{
    return hash_mix(h ^ x);
}

/* --- executions --------------------------------------------------------------------------------------------------- */

static int execution_number(const struct values *v, int unit, int phase, int slot)
{
    titan_assert(unit >= 0 && phase < EXECUTION_PHASES && slot >= 0 && slot < v->c->p->share_max);
    return (unit * EXECUTION_PHASES + phase) * (int)v->c->p->share_max + slot;
}

static int execution_unit(const struct values *v, int execution)
{
    return execution == NONE ? NONE : execution / (int)v->c->p->share_max / EXECUTION_PHASES;
}

/* Does the buffer hold a sum over executions? The first execution begins the sum, the others add to it. */
static bool accumulates(const struct buffer *b)
{
    return b->kind == BUF_GRAD || b->kind == BUF_GRAD_SHARD || b->kind == BUF_STATISTICS ||
           b->kind == BUF_EXPERT_TOKENS;
}

/* --- contents ----------------------------------------------------------------------------------------------------- */

/* First part that ends behind an address. */
static int find_part(const struct contents *s, size_t at)
{
    int low = 0, high = s->n;

    while (low < high) {
        const int mid = (low + high) / 2;
        if (s->parts[mid].to <= at)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool insert_part(struct contents *s, int at, struct part part)
{
    return VEC_INSERT(s->parts, s->n, s->cap, at, part);
}

/* --- one action --------------------------------------------------------------------------------------------------- */

/* Position of a unit along the model. */
static int place_of_unit(const struct checker *c, int unit)
{
    titan_assert(unit >= 0 && unit < c->model->n_units);
    const struct model_unit *u = &c->model->units[unit];
    switch (u->kind) {
    case UNIT_EMBEDDING:
        return NONE;
    case UNIT_NORM: /* before the first module */
        return (int)c->model->dims.n_layers;
    case UNIT_HEAD:
        return model_all_layers(c->model) + (c->model->dims.mtp_layers > 0);
    default:
        return u->layer + (model_module(c->model, u->layer) > 0);
    }
}

/* A hash of where a value comes from: kind, and for activations also the distance to their unit. An activation comes
 * from the unit before, its gradient from the unit behind. A value was received, or was left on this rank. */
static uint64_t origin_of_part(const struct values *v, const struct operand *o, const struct part *part, int execution)
{
    const struct checker *c = v->c;
    const enum buffer_kind kind = c->p->buffers[o->buffer].kind;
    const bool travels = kind == BUF_ACTIVATION || kind == BUF_DACTIVATION;
    int distance = 0;

    if (execution_unit(v, part->execution) == execution_unit(v, execution))
        return mix(o->offset, v->names[o->buffer]);
    if (execution != NONE && travels && (part->execution != NONE || part->stage != NONE)) {
        distance = place_of_unit(c, execution_unit(v, execution));
        if (part->execution != NONE) {
            distance -= place_of_unit(c, execution_unit(v, part->execution));
        } else {
            titan_assert(part->stage >= 0 && part->stage < c->p->layout->stages);
            const int *const first = &c->p->layout->first_unit[part->stage];
            distance -= kind == BUF_ACTIVATION ? place_of_unit(c, first[0]) - 1 : place_of_unit(c, first[1] - 1) + 1;
        }
    }
    return mix(mix(o->offset, (uint64_t)kind), (uint64_t)distance);
}

/* What an operand reads. */
struct reading {
    uint64_t value; /* the same for all layers of a kind */
    uint64_t owner; /* the same for all microbatches of a unit */
};

/* Reads an operand. All of it must have been written. */
static titan_status read_operand(const struct values *v, const struct operand *o, int k, int execution,
                                 struct reading *ret)
{
    const struct checker *c = v->c;
    const struct buffer *b = &c->p->buffers[o->buffer];
    const struct contents *s = &v->contents[o->buffer];
    size_t at = o->offset;
    uint64_t origin = 0; /* origin of the part before; 0: there is none, or the value is of this execution */

    *ret = (struct reading){0};
    for (int i = find_part(s, at); at < o->offset + o->bytes; i++) {
        struct part *part = &s->parts[i];
        if (i == s->n || part->from > at)
            return REFUSE(c, "operand %d reads byte %zu of %s #%d (%s), which no action has written", k, at,
                          buffer_kind_name(b->kind), o->buffer, b->name ? b->name : "");
        part->handed |= part->execution != execution && !accumulates(b);
        /* A value of this execution counts by its hash and its parts. Any other value counts only by its origin. */
        if (part->execution == execution && execution != NONE && !accumulates(b)) {
            ret->value = mix(ret->value, mix(mix(at - o->offset, part->value), part->from - o->offset));
            ret->value = mix(ret->value, MIN(part->to, o->offset + o->bytes) - at);
            origin = 0;
        } else if (origin_of_part(v, o, part, execution) != origin) {
            origin = origin_of_part(v, o, part, execution);
            ret->value = mix(ret->value, mix(at - o->offset, origin));
            if (!accumulates(b))
                ret->owner = mix(mix(ret->owner, v->names[o->buffer]), (uint64_t)execution_unit(v, part->execution));
        }
        at = part->to;
    }
    return TITAN_OK;
}

static titan_status write_operand(const struct values *v, const struct action *a, const struct operand *o, int k,
                                  int execution, uint64_t value)
{
    const struct checker *c = v->c;
    const struct buffer *b = &c->p->buffers[o->buffer];
    struct contents *s = &v->contents[o->buffer];
    int at = find_part(s, o->offset);

    const bool once = accumulates(b) || b->kind == BUF_FULL || b->kind == BUF_TOKENS;
    if (o->access == ACCESS_WRITE && once && at < s->n && s->parts[at].from < o->offset + o->bytes)
        return REFUSE(c, "operand %d overwrites %s #%d, which has been begun", k, buffer_kind_name(b->kind), o->buffer);
    for (int i = at; i < s->n && s->parts[i].from < o->offset + o->bytes; i++)
        if (s->parts[i].handed && s->parts[i].execution == execution)
            return REFUSE(c, "operand %d changes %s #%d (%s), which has been passed on already", k,
                          buffer_kind_name(b->kind), o->buffer, b->name ? b->name : "");
    const struct part part = {.from = o->offset,
                              .to = o->offset + o->bytes,
                              .value = mix(value, (uint64_t)k),
                              .execution = execution,
                              .stage = a->op == OP_RECV ? a->stage : NONE};
    titan_assert(part.from < part.to && at >= 0 && (s->n == 0 || s->parts));
    if (at < s->n && s->parts[at].from < part.from) { /* the beginning of the old part stays */
        struct part head = s->parts[at];
        head.to = part.from;
        if (!insert_part(s, at, head))
            return checker_no_memory(c);
        s->parts[++at].from = part.from;
    }
    int end = at;
    while (end < s->n && s->parts[end].to <= part.to)
        end++;
    if (end < s->n && s->parts[end].from < part.to)
        s->parts[end].from = part.to;
    titan_assert(end >= at && end <= s->n);
    if (end == at)
        return insert_part(s, at, part) ? TITAN_OK : checker_no_memory(c);
    s->parts[at] = part;
    memmove(s->parts + at + 1, s->parts + end, (size_t)(s->n - end) * sizeof *s->parts);
    s->n -= end - at - 1;
    return TITAN_OK;
}

/* place: index among the plain actions. */
static titan_status run_plain(struct values *v, const struct plain_action *x, int place)
{
    struct checker *c = v->c;
    const struct action *a = &x->action;
    const struct operand *o = x->operands;
    const bool in_execution = a->unit >= 0 && a->microbatch >= 0 && a->phase < EXECUTION_PHASES && a->op != OP_LOAD;
    const int execution = in_execution ? execution_number(v, a->unit, a->phase, a->microbatch) : NONE;
    const struct op_params *q = x->params;
    const bool sum = a->n_operands > 0 && accumulates(&c->p->buffers[o[0].buffer]);
    uint64_t h = mix(a->op, (uint64_t)a->channel), owner = 0;

    for (int i = 0; i < op_words((enum op)a->op); i++)
        h = mix(h, (uint64_t)q->word[i]);
    h = mix(h, (sum ? q->flags & ~(uint32_t)OP_ADD_TO : q->flags) | (uint64_t)q->dt << 32 | (uint64_t)q->dt2 << 40);

    for (int k = 0; k < a->n_operands; k++) {
        const struct buffer *b = &c->p->buffers[o[k].buffer];
        if (v->contents[o[k].buffer].released)
            return REFUSE(c, "operand %d (%s #%d) is used after its release", k, buffer_kind_name(b->kind),
                          o[k].buffer);
        struct reading reading = {.value = mix(mix(o[k].offset, o[k].bytes), v->names[o[k].buffer])};
        if (b->kind == BUF_TABLE && b->unit == TABLE_POWERS) /* static scales differ by layer, but not by microbatch */
            reading = (struct reading){.value = v->names[o[k].buffer], .owner = mix(o[k].offset, o[k].bytes)};
        if (o[k].access & ACCESS_READ && !buffer_is_external(b->kind))
            TRY(read_operand(v, &o[k], k, execution, &reading));
        h = mix(h, accumulates(b) ? mix(mix(o[k].offset, o[k].bytes), (uint64_t)b->kind) : reading.value);
        owner = mix(owner, reading.owner);
    }
    for (int k = 0; k < a->n_operands; k++)
        if (o[k].access & ACCESS_WRITE && o[k].bytes > 0)
            TRY(write_operand(v, a, &o[k], k, execution, h));
    if (a->op == OP_RELEASE)
        v->contents[o[0].buffer].released = true;
    if (a->microbatch >= 0) { /* counts what goes into the statistics: no action reads them before the end */
        struct slot *const slot = &v->slots[a->microbatch];
        slot->tokens += a->op == OP_LOAD ? q->load.N : 0;
        slot->losses += a->op == OP_LOSS_SUM ? q->loss_sum.N : 0;
        slot->mtp_losses += a->op == OP_MTP_LOSS_SUM ? q->mtp_loss_sum.N : 0;
        if (a->op == OP_CHECK && a->unit >= 0)
            v->executions[execution_number(v, a->unit, PHASE_FORWARD, a->microbatch)].checks++;
    }
    v->hash[place] = h;
    v->exact[place] = mix(h, owner);
    /* These actions do not count, because they depend on which execution comes first or on where a message ends. */
    const bool counts = a->op != OP_SEND && a->op != OP_RECV && a->op != OP_RELEASE && !(a->op == OP_ZERO && sum);
    v->execution[place] = counts ? execution : NONE;
    if (v->execution[place] != NONE) {
        v->executions[execution].sum += mix(h, 1);
        v->executions[execution].exact += mix(v->exact[place], 1);
        v->executions[execution].n++;
    }
    return TITAN_OK;
}

/* --- all executions the same -------------------------------------------------------------------------------------- */

static const char *plain_name(const struct checker *c, int place)
{
    struct plain plain;

    fuse_undo(c->p, &c->p->actions[place / FUSE_ACTIONS], &plain);
    titan_assert(place % FUSE_ACTIONS < plain.n);
    return op_name((enum op)plain.actions[place % FUSE_ACTIONS].action.op);
}

/* Refuses the program and names the first action in which two executions differ. */
static titan_status refuse_execution(const struct values *v, const uint64_t *hash, int odd, int model)
{
    struct checker *c = v->c;
    const int slots = (int)c->p->share_max, places = FUSE_ACTIONS * c->p->n_actions;
    int i = 0, j = 0;

    titan_assert(odd != model);
    for (;; i++, j++) {
        while (i < places && v->execution[i] != odd)
            i++;
        while (j < places && v->execution[j] != model)
            j++;
        if (i >= places || j >= places || hash[i] != hash[j])
            break;
    }
    const bool ends = i >= places, model_ends = j >= places;
    c->index = ends ? NONE : i / FUSE_ACTIONS;
    return REFUSE(c, "unit %d, microbatch %d, %s: %s%s where unit %d, microbatch %d has %s (action %d)",
                  execution_unit(v, odd), odd % slots, phase_name((enum phase)(odd / slots % EXECUTION_PHASES)),
                  ends ? "ends" : "does ", ends ? "" : plain_name(c, i), execution_unit(v, model), model % slots,
                  model_ends ? "nothing more" : plain_name(c, j), model_ends ? NONE : j / FUSE_ACTIONS);
}

/* Must the executions of two units be alike? In PHASE_RECOMPUTE only executions of the same unit: each layer has a
 * checkpointing mode of its own. */
static bool alike(const struct values *v, int a, int b, int phase)
{
    const struct model *m = v->c->model;

    if (a == b)
        return true;
    if (phase == PHASE_RECOMPUTE || m->units[a].kind != UNIT_LAYER || m->units[b].kind != UNIT_LAYER ||
        v->converted[a] != v->converted[b])
        return false;
    return model_layers_alike(m, m->units[a].layer, m->units[b].layer);
}

static bool is_mine(const struct checker *c, int unit)
{
    return c->p->layout->units[unit].pp_rank == c->p->pp_rank;
}

/* Compares all executions of a unit (exact), or of all units like it. The sum of the majority counts as right. */
static titan_status check_alike(const struct values *v, int unit, int phase, bool exact)
{
    const struct checker *c = v->c;
    const int units = exact ? unit + 1 : c->model->n_units;
    int model = NONE, votes = 0;

    titan_assert(is_mine(c, unit));
#define SUM(n) (exact ? v->executions[n].exact : v->executions[n].sum)
    for (int pass = 0; pass < 2; pass++)
        for (int u = unit; u < units; u++)
            for (int s = 0; is_mine(c, u) && alike(v, unit, u, phase) && s < c->p->share; s++) {
                const int n = execution_number(v, u, phase, s);
                if (pass == 1 && (SUM(n) != SUM(model) || v->executions[n].n != v->executions[model].n))
                    return refuse_execution(v, exact ? v->exact : v->hash, n, model);
                if (pass == 1)
                    continue;
                if (votes == 0)
                    model = n;
                votes += SUM(n) == SUM(model) ? 1 : -1;
            }
#undef SUM
    return TITAN_OK;
}

/* An evaluation has no modules of multi-token prediction. */
static bool is_left_out(const struct checker *c, int unit)
{
    const struct model_unit *u = &c->model->units[unit];
    return c->p->forward_only && u->kind == UNIT_LAYER && model_module(c->model, u->layer) > 0;
}

static titan_status check_unit(const struct values *v, int unit)
{
    struct checker *c = v->c;

    /* Every unit must check its input, and every token's loss must be reported. If the model's last norm is a unit, it
     * checks the input of the head. */
    const enum unit_kind kind = c->model->units[unit].kind;
    const int64_t modules = c->model->dims.mtp_layers, losses = c->p->forward_only ? 0 : modules;
    const bool looks = kind == UNIT_LAYER || kind == UNIT_NORM || (kind == UNIT_HEAD && modules == 0);
    for (int s = 0; is_mine(c, unit) && s < c->p->share; s++) {
        const int checks = v->executions[execution_number(v, unit, PHASE_FORWARD, s)].checks;
        if (looks && !is_left_out(c, unit) && checks != 1)
            return REFUSE(c, "unit %d, microbatch %d: %d times CHECK", unit, s, checks);
        if (kind == UNIT_HEAD && v->slots[s].losses != v->slots[s].tokens)
            return REFUSE(c, "unit %d, microbatch %d: LOSS_SUM reports %ld of %ld tokens", unit, s,
                          (long)v->slots[s].losses, (long)v->slots[s].tokens);
        if (kind == UNIT_HEAD && v->slots[s].mtp_losses != losses * v->slots[s].losses)
            return REFUSE(c, "unit %d, microbatch %d: MTP_LOSS_SUM reports %ld tokens of %ld modules with %ld", unit, s,
                          (long)v->slots[s].mtp_losses, (long)losses, (long)v->slots[s].losses);
    }

    for (int phase = 0; phase < EXECUTION_PHASES; phase++) {
        const bool takes_part = kind == UNIT_EMBEDDING ? phase == PHASE_FORWARD || phase == PHASE_WGRAD
                                                       : kind != UNIT_EXPERTS && phase != PHASE_RECOMPUTE;
        const bool left_out = (c->p->forward_only && phase != PHASE_FORWARD) || is_left_out(c, unit);
        for (int s = 0; s < c->p->share_max; s++) {
            const struct execution *execution = &v->executions[execution_number(v, unit, phase, s)];
            if ((!is_mine(c, unit) || s >= c->p->share) && execution->n > 0)
                return REFUSE(c, "unit %d, microbatch %d, %s: is not this rank's", unit, s,
                              phase_name((enum phase)phase));
            if (is_mine(c, unit) && s < c->p->share && execution->n == 0 && takes_part && !left_out)
                return REFUSE(c, "unit %d, microbatch %d: there is no %s", unit, s, phase_name((enum phase)phase));
        }
        if (!is_mine(c, unit))
            continue;
        TRY(check_alike(v, unit, phase, true));
        bool covered = false; /* an earlier unit that is like this unit was checked, and this unit with it */
        for (int u = 0; u < unit && !covered; u++)
            covered = is_mine(c, u) && alike(v, u, unit, phase);
        if (!covered)
            TRY(check_alike(v, unit, phase, false));
    }
    return TITAN_OK;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

static void free_values(struct values *v)
{
    for (int i = 0; v->contents && i < v->c->p->n_buffers; i++)
        free(v->contents[i].parts);
    free(v->contents);
    free(v->names);
    free(v->executions);
    free(v->slots);
    free(v->hash);
    free(v->exact);
    free(v->execution);
    free(v->converted);
}

titan_status check_values(struct checker *c)
{
    _cleanup_(free_values) struct values v = {.c = c};
    const struct program *p = c->p;
    const size_t n_executions = (size_t)c->model->n_units * EXECUTION_PHASES * (size_t)p->share_max;

    titan_assert(p->share_max > 0);
    v.contents = calloc((size_t)p->n_buffers + 1, sizeof *v.contents);
    v.names = calloc((size_t)p->n_buffers + 1, sizeof *v.names);
    v.executions = calloc(n_executions + 1, sizeof *v.executions);
    v.slots = calloc((size_t)p->share_max + 1, sizeof *v.slots);
    v.hash = calloc(FUSE_ACTIONS * (size_t)p->n_actions + 1, sizeof *v.hash);
    v.exact = calloc(FUSE_ACTIONS * (size_t)p->n_actions + 1, sizeof *v.exact);
    v.execution = calloc(FUSE_ACTIONS * (size_t)p->n_actions + 1, sizeof *v.execution);
    v.converted = calloc((size_t)c->model->n_units + 1, sizeof *v.converted);
    if (!v.contents || !v.names || !v.executions || !v.slots || !v.hash || !v.exact || !v.execution || !v.converted)
        return checker_no_memory(c);
    for (int i = 0; i < p->n_actions; i++) { /* hashes the offsets of the weights of converted products in forward */
        const struct action *a = &p->actions[i];
        if (a->op == OP_MATMUL && a->phase == PHASE_FORWARD && a->unit >= 0 &&
            action_params(p, a)->flags & (OP_F8 | OP_I8))
            v.converted[a->unit] += mix(1, action_operands(p, a)[OPERAND_OF(matmul, b)].offset);
    }
    for (int i = 0; i < p->n_buffers; i++) {
        v.names[i] = mix(p->buffers[i].kind, p->buffers[i].kind == BUF_TABLE ? (uint64_t)p->buffers[i].unit : 0);
        for (const char *s = p->buffers[i].name; s && *s; s++)
            v.names[i] = mix(v.names[i], (uint64_t)*s);
    }

    for (c->index = 0; c->index < p->n_actions; c->index++) {
        const int first = FUSE_ACTIONS * c->index;
        struct plain plain;
        fuse_undo(p, &p->actions[c->index], &plain);
        for (int i = 0; i < FUSE_ACTIONS; i++)
            v.execution[first + i] = NONE;
        for (int i = 0; i < plain.n; i++)
            TRY(run_plain(&v, &plain.actions[i], first + i));
    }
    c->index = NONE;
    for (int u = 0; u < c->model->n_units; u++)
        TRY(check_unit(&v, u));
    return TITAN_OK;
}
