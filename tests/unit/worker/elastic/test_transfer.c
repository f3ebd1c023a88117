/* SPDX-License-Identifier: Apache-2.0 */
/* fold.h, holdings.h, owed.h, transfer.h and verify.h: from any mesh to any other, with replicas gone or not, with
 * parts that only a buddy has, with departing ranks, bit for bit; what is in place stays there; what is no whole state
 * is refused by all alike; of what each replica has of its own all get the mean; what codes of gradients owe stays what
 * it is; hashes are the same before and after, and a flipped bit is found. Ranks are threads over a communicator with
 * sends that wait to be received, so an order that could block does. TITAN_TEST_SEED repeats a run. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/bf16.h"
#include "base/cleanup.h"
#include "base/codecs.h"
#include "base/hash.h"
#include "tests/support/memory_device.h"
#include "tests/support/patience.h"
#include "tests/support/random_layout.h"
#include "tests/support/sets.h"
#include "worker/elastic/fold.h"
#include "worker/elastic/owed.h"
#include "worker/elastic/transfer.h"
#include "worker/elastic/verify.h"

#define OLD_MAX 24
#define NEW_MAX 12
#define RANKS_MAX (NEW_MAX + 4) /* with departing ranks */
#define ROUNDS 60

/* --- a communicator of threads ------------------------------------------------------------------------------------ */

/* Of this turn and the one before, which some may still read. */
static char gathered[2][RANKS_MAX << 20];

struct hub {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int world, arrived;
    unsigned turn;
    struct {
        const void *data; /* NULL: nothing is offered */
        size_t bytes;
    } offers[RANKS_MAX][RANKS_MAX];
    uint64_t sent; /* bytes */
};

struct comm {
    struct hub *hub;
    int rank;
};

/* false: no rank has come for long. */
static bool await(struct hub *h)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += patience_ms(60) / 1000;
    return pthread_cond_timedwait(&h->changed, &h->lock, &until) == 0;
}

static titan_status hub_gather(struct comm *c, void *recv, const void *send, size_t count, enum dtype dt,
                               struct stream *s)
{
    struct hub *h = c->hub;
    const size_t bytes = count * dtype_bytes(dt);
    titan_status status = TITAN_OK;
    (void)s;
    titan_assert(bytes * RANKS_MAX <= sizeof gathered[0]);
    (void)pthread_mutex_lock(&h->lock);
    const unsigned turn = h->turn;
    memcpy(gathered[turn % 2] + (size_t)c->rank * bytes, send, bytes);
    if (++h->arrived == h->world) {
        h->arrived = 0;
        h->turn++;
        (void)pthread_cond_broadcast(&h->changed);
    }
    while (h->turn == turn && status == TITAN_OK)
        status = await(h) ? TITAN_OK : TITAN_ETIMEDOUT;
    memcpy(recv, gathered[turn % 2], bytes * (size_t)h->world);
    (void)pthread_mutex_unlock(&h->lock);
    return status;
}

static titan_status hub_send(struct comm *c, const void *data, size_t bytes, int to, struct stream *s)
{
    struct hub *h = c->hub;
    titan_status status = TITAN_OK;
    (void)s;
    (void)pthread_mutex_lock(&h->lock);
    h->offers[c->rank][to].data = data;
    h->offers[c->rank][to].bytes = bytes;
    h->sent += bytes;
    (void)pthread_cond_broadcast(&h->changed);
    while (h->offers[c->rank][to].data && status == TITAN_OK)
        status = await(h) ? TITAN_OK : TITAN_ETIMEDOUT;
    (void)pthread_mutex_unlock(&h->lock);
    return status;
}

static titan_status hub_recv(struct comm *c, void *data, size_t bytes, int from, struct stream *s)
{
    struct hub *h = c->hub;
    titan_status status = TITAN_OK;
    (void)s;
    (void)pthread_mutex_lock(&h->lock);
    while (!h->offers[from][c->rank].data && status == TITAN_OK)
        status = await(h) ? TITAN_OK : TITAN_ETIMEDOUT;
    if (status == TITAN_OK && h->offers[from][c->rank].bytes != bytes)
        status = TITAN_EBUG;
    if (status == TITAN_OK)
        memcpy(data, h->offers[from][c->rank].data, bytes);
    h->offers[from][c->rank].data = NULL;
    (void)pthread_cond_broadcast(&h->changed);
    (void)pthread_mutex_unlock(&h->lock);
    return status;
}

static const struct comm_ops hub_ops = {.all_gather = hub_gather, .send = hub_send, .recv = hub_recv};

/* --- a change of mesh --------------------------------------------------------------------------------------------- */

struct change {
    struct model *model;
    struct state_types types;
    struct layout *from, *to;
    int holder[OLD_MAX];
    struct train_state *old[RANKS_MAX], *wards[RANKS_MAX], *fresh[RANKS_MAX];
    enum recovery_source recovery_source[RANKS_MAX];
    struct verified before[RANKS_MAX], after[RANKS_MAX];
    int departing;
    struct hub hub;
    struct comm comms[RANKS_MAX];
    titan_status status[RANKS_MAX];
    struct titan_error errors[RANKS_MAX];
    bool owed; /* errors of codes move, if all have settled */
    bool settled[RANKS_MAX];
};

static float trained(const struct shard_slice *p, int64_t i)
{
    return (float)(p->tensor * 7919 + 1) + (float)((p->row + i / p->cols) * 131 + p->col + i % p->cols) / 1024;
}

static struct train_state *open_state(struct layout *l, int rank, struct state_types types, bool offload)
{
    struct train_state *s = NULL;
    const struct state_options options = {
        .device = &memory_device, .layout = l, .rank = rank, .types = types, .offload = offload};
    assert_int_equal(state_open(&options, &s, NULL), TITAN_OK);
    return s;
}

/* What trained() is in the type its spec is stored in. */
static float stored(const struct layout *l, struct state_types types, const struct shard_slice *p, int64_t i)
{
    const bool bf16 = layout_spec_is_bias(l, p->tensor)   ? false
                      : layout_spec_is_kept(l, p->tensor) ? types.moment == DTYPE_BF16
                                                          : types.master == DTYPE_BF16;
    return bf16 ? bf16_to_f32(bf16_from_f32(trained(p, i))) : trained(p, i);
}

/* Encodes a rank's kinds of state and decodes them again, by the blocks of its layout. */
static void as_codes(const struct layout *l, int rank, float *host)
{
    for (int u = 0; u < l->model->n_units; u++) {
        const struct unit_layout *ul = &l->units[u];
        float *at = host + ul->offset + ul->kept + ul->shard;
        for (int k = 0; k < l->kinds.n && ul->pp_rank == mesh_group_rank(&l->mesh, GROUP_PP, rank); k++)
            for (float *const end = at + ul->span[k]; at < end; at += MOMENT_BLOCK) {
                struct moment_block b;
                moment_blocks_encode(&b, 1, l->kinds.squares >> k & 1, at);
                moment_blocks_decode(&b, 1, l->kinds.squares >> k & 1, at);
            }
    }
    float *at = host + layout_state(l, rank) - layout_owned(l, rank);
    for (int k = 0; k < l->kinds.n; k++)
        for (float *const end = at + layout_owned_span(l, rank, k); at < end; at += MOMENT_BLOCK) {
            struct moment_block b;
            moment_blocks_encode(&b, 1, l->kinds.squares >> k & 1, at);
            moment_blocks_decode(&b, 1, l->kinds.squares >> k & 1, at);
        }
}

static struct train_state *trained_state(struct layout *l, int rank, struct state_types types, bool offload)
{
    struct train_state *s = open_state(l, rank, types, offload);
    float *host = calloc((size_t)state_snapshot_size(l, rank) + 1, sizeof *host);
    struct shard_slice *slices = NULL;
    int n;
    assert_int_equal(layout_slices(l, rank, host, host + s->total + s->kept, NULL, NULL, &slices, &n, NULL), TITAN_OK);
    for (int p = 0; p < n; p++)
        for (int64_t i = 0; i < slices[p].rows * slices[p].cols; i++)
            slices[p].data[i] = trained(&slices[p], i);
    assert_int_equal(state_upload(s, host, NULL, NULL), TITAN_OK);
    free(host);
    free(slices);
    s->step = 12;
    s->tokens = 345;
    s->skipped = (struct skipped_steps){6, 2, 9, 11};
    return s;
}

static float shadow_at(const struct train_state *s, int64_t i)
{
    return s->types.compute == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)s->shadow)[i])
                                          : ((const float *)s->shadow)[i];
}

/* Every slice has its values, also in the shadow; the rest is zero. */
static void check_fresh(const struct change *c, int rank)
{
    struct train_state *s = c->fresh[rank];
    const size_t size = (size_t)state_snapshot_size(c->to, rank);
    float *host = calloc(size + 1, sizeof *host);
    struct shard_slice *slices = NULL;
    int n;
    assert_int_equal(state_snapshot(s, host, NULL, NULL), TITAN_OK);
    for (int u = 0; s->shadow && u < c->model->n_units; u++) {
        const struct unit_layout *ul = &c->to->units[u];
        for (int64_t i = 0; ul->pp_rank == mesh_group_rank(&c->to->mesh, GROUP_PP, rank) && i < ul->shard; i++)
            assert_true(shadow_at(s, ul->offset + i) ==
                        (c->types.compute == DTYPE_BF16 ? bf16_to_f32(bf16_from_f32(host[ul->offset + ul->kept + i]))
                                                        : host[ul->offset + ul->kept + i]));
    }
    assert_int_equal(layout_slices(c->to, rank, host, host + s->total + s->kept, NULL, NULL, &slices, &n, NULL),
                     TITAN_OK);
    float *const coded = calloc(size + 1, sizeof *coded);
    for (int p = 0; p < n && c->to->coded; p++)
        for (int64_t i = 0; i < slices[p].rows * slices[p].cols; i++)
            coded[slices[p].data + i - host] = trained(&slices[p], i);
    if (c->to->coded)
        as_codes(c->to, rank, coded);
    for (int p = 0; p < n; p++)
        for (int64_t i = 0; i < slices[p].rows * slices[p].cols; i++) {
            const float want = c->to->coded ? coded[slices[p].data + i - host] : stored(c->to, c->types, &slices[p], i);
            if (slices[p].data[i] != want)
                fail_msg("rank %d of %s: element %ld of a piece of spec %d is %g in place of %g", rank,
                         layout_text(c->to), (long)i, slices[p].tensor, (double)slices[p].data[i], (double)want);
            slices[p].data[i] = 0;
        }
    for (int64_t i = 0; i < s->total + s->kept; i++)
        assert_true(host[i] == 0);
    free(coded);
    free(slices);
    free(host);
    assert_true(s->step == 12 && s->tokens == 345 &&
                memcmp(&s->skipped, &(struct skipped_steps){6, 2, 9, 11}, sizeof s->skipped) == 0);
}

struct member {
    struct change *c;
    int rank;
};

static void *member_main(void *arg)
{
    const struct member *m = arg;
    struct change *c = m->c;
    const struct epoch_view view = {.rank = m->rank,
                                    .world = c->to->mesh.world,
                                    .departing = c->hub.world - c->to->mesh.world,
                                    .holders = c->from->mesh.world,
                                    .holder_ranks = c->holder};
    const struct brought mine = {.shards = {c->old[m->rank], c->wards[m->rank]}};
    struct titan_error *const err = &c->errors[m->rank];
    struct holdings h;
    const struct peer_ranks ranks = {
        .device = &memory_device, .ops = &hub_ops, .comm = &c->comms[m->rank], .n = c->hub.world};
    const struct resharding what = {.holdings = &h, .mine = &mine.shards, .cut = c->to, .to = c->fresh[m->rank]};
    uint64_t sent;
    c->status[m->rank] = holdings_gather(&view, c->from, &mine, &ranks, &h, err);
    if (c->status[m->rank] != TITAN_OK)
        return NULL;
    c->recovery_source[m->rank] = h.recovery_source;
    c->settled[m->rank] = h.settled;
    c->status[m->rank] = state_transfer(&what, &ranks, &sent, err);
    if (c->status[m->rank] == TITAN_OK && c->owed && h.settled)
        c->status[m->rank] = owed_transfer(&what, &ranks, &sent, err);
    if (c->status[m->rank] == TITAN_OK)
        c->status[m->rank] = verify_shards(&c->from->mesh, &mine.shards, sent, &ranks, &c->before[m->rank], err);
    const struct held_shards fresh = {.own = c->fresh[m->rank]};
    if (c->status[m->rank] == TITAN_OK)
        c->status[m->rank] = verify_shards(&c->to->mesh, &fresh, 0, &ranks, &c->after[m->rank], err);
    holdings_clear(&h);
    return NULL;
}

static void run_change(struct change *c)
{
    pthread_t threads[RANKS_MAX];
    struct member members[RANKS_MAX];
    c->hub.world = c->to->mesh.world + c->departing;
    (void)pthread_mutex_init(&c->hub.lock, NULL);
    (void)pthread_cond_init(&c->hub.changed, NULL);
    for (int r = 0; r < c->hub.world; r++) {
        c->comms[r] = (struct comm){&c->hub, r};
        members[r] = (struct member){c, r};
        assert_int_equal(pthread_create(&threads[r], NULL, member_main, &members[r]), 0);
    }
    for (int r = 0; r < c->hub.world; r++)
        (void)pthread_join(threads[r], NULL);
    (void)pthread_cond_destroy(&c->hub.changed);
    (void)pthread_mutex_destroy(&c->hub.lock);
}

static void close_states(struct train_state **states)
{
    for (int r = 0; r < RANKS_MAX; r++) {
        if (states[r])
            states[r]->layout = NULL; /* belongs to the change */
        state_close(states[r]);
        states[r] = NULL;
    }
}

static void close_change(struct change *c)
{
    close_states(c->old);
    close_states(c->wards);
    close_states(c->fresh);
    layout_close(c->from);
    layout_close(c->to);
    model_close(c->model);
}

/* Two meshes of which the second has room for one replica of the first at least. */
static void open_change(struct change *c, unsigned *seed)
{
    static const struct state_types types[] = {{DTYPE_BF16, DTYPE_F32, DTYPE_F32},
                                               {DTYPE_BF16, DTYPE_F32, DTYPE_BF16},
                                               {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16},
                                               {DTYPE_F32, DTYPE_BF16, DTYPE_BF16}};
    *c = (struct change){.model = random_model(seed), .types = types[random_below(seed, ARRAY_SIZE(types))]};
    c->to = random_layout(seed, c->model, NEW_MAX);
    do {
        layout_close(c->from);
        c->from = random_layout(seed, c->model, OLD_MAX);
    } while (c->from->mesh.world / c->from->mesh.size[AXIS_DP_REPLICATE] > c->to->mesh.world);
    for (int a = 0; a < c->from->mesh.world; a++)
        c->holder[a] = -1;
    c->departing = random_below(seed, RANKS_MAX - NEW_MAX + 1);
    for (int r = 0; r < c->to->mesh.world; r++)
        c->fresh[r] = open_state(c->to, r, c->types, random_below(seed, 2));
}

/* Old rank a is with a new rank that has none yet; false: all have. */
static bool place(struct change *c, int a, unsigned *seed)
{
    const int ranks = c->to->mesh.world + c->departing, first = random_below(seed, ranks);
    for (int i = 0; i < ranks; i++) {
        const int r = (first + i) % ranks;
        if (c->old[r])
            continue;
        c->old[r] = trained_state(c->from, a, c->types, random_below(seed, 2));
        c->holder[a] = r;
        return true;
    }
    return false;
}

/* A copy of the part with some rank that has a part of its own and no copy yet; false: there is none. */
static bool place_copy(struct change *c, int a, unsigned *seed)
{
    const int ranks = c->to->mesh.world + c->departing, first = random_below(seed, ranks);
    for (int i = 0; i < ranks; i++) {
        const int r = (first + i) % ranks;
        if (!c->old[r] || c->wards[r])
            continue;
        c->wards[r] = trained_state(c->from, a, c->types, random_below(seed, 2));
        return true;
    }
    return false;
}

/* One replica of each part, or a copy of it, then others as it comes. */
static void place_some(struct change *c, unsigned *seed)
{
    const struct mesh *m = &c->from->mesh;
    int replicas[OLD_MAX], orphans[OLD_MAX], n = 0;
    for (int a = 0; a < m->world; a++) {
        if (mesh_group_rank(m, GROUP_REPLICATE, a) != 0)
            continue;
        mesh_group_members(m, GROUP_REPLICATE, a, replicas);
        const int one = replicas[random_below(seed, m->size[AXIS_DP_REPLICATE])];
        if (random_below(seed, 3) == 0)
            orphans[n++] = one;
        else
            assert_true(place(c, one, seed));
    }
    for (int i = 0; i < n; i++)
        if (!place_copy(c, orphans[i], seed))
            assert_true(place(c, orphans[i], seed));
    for (int a = 0; a < m->world; a++)
        if (c->holder[a] < 0 && random_below(seed, 3))
            (void)place(c, a, seed);
}

/* Worked out from where things were put. */
static enum recovery_source expected_source(const struct change *c)
{
    const struct mesh *m = &c->from->mesh;
    enum recovery_source recovery_source = RECOVERY_SOURCE_MEMORY;
    int replicas[OLD_MAX];
    for (int a = 0; a < m->world; a++) {
        bool replica = false;
        mesh_group_members(m, GROUP_REPLICATE, a, replicas);
        for (int i = 0; i < m->size[AXIS_DP_REPLICATE]; i++)
            replica = replica || c->holder[replicas[i]] >= 0;
        if (!replica)
            return RECOVERY_SOURCE_BUDDY;
        if (c->holder[a] < 0)
            recovery_source = RECOVERY_SOURCE_REPLICA;
    }
    return recovery_source;
}

static void test_any_mesh_to_any_mesh(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    static struct change c;
    uint64_t sent = 0;
    int by_source[RECOVERY_SOURCE_BUDDY + 1] = {0};
    for (int round = 0; round < sliced(ROUNDS / 4, ROUNDS); round++) {
        open_change(&c, &seed);
        place_some(&c, &seed);
        run_change(&c);
        for (int r = 0; r < c.to->mesh.world; r++) {
            if (c.status[r] != TITAN_OK)
                fail_msg("from %s: rank %d: %s %s", layout_text(c.from), r, titan_status_name(c.status[r]),
                         c.errors[r].msg);
            check_fresh(&c, r);
            assert_int_equal(c.recovery_source[r], expected_source(&c));
            assert_int_equal(c.before[r].parameters, c.after[r].parameters);
            assert_int_equal(c.before[r].bytes, c.hub.sent);
            assert_false(c.before[r].copies_differ);
        }
        by_source[expected_source(&c)]++;
        sent += c.hub.sent;
        close_change(&c);
    }
    assert_true(in_fast_set() || (by_source[RECOVERY_SOURCE_REPLICA] > 0 && by_source[RECOVERY_SOURCE_BUDDY] > 0));
    assert_true(sent > 0);
}

/* Blocks of codes keep their codes on every mesh that cuts tensors alike: other numbers of ranges, replicas and pp. */
static void test_blocks_of_codes(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    static struct change c;
    int changes = 0;
    while (changes < sliced(ROUNDS / 4, ROUNDS)) {
        c = (struct change){.model = random_model(&seed), .types = {DTYPE_BF16, DTYPE_F32, DTYPE_U8}};
        c.to = random_coded_layout(&seed, c.model, NEW_MAX);
        c.from = random_coded_layout(&seed, c.model, OLD_MAX);
        const struct mesh *const x = &c.from->mesh, *const y = &c.to->mesh;
        if (x->size[AXIS_TP] != y->size[AXIS_TP] || x->ep != y->ep || c.from->canonical != c.to->canonical ||
            x->world / x->size[AXIS_DP_REPLICATE] > y->world) {
            close_change(&c);
            continue;
        }
        for (int a = 0; a < c.from->mesh.world; a++)
            c.holder[a] = -1;
        for (int r = 0; r < c.to->mesh.world; r++)
            c.fresh[r] = open_state(c.to, r, c.types, random_below(&seed, 2));
        place_some(&c, &seed);
        run_change(&c);
        for (int r = 0; r < c.to->mesh.world; r++) {
            if (c.status[r] != TITAN_OK)
                fail_msg("from %s: rank %d: %s %s", layout_text(c.from), r, titan_status_name(c.status[r]),
                         c.errors[r].msg);
            check_fresh(&c, r);
            assert_int_equal(c.before[r].parameters, c.after[r].parameters);
            assert_false(c.before[r].copies_differ);
        }
        changes++;
        close_change(&c);
    }
}

/* The same mesh, every shard where it was: nothing travels. */
static void test_in_place(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    static struct change c;
    for (int round = 0; round < sliced(ROUNDS / 12, ROUNDS / 3); round++) {
        c = (struct change){.model = random_model(&seed)};
        c.from = c.to = random_layout(&seed, c.model, NEW_MAX);
        for (int r = 0; r < c.to->mesh.world; r++) {
            c.fresh[r] = open_state(c.to, r, c.types, false);
            c.old[r] = trained_state(c.from, r, c.types, false);
            c.holder[r] = r;
        }
        run_change(&c);
        for (int r = 0; r < c.to->mesh.world; r++) {
            assert_int_equal(c.status[r], TITAN_OK);
            check_fresh(&c, r);
        }
        assert_int_equal(c.hub.sent, 0);
        c.from = NULL;
        close_change(&c);
    }
}

static void expect_conflict(struct change *c, const char *says)
{
    c->hub = (struct hub){0};
    run_change(c);
    for (int r = 0; r < c->to->mesh.world + c->departing; r++) {
        assert_int_equal(c->status[r], TITAN_ECONFLICT);
        if (!strstr(c->errors[r].msg, says))
            fail_msg("'%s' is not in: %s", says, c->errors[r].msg);
    }
}

static void test_no_whole_state(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    static struct change c;
    for (int round = 0; round < sliced(5, 20); round++) {
        int replicas[OLD_MAX], used = 0;
        open_change(&c, &seed);
        place_some(&c, &seed);
        const struct mesh *m = &c.from->mesh;
        for (int r = 0; r < RANKS_MAX; r++)
            used += c.old[r] != NULL;
        if (used > 1) { /* two that hold something differ */
            struct train_state *odd = NULL;
            for (int r = 0; !odd; r++)
                odd = c.old[r];
            odd->step = 11;
            expect_conflict(&c, "step 11");
            odd->step = 12;
        }
        const int victim = random_below(&seed, m->world);
        mesh_group_members(m, GROUP_REPLICATE, victim, replicas);
        for (int r = 0; r < RANKS_MAX; r++)
            if (c.wards[r])
                c.wards[r]->total++;                         /* no rank's shard */
        for (int i = 0; i < m->size[AXIS_DP_REPLICATE]; i++) /* named, but it has another's, or nothing */
            if (c.holder[replicas[i]] >= 0) {
                struct train_state *gone = c.old[c.holder[replicas[i]]];
                if (random_below(&seed, 2)) {
                    gone->rank = m->world;
                } else {
                    gone->layout = NULL;
                    state_close(gone);
                    c.old[c.holder[replicas[i]]] = NULL;
                }
            }
        expect_conflict(&c, "state in memory: no rank holds");
        close_change(&c);
    }
}

static void flip_bit(const struct change *c, struct train_state *s, unsigned *seed)
{
    struct shard_slice *slices = NULL;
    int n;
    assert_int_equal(layout_slices(c->from, s->rank, NULL, NULL, NULL, NULL, &slices, &n, NULL), TITAN_OK);
    const struct shard_slice *p = &slices[random_below(seed, n)];
    enum dtype type;
    uint8_t *const bytes = state_slice(s, p, &type);
    bytes[random_below(seed, (int)(p->rows * p->cols * (int64_t)dtype_bytes(type)))] ^= 1u << random_below(seed, 8);
    free(slices);
}

static bool only_padding(const struct change *c, int a)
{
    struct shard_slice *slices = NULL;
    int n;
    assert_int_equal(layout_slices(c->from, a, NULL, NULL, NULL, NULL, &slices, &n, NULL), TITAN_OK);
    free(slices);
    return n == 0;
}

/* Two copies of a part in every combination, one bit of one of them wrong: both ranks are named, by all. */
static void test_flipped_bit(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    static struct change c;
    int replicas = 0, copies = 0;
    for (int round = 0; round < sliced(ROUNDS / 4, ROUNDS); round++) {
        char words[2][32];
        open_change(&c, &seed);
        const struct mesh *m = &c.from->mesh;
        if (m->world > c.to->mesh.world + c.departing || m->world < 2) {
            close_change(&c);
            continue;
        }
        for (int a = 0; a < m->world; a++)
            assert_true(place(&c, a, &seed));
        int a = random_below(&seed, m->world);
        while (only_padding(&c, a))
            a = (a + 1) % m->world;
        const int r = c.holder[a];
        const bool copied = m->size[AXIS_DP_REPLICATE] == 1 || random_below(&seed, 2);
        if (copied) { /* with another rank */
            const int keeper = (a + 1) % m->world;
            c.wards[c.holder[keeper]] = trained_state(c.from, a, c.types, false);
            flip_bit(&c, random_below(&seed, 2) ? c.old[r] : c.wards[c.holder[keeper]], &seed);
            (void)snprintf(words[1], sizeof words[1], "rank %d, holds", keeper);
        } else {
            flip_bit(&c, c.old[r], &seed);
            (void)snprintf(words[1], sizeof words[1], "replicas");
        }
        (void)snprintf(words[0], sizeof words[0], copied ? "rank %d and" : "%d ", a);
        run_change(&c);
        for (int i = 0; i < c.to->mesh.world + c.departing; i++) {
            const bool replica_differs = c.status[i] == TITAN_ECORRUPT; /* also when it was the part with a copy */
            const char *says = replica_differs ? c.errors[i].msg : c.before[i].why.msg;
            assert_true(replica_differs || (c.status[i] == TITAN_OK && c.before[i].copies_differ));
            assert_true(copied || replica_differs);
            if (!strstr(says, replica_differs ? "replicas" : words[1]) || (!replica_differs && !strstr(says, words[0])))
                fail_msg("'%s' and '%s' are not in: %s", words[0], words[1], says);
            assert_int_equal(replica_differs, c.status[0] == TITAN_ECORRUPT);
        }
        replicas += !copied;
        copies += copied;
        close_change(&c);
    }
    assert_true(in_fast_set() || (replicas > 0 && copies > 0));
}

/* --- what each replica has of its own ----------------------------------------------------------------------------- */

static float apart(const struct shard_slice *p, int64_t i, int replica)
{
    return trained(p, i) + (float)(1000 * replica * replica) + 0.37f;
}

/* Gives a state the residual of its replica. */
static void set_apart(struct train_state *s, int replica)
{
    struct shard_slice *slices = NULL;
    int n;
    assert_int_equal(layout_slices(s->layout, s->rank, NULL, NULL, NULL, NULL, &slices, &n, NULL), TITAN_OK);
    for (int p = 0; p < n; p++) {
        enum dtype type;
        if (!layout_spec_is_each(s->layout, slices[p].tensor))
            continue;
        float *const at = state_slice(s, &slices[p], &type);
        for (int64_t i = 0; i < slices[p].rows * slices[p].cols; i++)
            at[i] = apart(&slices[p], i, replica);
    }
    free(slices);
}

static float mean_of(const struct shard_slice *p, int64_t i, const bool *present, int replicas)
{
    float sum = 0;
    int n = 0;
    for (int r = 0; r < replicas; r++)
        if (present[r]) {
            sum = n == 0 ? apart(p, i, r) : sum + apart(p, i, r);
            n++;
        }
    return n > 1 ? sum * (1.0f / (float)n) : sum;
}

/* From any mesh to any other, some replicas gone: every new rank has the mean of the residuals that are
 * left, and what replicas have alike as ever. They count as replicas that do not differ. */
static void test_residuals(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    static struct change c;
    const struct state_kinds kinds = {.n = 2, .name = {"m", "residual"}, .matrices = 3, .rest = 3, .each = 2};
    int several = 0;
    for (int round = 0; round < sliced(ROUNDS / 4, ROUNDS); round++) {
        bool present[OLD_MAX] = {0};
        c = (struct change){.model = random_model(&seed), .types = {DTYPE_BF16, DTYPE_F32, DTYPE_F32}};
        c.to = random_layout_of(&seed, c.model, NEW_MAX, kinds);
        do {
            layout_close(c.from);
            c.from = random_layout_of(&seed, c.model, NEW_MAX, kinds);
        } while (c.from->mesh.world > c.to->mesh.world + 4);
        c.departing = 4;
        const struct mesh *const m = &c.from->mesh;
        const int replicas = m->size[AXIS_DP_REPLICATE];
        int there = 0;
        for (int r = 0; r < replicas; r++)
            there += present[r] = random_below(&seed, 3) > 0;
        if (there == 0)
            there = present[random_below(&seed, replicas)] = true;
        several += there > 1;
        for (int r = 0; r < c.to->mesh.world; r++)
            c.fresh[r] = open_state(c.to, r, c.types, random_below(&seed, 2));
        for (int a = 0; a < m->world; a++) {
            const int replica = mesh_group_rank(m, GROUP_REPLICATE, a);
            c.holder[a] = -1;
            if (present[replica]) {
                assert_true(place(&c, a, &seed));
                set_apart(c.old[c.holder[a]], replica);
            }
        }
        run_change(&c);
        for (int r = 0; r < c.to->mesh.world; r++) {
            struct shard_slice *slices = NULL;
            int n;
            if (c.status[r] != TITAN_OK)
                fail_msg("from %s: rank %d: %s %s", layout_text(c.from), r, titan_status_name(c.status[r]),
                         c.errors[r].msg);
            assert_int_equal(layout_slices(c.to, r, NULL, NULL, NULL, NULL, &slices, &n, NULL), TITAN_OK);
            for (int p = 0; p < n; p++) {
                enum dtype type;
                if (!layout_spec_is_each(c.to, slices[p].tensor))
                    continue;
                float *const at = state_slice(c.fresh[r], &slices[p], &type);
                for (int64_t i = 0; i < slices[p].rows * slices[p].cols; i++) {
                    if (at[i] != mean_of(&slices[p], i, present, replicas))
                        fail_msg("rank %d: element %ld of a piece of spec %d is %g in place of %g", r, (long)i,
                                 slices[p].tensor, (double)at[i], (double)mean_of(&slices[p], i, present, replicas));
                    at[i] = trained(&slices[p], i);
                }
            }
            free(slices);
            check_fresh(&c, r);
            assert_int_equal(c.before[r].parameters, c.after[r].parameters);
        }
        close_change(&c);
    }
    assert_true(in_fast_set() || several > 0);
}

/* --- what codes of gradients owe ---------------------------------------------------------------------------------- */

static struct train_state *state_with_errors(struct layout *l, int rank)
{
    struct train_state *s = NULL;
    const struct state_options options = {.device = &memory_device,
                                          .layout = l,
                                          .rank = rank,
                                          .types = {DTYPE_BF16, DTYPE_F32, DTYPE_F32},
                                          .errors = true};
    assert_int_equal(state_open(&options, &s, NULL), TITAN_OK);
    return s;
}

/* An error of at most 1, the same whichever process has the rank. */
static float error_scale(int a, int unit, int64_t bucket)
{
    return (float)(1 + (a * 7 + unit * 5 + bucket * 3) % 16) / (16 * 128);
}

static int8_t error_code(int a, int unit, int64_t value)
{
    return (int8_t)((uint64_t)(a * 1000003 + unit * 7919 + value + 1) * 0x9e3779b97f4a7c15u >> 56);
}

static void set_errors(struct train_state *s, int a)
{
    const struct layout *const l = s->layout;
    for (int u = 0; u < l->model->n_units; u++) {
        const struct codec_places at = codec_places(CODEC_LOCO, l->units[u].shard);
        if (layout_error_bytes(l, u) == 0 || !layout_adds(l, u, a))
            continue;
        for (int64_t v = 0; v < l->units[u].padded; v++) {
            uint8_t *const piece = state_errors(s, u) + v / l->units[u].shard * at.error_bytes;
            const int64_t i = v % l->units[u].shard;
            ((float *)(void *)piece)[i / CODEC_BUCKET] = error_scale(a, u, i / CODEC_BUCKET);
            piece[at.error_codes + i] = (uint8_t)error_code(a, u, v);
        }
    }
    s->step = 12;
}

/* What rank a owes of a value; 0 where the unit has no errors there. */
static double owed_by(const struct train_state *s, int unit, int64_t value)
{
    const struct unit_layout *const l = &s->layout->units[unit];
    const struct codec_places at = codec_places(CODEC_LOCO, l->shard);
    if (!s->errors || layout_error_bytes(s->layout, unit) == 0 || !layout_adds(s->layout, unit, s->rank) ||
        value >= l->padded)
        return 0;
    const uint8_t *const piece = state_errors(s, unit) + value / l->shard * at.error_bytes;
    const int64_t i = value % l->shard;
    return (double)((const float *)(const void *)piece)[i / CODEC_BUCKET] * (int8_t)piece[at.error_codes + i];
}

/* The sum over ranks of what they owe is what it was, value by value, and is all with the owners of ranges. Returns
 * whether something is owed. */
static bool check_owed(const struct change *c)
{
    bool some = false;
    for (int u = 0; u < c->model->n_units; u++) {
        const bool kept = layout_error_bytes(c->from, u) > 0 && layout_error_bytes(c->to, u) > 0;
        for (int64_t v = 0; v < MIN(c->from->units[u].padded, c->to->units[u].padded); v++)
            for (int part = 0; part < layout_unit_parts(c->to, u); part++) {
                double before = 0, after = 0;
                for (int r = 0; r < RANKS_MAX; r++)
                    if (c->old[r] && kept && layout_unit_part(c->from, u, c->old[r]->rank) == part)
                        before += owed_by(c->old[r], u, v);
                for (int b = 0; b < c->to->mesh.world; b++) {
                    const double x = layout_unit_part(c->to, u, b) == part ? owed_by(c->fresh[b], u, v) : 0;
                    const int64_t begin = layout_begin(c->to, u, b);
                    if (x != 0 && (v < begin || v >= begin + c->to->units[u].shard ||
                                   c->to->units[u].pp_rank != mesh_group_rank(&c->to->mesh, GROUP_PP, b)))
                        fail_msg("rank %d owes %g of value %ld of unit %d, which it does not own", b, x, (long)v, u);
                    after += x;
                }
                some = some || before != 0;
                if (!(fabs(after - before) <= c->from->mesh.world / 128.0))
                    fail_msg("from %s: of value %ld in unit %d %g is owed in place of %g", layout_text(c->from),
                             (long)v, u, after, before);
            }
    }
    return some;
}

/* All new errors, as one number. */
static uint64_t hash_of_errors(const struct change *c)
{
    uint64_t hash = HASH_INIT;
    for (int b = 0; b < c->to->mesh.world; b++)
        for (int u = 0; u < c->model->n_units; u++)
            if (layout_error_bytes(c->to, u) > 0 && layout_adds(c->to, u, b))
                hash = hash_bytes(hash, state_errors(c->fresh[b], u), layout_error_bytes(c->to, u));
    return hash;
}

/* Ranks come, go and change places, with any stages and replicas beside: the sum of all errors stays, whichever process
 * has a rank. Where a rank is gone, or has not settled, there is no sum. */
static void test_owed(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    static struct change c;
    int owing = 0, settled = 0;
    for (int changes = 0; changes < sliced(ROUNDS / 4, ROUNDS);) {
        c = (struct change){.model = random_model(&seed), .types = {DTYPE_BF16, DTYPE_F32, DTYPE_F32}, .owed = true};
        c.to = random_layout(&seed, c.model, NEW_MAX);
        c.from = random_layout(&seed, c.model, NEW_MAX);
        const struct mesh *const x = &c.from->mesh, *const y = &c.to->mesh;
        if (x->size[AXIS_TP] != y->size[AXIS_TP] || x->ep != y->ep || x->rotate || y->rotate ||
            x->cut_experts != y->cut_experts || c.from->canonical || c.to->canonical || x->world > y->world + 4 ||
            x->world < 2) {
            close_change(&c);
            continue;
        }
        const int lost = changes % 5 == 0 ? random_below(&seed, x->world) : -1; /* or a rank that has not settled */
        const bool gone = x->size[AXIS_DP_REPLICATE] > 1;
        uint64_t hashes[2];
        c.departing = 4;
        for (int again = 0; again < 2; again++) { /* with other processes */
            c.hub = (struct hub){0};
            for (int r = 0; r < y->world; r++)
                c.fresh[r] = state_with_errors(c.to, r);
            for (int a = 0; a < x->world; a++) {
                c.holder[a] = -1;
                if (a == lost && gone)
                    continue;
                int r = random_below(&seed, y->world + 4);
                while (c.old[r])
                    r = (r + 1) % (y->world + 4);
                c.old[r] = state_with_errors(c.from, a);
                c.holder[a] = r;
                set_errors(c.old[r], a);
                if (a != lost)
                    state_settle(c.old[r]);
            }
            run_change(&c);
            for (int r = 0; r < y->world + 4; r++) {
                if (c.status[r] != TITAN_OK)
                    fail_msg("from %s: rank %d: %s %s", layout_text(c.from), r, titan_status_name(c.status[r]),
                             c.errors[r].msg);
                assert_int_equal(c.settled[r], lost < 0);
            }
            assert_int_equal(c.before[0].bytes, c.hub.sent);
            if (lost < 0)
                owing += check_owed(&c);
            hashes[again] = hash_of_errors(&c);
            close_states(c.old);
            close_states(c.fresh);
        }
        assert_int_equal(hashes[0], hashes[1]);
        settled += lost < 0;
        changes++;
        close_change(&c);
    }
    print_message("# %d changes that settled, %d of 2 each with errors\n", settled, owing);
    assert_true(settled > 0 && owing > 0);
}

struct folding {
    struct train_state *state;
    struct peer_ranks replicas;
    float *means;
    titan_status status;
};

static void *fold_main(void *arg)
{
    struct folding *f = arg;
    f->status = fold_replicas(f->state, &f->replicas, f->means, NULL);
    return NULL;
}

/* The mean of a shard's replicas, in the places of the masters; the states stay. */
static void test_fold(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    const struct state_kinds kinds = {.n = 2, .name = {"m", "residual"}, .matrices = 3, .rest = 3, .each = 2};
    static const bool present[NEW_MAX] = {true, true, true, true, true, true, true, true, true, true, true, true};
    int folded = 0;
    for (int round = 0; round < sliced(ROUNDS / 4, ROUNDS); round++) {
        static struct hub hub;
        struct model *m = random_model(&seed);
        struct layout *l = random_layout_of(&seed, m, NEW_MAX, kinds);
        const int n = mesh_group_size(&l->mesh, GROUP_REPLICATE);
        int members[NEW_MAX], n_slices;
        struct folding of[NEW_MAX];
        struct comm comms[NEW_MAX];
        pthread_t threads[NEW_MAX];
        struct shard_slice *slices = NULL;
        hub = (struct hub){.world = n};
        (void)pthread_mutex_init(&hub.lock, NULL);
        (void)pthread_cond_init(&hub.changed, NULL);
        mesh_group_members(&l->mesh, GROUP_REPLICATE, random_below(&seed, l->mesh.world), members);
        for (int r = 0; r < n; r++) {
            const struct state_types types = {DTYPE_BF16, DTYPE_F32, DTYPE_F32};
            comms[r] = (struct comm){&hub, r};
            of[r] = (struct folding){
                .state = trained_state(l, members[r], types, false),
                .replicas = {.device = &memory_device, .ops = &hub_ops, .comm = n > 1 ? &comms[r] : NULL, .n = n},
                .means = r == 0 ? calloc((size_t)layout_total(l, members[r]), sizeof(float)) : NULL};
            set_apart(of[r].state, r);
            assert_int_equal(pthread_create(&threads[r], NULL, fold_main, &of[r]), 0);
        }
        for (int r = 0; r < n; r++)
            (void)pthread_join(threads[r], NULL);
        assert_int_equal(layout_slices(l, members[0], NULL, NULL, NULL, NULL, &slices, &n_slices, NULL), TITAN_OK);
        for (int p = 0; p < n_slices; p++)
            for (int64_t i = 0; i < slices[p].rows * slices[p].cols; i++) {
                enum dtype type;
                if (!layout_spec_is_each(l, slices[p].tensor))
                    continue;
                assert_true(of[0].means[layout_each_place(l, &slices[p]) + i] == mean_of(&slices[p], i, present, n));
                assert_true(((float *)state_slice(of[0].state, &slices[p], &type))[i] == apart(&slices[p], i, 0));
                folded += n > 1;
            }
        for (int r = 0; r < n; r++) {
            assert_int_equal(of[r].status, TITAN_OK);
            of[r].state->layout = NULL;
            state_close(of[r].state);
            free(of[r].means);
        }
        (void)pthread_cond_destroy(&hub.changed);
        (void)pthread_mutex_destroy(&hub.lock);
        free(slices);
        layout_close(l);
        model_close(m);
    }
    assert_true(folded > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        longer(test_any_mesh_to_any_mesh),
        longer(test_blocks_of_codes),
        longer(test_in_place),
        longer(test_no_whole_state),
        longer(test_flipped_bit),
        longer(test_residuals),
        longer(test_owed),
        longer(test_fold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
