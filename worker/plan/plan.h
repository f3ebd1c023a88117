/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h - from a recipe and a number of ranks to checked programs: mesh, layout, schedule, policies, programs, passes.
 *
 * What the training loop, `titan-worker check` and `titan-worker plan` share. */
#ifndef TITAN_WORKER_PLAN_PLAN_H
#define TITAN_WORKER_PLAN_PLAN_H

#include "worker/plan/build.h"
#include "worker/plan/cost.h"
#include "worker/tensor/sequence.h"

struct plan_options {
    const struct recipe *recipe; /* resolved; borrowed */
    const struct model *model;   /* borrowed */
    int world;
    enum dtype dt;
    const struct device_ops *ops; /* sizes of work; NULL: estimated */
    struct device *dev;
    const struct machine *machine; /* for passes that weigh costs and for the memory budget; NULL: none known */
    uint64_t memory_bytes;         /* of a device, the same on all ranks: passes heed it; 0 = unknown */
    uint64_t memory_free;          /* of this rank's: programs that need more are refused; 0: memory_bytes counts */
    bool no_float8;                /* of the device: what the recipe converts computes in dt like everything else */
    bool no_mxfp8;                 /* of the device: such recipes are refused */
    bool evaluation; /* forward-only programs of an evaluation's step, by [validation], in place of a training step's */
};

struct plan {
    struct plan_options opt;
    struct mesh mesh;
    struct layout *layout;
    struct schedule *schedule;         /* NULL without a pipeline */
    enum checkpointing *checkpointing; /* of every layer */
    struct converters *converters;     /* NULL: none */
    struct sequence_cut cut;           /* of a microbatch */
    struct build_options build;
    int classes;
};

/* What a run on the device plans with; world is open. The machine and its memory are the model's, the same for all
 * devices of one name: ranks must come to the same program, and a plan made elsewhere too. */
struct plan_options plan_options_of_device(const struct recipe *recipe, const struct model *model,
                                           const struct device_handle *device);
/* The type that a step computes in; bf16_fast: of the device (device_info). */
enum dtype plan_compute_type(const struct recipe *recipe, bool bf16_fast);

titan_status plan_open(const struct plan_options *options, struct plan **ret, struct titan_error *err) TITAN_MUST_USE;
void plan_close(struct plan *plan); /* NULL is fine */

/* The finished program of this rank's class, after the recipe's passes. */
titan_status plan_program(const struct plan *plan, int rank, struct program **ret,
                          struct titan_error *err) TITAN_MUST_USE;
/* Programs of all classes, each checked and all together; *ret is an array of plan->classes, owned
 * (plan_free_programs). */
titan_status plan_programs(const struct plan *plan, struct program ***ret, struct titan_error *err) TITAN_MUST_USE;
/* Over the programs of all classes (program_hash): a run logs it, a plan prints it, wherever it was made. */
uint64_t plan_hash(const struct plan *plan, struct program *const *programs);
/* Host memory that a rank keeps the copy of another's part in (elastic/buddy.h): masters, moments, gradients; 0: it
 * keeps none. Of the largest part. */
size_t plan_copy_bytes(const struct plan *plan);
/* Host memory that a checkpoint is copied into (state/snapshot.h), 0: none is written. Of the largest part. */
size_t plan_snapshot_bytes(const struct plan *plan);
void plan_free_programs(const struct plan *plan, struct program **programs); /* NULL is fine */

#endif
