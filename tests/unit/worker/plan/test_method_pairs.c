/* SPDX-License-Identifier: Apache-2.0 */
/* All pairs of settings of methods and meshes: a plan, or a refusal with a reason of base/recipe_conflicts.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/recipe_conflicts.h"
#include "tests/support/plans.h"

#define WORLD 8

/* A model that every mesh below divides. */
static const char *const small[] = {"model.flavor=tiny", "model.n_heads=8", "model.n_kv_heads=8", "model.n_layers=2",
                                    "training.global_batch_size=8"};

/* A setting, and what it needs to be taken by itself. */
static const struct {
    const char *set, *needs[3];
} settings[] = {
#define TWO "parallelism.data_parallel_replicate_degree=2"
#define EXPERTS "model.name=llama3_moe"
#define CODED "parallelism.fsdp_reduce_codec=int8"
    /* optimizers and their state */
    {"optimizer.name=Adam", {NULL}},
    {"optimizer.name=SGD", {NULL}},
    {"optimizer.name=Lion", {NULL}},
    {"optimizer.name=AdEMAMix", {NULL}},
    {"optimizer.name=StableAdamW", {NULL}},
    {"optimizer.name=Muon", {NULL}},
    {"optimizer.name=GaLore2", {NULL}},
    {"optimizer.name=Ranger21", {NULL}},
    {"optimizer.rest=Lion", {NULL}},
    {"optimizer.rest=Muon", {NULL}},
    {"optimizer.sgd.nesterov=true", {NULL}},
    {"optimizer.state_dtype=bfloat16", {NULL}},
    {"optimizer.state_dtype=int8", {NULL}},
    {"optimizer.state_rounding=stochastic", {"optimizer.state_dtype=bfloat16"}},
    {"training.dtype=bfloat16", {NULL}},
    {"training.enable_cpu_offload=true", {NULL}},
    /* products */
    {"model.float8=true", {NULL}},
    {"model.mxfp8=true", {NULL}},
    {"model.switchback=true", {NULL}},
    {"float8.recipe_name=rowwise", {"model.float8=true"}},
    {"float8.recipe_name=rowwise_with_gw_hp", {"model.float8=true"}},
    {"float8.recipe_name=scalify", {"model.float8=true"}},
    {"float8.scalify_refresh=4", {"model.float8=true", "float8.recipe_name=scalify"}},
    {"model.float8=false", {NULL}},
    {"switchback.mem_efficient=true", {"model.switchback=true"}},
    {"float8.enable_fsdp_float8_all_gather=true", {"model.float8=true"}},
    {"float8.filter_fqns=auto_filter_small_kn", {"model.float8=true"}},
    /* what travels */
    {"parallelism.fsdp_gather_codec=int8", {NULL}},
    {"parallelism.fsdp_gather_codec=int4", {NULL}},
    {"parallelism.fsdp_gather_levels=learned", {"parallelism.fsdp_gather_codec=int4"}},
    {"parallelism.fsdp_reduce=microbatch", {NULL}},
    {"parallelism.fsdp_reduce=step", {NULL}},
    {"parallelism.fsdp_reduce_codec=f32", {NULL}},
    {"parallelism.fsdp_reduce_codec=bf16", {NULL}},
    {"parallelism.fsdp_reduce_codec=fp8", {NULL}},
    {"parallelism.fsdp_reduce_codec=int4", {NULL}},
    {"parallelism.fsdp_reduce_codec=loco", {NULL}},
    {"parallelism.fsdp_reduce_rounding=stochastic", {CODED}},
    {"parallelism.fsdp_reduce_scale=tensor", {CODED}},
    {"parallelism.replicate_method=demo", {TWO, "optimizer.name=SGD"}},
    {"parallelism.replicate_method=random", {TWO, "optimizer.name=SGD"}},
    {"parallelism.replicate_method=striding", {TWO, "optimizer.name=SGD"}},
    {"parallelism.replicate_method=full", {TWO, "optimizer.name=SGD"}},
    {"parallelism.replicate_values=6", {TWO}},
    {"parallelism.replicate_codec=f32", {TWO}},
    {"parallelism.replicate_codec=int8", {TWO}},
    {"parallelism.replicate_codec=loco", {TWO}},
    {"fault_tolerance.redundancy=buddy", {NULL}},
    {"fault_tolerance.redundancy=replica", {TWO}},
    {"numerics.canonical=true", {NULL}},
    /* meshes and models */
    {"parallelism.data_parallel_replicate_degree=1", {NULL}},
    {TWO, {NULL}},
    {"parallelism.context_parallel_degree=2", {NULL}},
    {"parallelism.tensor_parallel_degree=2", {NULL}},
    {"parallelism.pipeline_parallel_degree=2", {NULL}},
    {"parallelism.expert_parallel_degree=2", {EXPERTS}},
    {"parallelism.expert_tensor_parallel_degree=2", {EXPERTS, "parallelism.tensor_parallel_degree=2"}},
    {"parallelism.expert_tensor_parallel_degree=4", {EXPERTS, "parallelism.tensor_parallel_degree=4"}},
    {"parallelism.rotate=out_of_place", {NULL}},
    {"parallelism.rotate=in_place", {NULL}},
    {EXPERTS, {NULL}},
    {"model.qk_norm=true", {NULL}},
    {"model.mtp_layers=1", {NULL}},
};

/* The row that a message is of: its reason, and how its settings begin; -1: none. */
static int row_of(const char *msg)
{
    for (int i = 0; i < recipe_conflicts_count; i++) {
        const char *const setting = recipe_conflicts[i].setting, *const with = recipe_conflicts[i].with;
        const char *const key = strchr(setting, '.') ? setting : "optimizer.";
        char begin[100], end[300];
        const size_t n = (size_t)snprintf(end, sizeof end, ": %s", recipe_conflicts[i].reason);
        (void)snprintf(begin, sizeof begin, " does not go with %.*s", (int)strcspn(with, " "), with);
        if (strlen(msg) > n && strncmp(msg, key, strcspn(key, " ")) == 0 && strcmp(msg + strlen(msg) - n, end) == 0 &&
            strstr(msg, begin))
            return i;
    }
    return -1;
}

static void test_all_pairs(void **state)
{
    (void)state;
    const size_t n = ARRAY_SIZE(settings);
    int plans = 0, refusals[64] = {0};
    titan_assert(recipe_conflicts_count <= (int)ARRAY_SIZE(refusals));

    for (size_t i = 0; i < n; i++)
        for (size_t j = i; j < n; j++) {
            const char *sets[ARRAY_SIZE(small) + 10];
            size_t count = 0;
            const size_t name = strcspn(settings[i].set, "=") + 1;
            if (i != j && strncmp(settings[i].set, settings[j].set, name) == 0)
                continue; /* two values of one key */
            for (size_t k = 0; k < ARRAY_SIZE(small); k++)
                sets[count++] = small[k];
            for (size_t k = 0; k < ARRAY_SIZE(settings[i].needs) && settings[i].needs[k]; k++)
                sets[count++] = settings[i].needs[k];
            for (size_t k = 0; k < ARRAY_SIZE(settings[j].needs) && settings[j].needs[k]; k++)
                sets[count++] = settings[j].needs[k];
            sets[count++] = settings[i].set;
            sets[count++] = settings[j].set;
            sets[count] = NULL;

            struct planned p;
            struct titan_error err = {0};
            const titan_status status = planned_open(&p, WORLD, "cpu", sets, &err);
            if (status == TITAN_OK) {
                planned_close(&p);
                plans++;
            } else if (status == TITAN_EINVAL && row_of(err.msg) >= 0) {
                refusals[row_of(err.msg)]++;
                if (i == j && strncmp(settings[i].set, "optimizer.rest=Muon", 19) != 0)
                    fail_msg("%s alone: %s", settings[i].set, err.msg);
            } else {
                print_error("%s beside %s: %s\n", settings[i].set, settings[j].set, err.msg);
                fail();
            }
        }
    assert_true(plans > 900);
    for (int i = 0; i < recipe_conflicts_count; i++)
        if (refusals[i] == 0)
            fail_msg("no pair has the row of %s and %s", recipe_conflicts[i].setting, recipe_conflicts[i].with);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_pairs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
