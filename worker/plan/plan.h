/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h - from a recipe and a number of ranks to checked programs: mesh, layout, schedule, policies, programs, passes.
 *
 * The training loop, `titan-worker check` and `titan-worker plan` share this module. */
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
    const struct device_ops *ops; /* for sizes of work; NULL: estimated */
    struct device *dev;
    const struct machine *machine; /* for passes that weigh costs and for the memory budget; NULL: not known */
    uint64_t memory_bytes;         /* memory of a device for passes, the same on all ranks; 0: unknown */
    uint64_t memory_free; /* free on this rank's device: programs that need more are refused; 0: memory_bytes counts */
    bool no_float8;       /* the device lacks float8: products converted to float8 compute in dt like all others */
    bool no_mxfp8;        /* the device lacks MXFP8: recipes with MXFP8 are refused */
    bool evaluation;      /* forward-only programs for a step of an evaluation by [validation] */
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

/* Options for a run on the device; the caller sets `world`. Machine and memory are taken from the device's model, and
 * are the same for all devices of one name. So all ranks make the same program, and so does a plan on another
 * machine. */
struct plan_options plan_options_of_device(const struct recipe *recipe, const struct model *model,
                                           const struct device_handle *device);
/* The type in which a step computes. bf16_fast: the device's value in device_info. */
enum dtype plan_compute_type(const struct recipe *recipe, bool bf16_fast);

titan_status plan_open(const struct plan_options *options, struct plan **ret, struct titan_error *err) TITAN_MUST_USE;
void plan_close(struct plan *plan); /* NULL is fine */

/* The finished program of this rank's class, after the recipe's passes. */
titan_status plan_program(const struct plan *plan, int rank, struct program **ret,
                          struct titan_error *err) TITAN_MUST_USE;
/* Makes the programs of all classes and checks them, each by itself and all together. *ret is an array of
 * plan->classes, owned (plan_free_programs). */
titan_status plan_programs(const struct plan *plan, struct program ***ret, struct titan_error *err) TITAN_MUST_USE;
/* Hash over the programs of all classes (program_hash). A run logs it, a plan prints it. The hash does not depend on
 * where the plan was made. */
uint64_t plan_hash(const struct plan *plan, struct program *const *programs);
/* Host memory for a rank's copy of another rank's part (elastic/buddy.h): masters, moments, gradients of the largest
 * part. 0: ranks keep no copies. */
size_t plan_copy_bytes(const struct plan *plan);
/* Do ranks send their gradients to buddies? */
bool plan_has_buddies(const struct plan *plan);
/* Memory of the device through which the copy passes where it lies in host memory: gradient and state of the largest
 * unit, or of the matrices with owners. 0: the copy is in the memory that the device computes in, or there is none. */
size_t plan_copy_room_bytes(const struct plan *plan);
/* Host memory for the snapshot of the largest part, which a checkpoint is written from (state/snapshot.h). 0: no
 * checkpoints are written. */
size_t plan_snapshot_bytes(const struct plan *plan);
void plan_free_programs(const struct plan *plan, struct program **programs); /* NULL is fine */

#endif
