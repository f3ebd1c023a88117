/* SPDX-License-Identifier: Apache-2.0 */
/* recorder.c - records the executor's actions in the flight recorder (base/flight.h). A record begins when the stream
 * arrives at an action, and ends with the action. On a device with its own queue, it lasts only while the host enqueues
 * the action. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/exec/executor.h"

/* The groups' names for people. Channels of one group differ in the kind of their operations. */
static const char *const group_names[GROUP_COUNT] = {
    [GROUP_WORLD] = "world",   [GROUP_FSDP] = "dp_shard", [GROUP_REPLICATE] = "dp_replicate",    [GROUP_CP] = "cp",
    [GROUP_TP] = "tp",         [GROUP_EP] = "ep",         [GROUP_EXPERT_SHARD] = "expert_shard", [GROUP_PP] = "pp",
    [GROUP_OWNERS] = "owners", [GROUP_ROTATE] = "rotate",
};
static_assert(CHANNEL_COUNT < FLIGHT_GROUPS, "each channel has a group, and all ranks of an epoch");

const char *recorder_group_name(enum channel channel)
{
    const enum group group = channel_group(channel);
    titan_assert(group_names[group]);
    return group_names[group];
}

titan_status recorder_open(struct exec *e, struct titan_error *err)
{
    const struct program *const p = e->p;
    if (!flight_attached())
        return TITAN_OK;
    e->recorded = calloc((size_t)p->n_actions, sizeof *e->recorded);
    if (!e->recorded)
        return titan_fail(err, TITAN_ENOMEM, "flight recorder: out of memory");
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *const a = &p->actions[i];
        struct flight_what *const what = &e->recorded[i].what;
        const enum op op = (enum op)a->op;
        const enum flight_kind kind = p->mesh.world == 1     ? FLIGHT_ACTION
                                      : op == OP_SEND        ? FLIGHT_SEND
                                      : op == OP_RECV        ? FLIGHT_RECEIVE
                                      : op_is_collective(op) ? FLIGHT_COLLECTIVE
                                                             : FLIGHT_ACTION;
        *what = (struct flight_what){.op = op_name(op),
                                     .place = a->unit >= 0 ? p->layout->model->units[a->unit].name : NULL,
                                     .phase = phase_name((enum phase)a->phase),
                                     .bytes = kind == FLIGHT_ACTION ? 0 : action_sent_bytes(p, a),
                                     .microbatch = a->microbatch,
                                     .peer = -1,
                                     .kind = (uint8_t)kind};
        /* The peer of a message is a pp rank of this rank's pipeline. The record has the peer's rank in the epoch. */
        if (kind == FLIGHT_SEND || kind == FLIGHT_RECEIVE) {
            int at[AXIS_COUNT];
            memcpy(at, e->at, sizeof at);
            at[AXIS_PP] = a->peer;
            what->peer = mesh_rank(&p->mesh, at);
        }
        if (kind == FLIGHT_RECEIVE)
            what->bytes = action_operands(p, a)[0].bytes;
        if (kind != FLIGHT_ACTION)
            what->group = (uint8_t)a->channel;
    }
    return TITAN_OK;
}

static void begin(void *arg)
{
    struct recorded *const r = arg;
    r->mark = flight_begin(&r->what);
}

static void end(void *arg)
{
    flight_end(((struct recorded *)arg)->mark);
}

/* Does the action run on the stream's own thread, on the host? */
static bool runs_elsewhere(const struct call *c)
{
    return c->ops->stream_observe && c->a->stream != STREAM_COMPUTE;
}

void recorder_begin(const struct call *c, int index)
{
    struct recorded *const r = &c->e->recorded[index];
    titan_debug_assert(index >= 0 && index < c->e->p->n_actions);
    r->what.step = flight_steps();
    if (r->what.kind != FLIGHT_ACTION)
        r->what.number = flight_number(r->what.group, (enum flight_kind)r->what.kind);
    if (runs_elsewhere(c))
        c->ops->stream_observe(c->s, &(struct stream_observer){begin, end, r});
    else
        begin(r);
}

void recorder_end(const struct call *c, int index)
{
    if (runs_elsewhere(c))
        c->ops->stream_observe(c->s, NULL);
    else
        end(&c->e->recorded[index]);
}
