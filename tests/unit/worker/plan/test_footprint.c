/* SPDX-License-Identifier: Apache-2.0 */
/* footprint.h: what transfers of a program, as written here by hand, touch of the communicators' shared segments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "worker/comm/comm.h"
#include "worker/plan/footprint.h"

#define SHARDS 4

static const struct machine host = {.host_memory = true, .memory_peers = 77}, card = {.memory_peers = 77};

/* Of dp_shard and pp ranks; one action over a channel, with what it reads and what it writes. */
struct one {
    struct action action;
    struct operand operands[2];
    struct op_params params;
    struct program program;
};

static size_t peers(struct one *o, enum op op, enum channel channel, size_t read, size_t written)
{
    o->operands[0] = (struct operand){.access = ACCESS_WRITE, .bytes = written};
    o->operands[1] = (struct operand){.access = ACCESS_READ, .bytes = read};
    o->action = (struct action){.op = (uint16_t)op, .channel = (int8_t)channel, .n_operands = 2};
    o->program = (struct program){.mesh = {.world = SHARDS, .size = {1, 1, SHARDS, 1, 1}, .ep = 1},
                                  .n_actions = 1,
                                  .actions = &o->action,
                                  .operands = o->operands,
                                  .params = &o->params};
    if (channel_group(channel) == GROUP_PP)
        o->program.mesh = (struct mesh){.world = 2, .size = {2, 1, 1, 1, 1}, .ep = 1};
    return footprint_of_peers(&host, &o->program, 0);
}

/* The world's communicator is always there, the channel's with this use. */
static size_t with(const struct comm_use *use)
{
    const struct comm_use none = {0};
    return comm_shm_touched(SHARDS, &none) + comm_shm_touched(SHARDS, use);
}

static void collectives_count_what_is_sent(void **state)
{
    (void)state;
    struct one o = {0};
    assert_int_equal(peers(&o, OP_ALL_GATHER, CHANNEL_GATHER, 4096, 16384), with(&(struct comm_use){.gathered = 4096}));
    assert_int_equal(peers(&o, OP_REDUCE_SCATTER, CHANNEL_REDUCE, 16384, 4096),
                     with(&(struct comm_use){.exchanged = 4096}));
    assert_int_equal(peers(&o, OP_ALL_TO_ALL, CHANNEL_GATHER, 16384, 65536),
                     with(&(struct comm_use){.exchanged = 4096}));
    assert_int_equal(peers(&o, OP_ALL_REDUCE, CHANNEL_REDUCE, 4096, 16384), with(&(struct comm_use){.summed = 4096}));
}

static void the_world_agrees(void **state)
{
    (void)state;
    struct one o = {0};
    assert_int_equal(peers(&o, OP_AGREE, CHANNEL_WORLD, 4096, 0),
                     comm_shm_touched(SHARDS, &(struct comm_use){.summed = 4096}));
}

static void messages_have_ways(void **state)
{
    (void)state;
    struct one o = {.params.shift = {.bytes = 4096}};
    assert_int_equal(peers(&o, OP_SHIFT, CHANNEL_GATHER, 4096, 4096),
                     with(&(struct comm_use){.message = 4096, .ways = 2}));
    o.params.all_to_all_v.bytes = 64;
    o.params.all_to_all_v.rows = 256;
    assert_int_equal(peers(&o, OP_ALL_TO_ALL_V, CHANNEL_GATHER, 16384, 16384),
                     with(&(struct comm_use){.message = 4096, .ways = 2 * (SHARDS - 1)}));
}

static void an_edge_is_of_two(void **state)
{
    (void)state;
    struct one o = {.params.send.bytes = 4096};
    const struct comm_use none = {0}, message = {.message = 4096, .ways = 1};
    const size_t world = comm_shm_touched(2, &none), edge = comm_shm_touched(2, &message);
    assert_int_equal(peers(&o, OP_SEND, CHANNEL_FORWARD_NEXT, 4096, 0), world + edge);
    o.params.recv.bytes = 4096;
    assert_int_equal(peers(&o, OP_RECV, CHANNEL_FORWARD_NEXT, 0, 4096), world + edge);
    /* One way each: two communicators. */
    struct action both[2] = {o.action, o.action};
    both[0].op = OP_SEND;
    o.program.actions = both;
    o.program.n_actions = 2;
    assert_int_equal(footprint_of_peers(&host, &o.program, 0), world + 2 * edge);
}

static void the_largest_counts(void **state)
{
    (void)state;
    struct one o = {0};
    (void)peers(&o, OP_ALL_GATHER, CHANNEL_GATHER, 4096, 16384);
    struct action actions[3] = {o.action, o.action, o.action};
    struct operand operands[3] = {{.access = ACCESS_READ, .bytes = 4096},
                                  {.access = ACCESS_READ, .bytes = 8192},
                                  {.access = ACCESS_READ, .bytes = 2048}};
    for (int i = 0; i < 3; i++) {
        actions[i].operand = i;
        actions[i].n_operands = 1;
    }
    o.program.actions = actions;
    o.program.operands = operands;
    o.program.n_actions = 3;
    assert_int_equal(footprint_of_peers(&host, &o.program, 0), with(&(struct comm_use){.gathered = 8192}));
    actions[1].channel = CHANNEL_REDUCE; /* another communicator of the same group */
    const struct comm_use large = {.gathered = 8192};
    assert_int_equal(footprint_of_peers(&host, &o.program, 0),
                     with(&(struct comm_use){.gathered = 4096}) + comm_shm_touched(SHARDS, &large));
}

static void copies_are_gradients_of_all(void **state)
{
    (void)state;
    struct one o = {0};
    const size_t without = peers(&o, OP_ALL_GATHER, CHANNEL_GATHER, 4096, 16384);
    const struct comm_use gradients = {.message = 1024, .ways = 2};
    assert_int_equal(footprint_of_peers(&host, &o.program, 1024), without + comm_shm_touched(SHARDS, &gradients));
}

static void others_know_it_or_need_none(void **state)
{
    (void)state;
    struct one o = {0};
    (void)peers(&o, OP_ALL_GATHER, CHANNEL_GATHER, 4096, 16384);
    assert_int_equal(footprint_of_peers(&card, &o.program, 1024), 77);
    o.program.mesh = (struct mesh){.world = 1, .size = {1, 1, 1, 1, 1}, .ep = 1};
    assert_int_equal(footprint_of_peers(&host, &o.program, 1024), 0);
    assert_int_equal(footprint_of_peers(&card, &o.program, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_count_what_is_sent),
        cmocka_unit_test(the_world_agrees),
        cmocka_unit_test(messages_have_ways),
        cmocka_unit_test(an_edge_is_of_two),
        cmocka_unit_test(the_largest_counts),
        cmocka_unit_test(copies_are_gradients_of_all),
        cmocka_unit_test(others_know_it_or_need_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
