/* SPDX-License-Identifier: Apache-2.0 */
/* What another rank of an epoch says, which may be any worker of the job: what it holds, hashes, statistics, a folder's
 * checkpoints, votes, attempts. It is rank 0 and says what this one does, changed as the input tells. The first byte
 * says which of these. */
#include "tests/fuzz/common.h"

#include "tests/support/memory_device.h"
#include "worker/elastic/restore.h"
#include "worker/epoch/attempt.h"

enum { WORLD = 2, CHANGES = 8 };

void __wrap_log_write(const struct log *log, enum log_level level, const char *sentence, const char *pairs_fmt, ...);
void __wrap_log_write(const struct log *log, enum log_level level, const char *sentence, const char *pairs_fmt, ...)
{
    (void)log, (void)level, (void)sentence, (void)pairs_fmt;
}

struct comm {
    struct fuzz_input *in;
};

/* Of so many doubles: small whole numbers, any bits, or a run of bytes without an end. */
static void change(struct fuzz_input *in, double *reported, size_t count)
{
    for (uint64_t n = fuzz_take(in, 1) % CHANGES; n > 0 && in->len > 0; n--) {
        const uint64_t how = fuzz_take(in, 1);
        size_t at = (size_t)fuzz_take(in, count > 256 ? 2 : 1) % count;
        if (how < 128) {
            reported[at] = (double)(how % 16) - 1;
        } else if (how < 224) {
            const uint64_t bits = fuzz_take(in, 8);
            memcpy(&reported[at], &bits, sizeof bits);
        } else {
            memset(reported + at, 'x', (count - at) * sizeof *reported);
        }
    }
}

static titan_status gather(struct comm *c, void *recv, const void *send, size_t count, enum dtype dt, struct stream *s)
{
    (void)s;
    fuzz_assert(dt == DTYPE_U8 && count % sizeof(double) == 0);
    for (size_t r = 0; r < WORLD; r++)
        memcpy((char *)recv + r * count, send, count);
    change(c->in, recv, count / sizeof(double));
    return TITAN_OK;
}

static titan_status broadcast(struct comm *c, void *data, size_t bytes, int root, struct stream *s)
{
    (void)s;
    if (root == 0 && bytes >= sizeof(double)) {
        memset(data, 0, bytes);
        change(c->in, data, bytes / sizeof(double));
    }
    return TITAN_OK;
}

static titan_status send(struct comm *c, const void *data, size_t bytes, int to, struct stream *s)
{
    (void)c, (void)data, (void)bytes, (void)s;
    fuzz_assert(to == 0);
    return TITAN_OK;
}

static const struct comm_ops ops = {.all_gather = gather, .broadcast = broadcast, .send = send};

static struct {
    struct recipe recipe;
    struct model *model;
    struct layout *cut, *one; /* for WORLD ranks, for one */
    struct train_state *own;
} run;

static void set_up(void)
{
    static const struct model_dims dims = {.dim = 8,
                                           .n_layers = 1,
                                           .n_heads = 1,
                                           .n_kv_heads = 1,
                                           .head_dim = 8,
                                           .ffn_hidden = 8,
                                           .vocab_size = 8,
                                           .rope_theta = 1e4,
                                           .norm_eps = 1e-5};
    struct titan_error err = {0};
    struct mesh mesh;
    recipe_init(&run.recipe);
    fuzz_assert(recipe_resolve(&run.recipe, &err) == TITAN_OK && model_open(&dims, &run.model, &err) == TITAN_OK);
    run.recipe.model.dims = dims;
    run.recipe.training.global_batch_size = 4;
    fuzz_assert(mesh_build(&run.recipe, WORLD, &mesh, &err) == TITAN_OK);
    fuzz_assert(layout_of_recipe(&run.recipe, run.model, &mesh, &run.cut, &err) == TITAN_OK);
    fuzz_assert(mesh_build(&run.recipe, 1, &mesh, &err) == TITAN_OK);
    fuzz_assert(layout_of_recipe(&run.recipe, run.model, &mesh, &run.one, &err) == TITAN_OK);
    const struct state_options options = {
        .device = &memory_device, .layout = run.cut, .rank = 1, .types.compute = DTYPE_F32};
    fuzz_assert(state_open(&options, &run.own, &err) == TITAN_OK);
}

static titan_status finish(void *arg, const double *statistics, int64_t size, struct titan_error *err)
{
    const struct restore *r = arg;
    double sum = 0;
    (void)err;
    fuzz_assert(size > 0 && size <= r->brought.statistics_most);
    for (int64_t i = 0; i < size; i++)
        sum += statistics[i];
    (void)sum;
    run.own->step++;
    return TITAN_OK;
}

/* As a rank that hands over what it has, or has nothing, and is in no epoch after that. */
static void restore(struct fuzz_input *in, bool memory)
{
    static const int holders[WORLD] = {0, 1};
    static struct restore r;
    static struct log log;
    struct comm comm = {in};
    const uint64_t how = fuzz_take(in, 1);
    const struct epoch_view view = {.rank = 1,
                                    .world = 1,
                                    .departing = 1,
                                    .source = memory ? STATE_FROM_MEMORY : STATE_FROM_CHECKPOINT,
                                    .holders = WORLD,
                                    .holder_ranks = holders};
    struct titan_error err = {0};
    r = (struct restore){.view = &view,
                         .recipe = &run.recipe,
                         .model = run.model,
                         .ranks = {.device = &memory_device, .ops = &ops, .comm = &comm, .n = WORLD},
                         .log = &log,
                         .brought = {.shards.own = how & 1 ? run.own : NULL, .prepared = how >> 1 & 1},
                         .folder = how & 4 ? "/nowhere" : NULL,
                         .finish = finish,
                         .arg = &r};
    run.recipe.checkpoint.initial_load_path[0] = how & 8 ? '/' : '\0';
    run.recipe.checkpoint.load_step = how & 16 ? 10 : -1;
    run.own->step = 5;
    titan_status status = restore_agree(&r, &err);
    for (bool again = true; again && status == TITAN_OK;) {
        struct verified v;
        status = restore_fill(&r, run.one, NULL, &err);
        if (status == TITAN_OK)
            status = restore_verify(&r, &run.one->mesh, &(struct held_shards){0}, &v, &again, &err);
    }
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    restore_clear(&r);
}

static void attempt(struct fuzz_input *in)
{
    struct comm comm = {in};
    const struct peer_ranks ranks = {.device = &memory_device, .ops = &ops, .comm = &comm, .n = WORLD};
    struct attempt a = {.stop = (double)(fuzz_take(in, 1) & 1)};
    struct titan_error err = {0};
    const titan_status status = attempt_agree(&ranks, &a, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    else
        fuzz_assert((a.failed == 0 || a.failed == 1) && memchr(a.why, 0, sizeof a.why));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    if (!run.model)
        set_up();
    const uint64_t what = fuzz_take(&in, 1) % 3;
    if (what == 2)
        attempt(&in);
    else
        restore(&in, what == 1);
    return 0;
}
