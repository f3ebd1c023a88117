/* SPDX-License-Identifier: Apache-2.0 */
/* cost.h - how long each action of a program takes on a machine: by a model, or by measured times (cost_table.h).
 *
 * Compute: the time of a product is its FLOPs over the machine's peak times an efficiency. Small products have a lower
 * efficiency. An operation that moves memory takes the time of its bytes at the memory's bandwidth. Both pay a fixed
 * cost to start. A transfer takes the time of a ring on the slowest link of the group, plus a latency for each step
 * (Thakur et al. 2005). A ring moves (n-1)/n of all bytes for gather and scatter, and twice as much for all-reduce. A
 * group's links follow from the place of its ranks: `node` consecutive ranks share one machine. Members on one machine
 * pool their network cards.
 *
 * The efficiencies of h100 and h200 are calibrated on runs of this system on these cards (docs/published.md), at the
 * power limit that a step reaches. The efficiencies of b200 are estimates. */
#ifndef TITAN_WORKER_PLAN_COST_H
#define TITAN_WORKER_PLAN_COST_H

#include "worker/plan/cost_table.h"
#include "worker/program/program.h"

struct machine {
    const char *name, *doc;
    double flops_bf16, flops_f32, flops_f8; /* dense peak of one device, FLOP/s; flops_f8 0: the device has no float8 */
    double flops_i8;                        /* the same of int8 */
    double memory_bandwidth;                /* bytes/s */
    uint64_t memory_bytes;                  /* bytes that are free before a run, measured where we had the card */
    int node;                               /* devices in a machine */
    double link_bandwidth;                  /* one direction, device to device in a machine, bytes/s */
    double net_bandwidth;                   /* one direction, a device's share of its machine's network */
    double host_bandwidth;                  /* device to host memory */
    double link_latency, net_latency;       /* s for each step of a collective */
    double start;                           /* s, start of an operation */
    double issue;                           /* s, the host issues one action */
    double matmul_efficiency, matmul_f8_efficiency; /* share of peak, for large products */
    double matmul_half;                             /* m*n*k at which a product reaches half of matmul_efficiency */
    double attention_efficiency, attention_dgrad_efficiency; /* share of peak, in any order */
    double attention_repeatable; /* repeatable gradients take so many times as long as in any order; 0: 1 */
    double attention_own, attention_own_dgrad; /* FLOP/s of our kernels, in a fixed order or fp32; 0: as in any order */
    /* attention_own and attention_own_dgrad hold for fp32 only: in bf16 our own kernels use tensor cores. */
    bool attention_own_tensor;
    double attention_masked; /* masked attention takes this many times as long for the same visible pairs */
    double memory_efficiency;
    uint64_t memory_fixed; /* bytes that a process needs besides its plan: context, libraries */
    uint64_t memory_peers; /* further bytes for communicators, with several ranks; not with host_memory (footprint.h) */
    bool mxfp8;            /* the machine has products in MXFP8, at the rate of float8 or emulated */
    bool host_memory;      /* the machine's devices compute in the host's memory */
};

/* "h100", "h200", "b200", "cpu"; NULL: no such machine. "torchtitan-h100" is an H100 with the efficiencies of
 * TorchTitan's program of 2024-12, for comparison with published figures (docs/published.md). */
const struct machine *cost_machine_find(const char *name);
/* The machine of a device, by the device's own name ("NVIDIA H200"). NULL: no machine is known. */
const struct machine *cost_machine_of(const char *device);
const char *cost_machine_names(void); /* "h100|h200|b200|cpu" */

struct cost {
    const struct machine *machine;
    const struct cost_table *table; /* asked before the machine's model; NULL: no table */
    int threads;                    /* threads of a worker's compute stream, for the table */
    bool network; /* the machine's network is not the table's: transfers between nodes are the model's */
    const struct device_info
        *device; /* device of the table, shared by its ranks; NULL: each rank has a device of the machine */
};

/* The name of an action's operation in a table: type, name, numbers. */
void cost_key(const struct program *p, const struct action *a, char ret[COST_KEY_MAX]);
/* For a transfer: the bytes by which a table looks it up, and the number of members that take part. */
uint64_t cost_bytes(const struct program *p, const struct action *a);
int cost_members(const struct program *p, const struct action *a);
/* Looks up the time of an action in the table. false: the table has no time for it. *ret_processor: s of processor time
 * on this rank, over all of its threads. */
bool cost_measured(const struct cost *cost, const struct program *p, const struct action *a, double *ret_seconds,
                   double *ret_processor);

/* Standard deviation of an operation's time; 0: no deviation was measured. */
double cost_spread(const struct cost *cost, const struct program *p, const struct action *a);

/* Seconds on the action's stream. */
double cost_action(const struct cost *cost, const struct program *p, const struct action *a);
/* The least time that an action can take on the machine. It is the longer of two times: of its FLOPs at the peak, and
 * of moving each touched byte once at the memory's bandwidth. For a transfer it is the time of its bytes at the
 * bandwidth of the group's links. It is 0 for copies between host and device and for actions that take no time. */
double cost_floor(const struct cost *cost, const struct program *p, const struct action *a);
/* FLOPs of a product or an attention action; 0 for others. Causal attention counts the visible half. */
double cost_flops(const struct program *p, const struct action *a);
/* Are members of the group on several machines, so that its transfers use the network? */
bool cost_uses_network(const struct machine *m, const struct mesh *mesh, enum group group);
/* Seconds that a transfer takes in a group. bytes: counted as action_sent_bytes() does for the kind of action. */
double cost_transfer(const struct machine *m, const struct mesh *mesh, enum op op, enum group group, double bytes);
/* Seconds that a message to a rank's buddy takes. Buddies are on other machines if there are several
 * (elastic/buddy.h). */
double cost_to_buddy(const struct cost *cost, const struct mesh *mesh, double bytes);

#endif
