/* SPDX-License-Identifier: Apache-2.0 */
/* A run file: parse, print and read back, resolve, and all that is asked of one before it may run. */
#include "tests/fuzz/common.h"

#include "base/buf.h"
#include "base/recipe.h"

static void ask(const struct recipe *r)
{
    struct titan_error err = {0};
    for (int64_t world = 1; world <= 9; world += 4) {
        struct recipe_mesh m;
        if (recipe_check_world(r, world, &err) == TITAN_OK)
            fuzz_assert(recipe_mesh(r, world, &m, &err) == TITAN_OK &&
                        m.pp * m.dp_replicate * m.dp_shard * m.cp * m.tp == world);
        (void)recipe_memory_bytes(r, world);
        (void)recipe_fit_world(r, world);
    }
    int stages;
    (void)!recipe_stages(r, &stages, &err);
    (void)recipe_hash(r);
    (void)recipe_flops_per_token(r);
    fuzz_assert(recipe_params(r) > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct titan_error err = {0};
    struct recipe r, back;
    _cleanup_free_ char *text = fuzz_text(data, size);
    if (size > 16384)
        return 0;
    recipe_init(&r);
    recipe_init(&back);
    titan_status status = recipe_parse(&r, text, "fuzz", &err);
    if (status != TITAN_OK) {
        fuzz_error(status, &err);
        fuzz_assert(memcmp(&r, &back, sizeof(r)) == 0);
        return 0;
    }
    _cleanup_(buf_free) struct buf printed = BUF_INIT;
    recipe_print(&r, &printed);
    fuzz_assert(recipe_parse(&back, printed.data, "printed", &err) == TITAN_OK);
    memcpy(back.set_mask, r.set_mask, sizeof(r.set_mask));
    fuzz_assert(memcmp(&back, &r, sizeof(r)) == 0);
    struct recipe_path paths[RECIPE_PATHS_MAX];
    (void)recipe_paths(&back, paths);
    /* The path of a schedule would be opened: another target's. */
    if (r.parallelism.pipeline_parallel_schedule_csv[0])
        return 0;
    status = recipe_resolve(&r, &err);
    if (status == TITAN_OK)
        ask(&r);
    else
        fuzz_error(status, &err);
    return 0;
}
