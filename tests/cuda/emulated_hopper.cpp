/* SPDX-License-Identifier: Apache-2.0 */
/* emulated_hopper.cpp - see emulated_hopper.h. */
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <stdlib.h>
#include <string.h>
#include <vector>

#include "tests/cuda/emulated_hopper.h"
#include "tests/cuda/emulator.h"

#define WARPS_MAX (EMULATE_THREADS_MAX / 32)
#define GROUP 128   /* threads of a product */
#define GRANULE 16  /* bytes that have a state of their own */
#define WINDOW 1040 /* address of the first byte: no multiple of what a tile's must be */
#define SHARED_MOST (256 * 1024)

enum when { EARLY, LATE, RANDOM };

struct barrier {
    unsigned expected, pending;
    int64_t bytes; /* still to land in this phase */
    uint64_t phase;
    bool known;                 /* to copies */
    uint64_t waited[WARPS_MAX]; /* phases that are over as a warp has seen them */
};

struct granule {
    const uint64_t *barrier; /* of the copy that filled it; NULL: none did */
    uint64_t phase;
    unsigned readers; /* products that may still read it */
    bool coming;      /* a copy is under way */
};

struct copy {
    char *to;
    struct emulated_map map;
    uint64_t *barrier;
    int at[4];
};

struct addition {
    unsigned thread, bytes;
    float *to;
    const char *from;
};

/* The sums of a tile of 64 x n in the registers of four warps. */
struct sums {
    float *registers[GROUP];
    int n;
    int products; /* under way */
    std::vector<float> value;
};

struct product {
    std::shared_ptr<struct sums> sums;
    bool from_registers, a_rows, b_rows, add, done;
    uint64_t a_tile, b_tile;
    uint32_t a[GROUP][4];
    std::vector<uint32_t> reads; /* granules */
};

enum call_kind { CALL_MMA, CALL_FENCE, CALL_COMMIT, CALL_WAIT };
struct call {
    enum call_kind kind;
    float *sums;
    int n; /* or how many groups may stay */
    const uint32_t *a;
    uint64_t a_tile, b_tile;
    bool a_rows, b_rows, add;
};

struct group {
    struct call calls[GROUP];
    unsigned arrived;
    uint64_t generation;
    bool fenced;
    std::list<std::shared_ptr<struct sums>> busy;
    std::vector<struct product> open;
    std::deque<std::vector<struct product>> committed;
};

static bool used = true; /* in this block, or ever */
static char *window;
static size_t window_bytes;
static char shadow[SHARED_MOST]; /* what products may read */
static struct granule granules[SHARED_MOST / GRANULE];
static std::map<const uint64_t *, struct barrier> barriers;
static std::list<struct copy> copies;
static std::list<struct addition> additions;
static struct group groups[WARPS_MAX / 4];
static uint64_t seed;

static enum when when_things_happen(void)
{
    const char *const how = getenv("TITAN_EMULATE_ASYNC");
    if (!how || strcmp(how, "late") == 0)
        return LATE;
    return strcmp(how, "early") == 0 ? EARLY : RANDOM;
}

static bool coin(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 62) == 0;
}

static unsigned warp_of_caller(void)
{
    return emulated_self->linear / 32;
}

uint32_t emulated_address(const void *shared)
{
    const ptrdiff_t offset = (const char *)shared - window;
    if (offset < 0 || (size_t)offset >= window_bytes)
        emulated_fault("an address outside of dynamic shared memory");
    return (uint32_t)(WINDOW + offset);
}

/* --- barriers ----------------------------------------------------------------------------------------------------- */

static struct barrier *find_barrier(const uint64_t *barrier)
{
    auto found = barriers.find(barrier);
    if (found == barriers.end())
        emulated_fault("a barrier that was not initialised");
    return &found->second;
}

static void end_phase_if_over(struct barrier *b)
{
    if (b->pending > 0 || b->bytes != 0)
        return;
    b->phase++;
    b->pending = b->expected;
}

void emulated_barrier_init(uint64_t *barrier, unsigned arrivals)
{
    used = true;
    if ((uintptr_t)barrier % 8 != 0 || arrivals == 0 || barriers.count(barrier))
        emulated_fault("a barrier at an odd address, without arrivals, or initialised twice");
    (void)emulated_address(barrier);
    struct barrier b = {};
    b.expected = b.pending = arrivals;
    barriers[barrier] = b;
}

void emulated_barrier_arrive(uint64_t *barrier, unsigned bytes)
{
    struct barrier *b = find_barrier(barrier);
    if (b->pending == 0)
        emulated_fault("more arrivals at a barrier than it expects");
    b->bytes += bytes;
    b->pending--;
    end_phase_if_over(b);
}

static bool phase_is_over(const void *of, uint64_t parity)
{
    return (((const struct barrier *)of)->phase & 1) != parity;
}

void emulated_barrier_wait(uint64_t *barrier, unsigned parity)
{
    struct barrier *b = find_barrier(barrier);
    emulated_wait_until(phase_is_over, b, parity & 1, "a wait for a phase that never ends");
    b->waited[warp_of_caller()] = b->phase;
}

/* Plain stores until now are seen by copies and products from now on. */
void emulated_fence_async(void)
{
    for (auto &b : barriers)
        b.second.known = true;
    for (size_t i = 0; used && i < window_bytes / GRANULE; i++) {
        if (granules[i].coming || memcmp(window + i * GRANULE, shadow + i * GRANULE, GRANULE) == 0)
            continue;
        memcpy(shadow + i * GRANULE, window + i * GRANULE, GRANULE);
        granules[i].barrier = (const uint64_t *)window; /* no copy's: filled by stores */
        granules[i].phase = 0;
    }
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

static void land(struct copy *c)
{
    struct barrier *b = find_barrier(c->barrier);
    const int bytes = c->map.rows * c->map.columns * 2;
    for (int row = 0; row < c->map.rows; row++)
        for (int column = 0; column < c->map.columns; column++) {
            const int64_t at[4] = {c->at[0] + column, c->at[1] + row, c->at[2], c->at[3]};
            uint16_t value = 0;
            bool inside = true;
            int64_t from = 0;
            for (int i = 0; i < 4; i++) {
                inside = inside && at[i] >= 0 && at[i] < c->map.size[i];
                from += at[i] * c->map.stride[i];
            }
            if (inside)
                memcpy(&value, c->map.base + from, 2);
            uint32_t address = emulated_address(c->to) + (uint32_t)(row * 128 + column * 2);
            address ^= (address >> 7 & 7) << 4;
            memcpy(window + (address - WINDOW), &value, 2);
        }
    const size_t first = (size_t)(c->to - window) / GRANULE;
    for (size_t i = first; i < first + (size_t)bytes / GRANULE; i++) {
        granules[i].coming = false;
        granules[i].barrier = c->barrier;
        granules[i].phase = b->phase;
    }
    memcpy(shadow + (c->to - window), c->to, (size_t)bytes);
    b->bytes -= bytes;
    if (b->bytes < 0)
        emulated_fault("a copy of more bytes than its barrier was told");
    end_phase_if_over(b);
}

void emulated_copy(void *to, const struct emulated_map *map, uint64_t *barrier, const int (&at)[4])
{
    const uint32_t address = emulated_address(to);
    const size_t bytes = (size_t)map->rows * (size_t)map->columns * 2, first = (size_t)((char *)to - window) / GRANULE;
    if (!find_barrier(barrier)->known)
        emulated_fault("a copy to a barrier that no fence made known");
    if (address % 1024 != 0 || map->columns != 64 || map->rows > 256 ||
        (size_t)(address - WINDOW) + bytes > window_bytes)
        emulated_fault("a copy to an odd address, or of a box that cannot be");
    for (int i = 0; i < 4; i++)
        if (map->size[i] <= 0 || (i > 0 && map->stride[i] % 16 != 0) || (uintptr_t)map->base % 16 != 0)
            emulated_fault("a copy of a tensor that is not in rows of whole 16 bytes");
    for (size_t i = first; i < first + bytes / GRANULE; i++) {
        if (granules[i].readers > 0)
            emulated_fault("a copy into a tile that a product may still read");
        if (granules[i].coming)
            emulated_fault("a copy into a tile that another one fills");
        granules[i].coming = true;
    }
    memset(to, 0xff, bytes);
    struct copy c = {(char *)to, *map, barrier, {at[0], at[1], at[2], at[3]}};
    const enum when when = when_things_happen();
    if (when == EARLY || (when == RANDOM && coin()))
        land(&c);
    else
        copies.push_back(c);
}

static void land_one(std::list<struct copy>::iterator which)
{
    struct copy c = *which;
    copies.erase(which);
    land(&c);
}

bool emulated_copies_at_random(void)
{
    bool some = false;
    if (!used || copies.empty() || when_things_happen() != RANDOM)
        return false;
    for (auto c = copies.begin(); c != copies.end();) {
        auto next = std::next(c);
        if (coin()) {
            land_one(c);
            some = true;
        }
        c = next;
    }
    return some;
}

/* The last one first: no order of copies is promised. */
bool emulated_copy_lands(void)
{
    if (!used || copies.empty())
        return false;
    land_one(std::prev(copies.end()));
    return true;
}

static void add(const struct addition *a)
{
    for (unsigned i = 0; i < a->bytes / 4; i++) {
        float x;
        memcpy(&x, a->from + 4 * i, 4);
        a->to[i] += x;
    }
}

void emulated_add(float *to, const void *from, unsigned bytes)
{
    used = true;
    const size_t at = emulated_address(from) - WINDOW;
    if ((uintptr_t)to % 16 != 0 || (at + WINDOW) % 16 != 0 || bytes % 16 != 0 || at + bytes > window_bytes)
        emulated_fault("sums that are added at an odd address");
    if (memcmp(window + at, shadow + at, bytes) != 0)
        emulated_fault("sums are added that plain stores wrote, without a fence");
    const struct addition a = {emulated_self->linear, bytes, to, (const char *)from};
    const enum when when = when_things_happen();
    if (when == EARLY || (when == RANDOM && coin()))
        add(&a);
    else
        additions.push_back(a);
}

void emulated_add_wait(void)
{
    for (auto a = additions.begin(); a != additions.end();) {
        auto next = std::next(a);
        if (a->thread == emulated_self->linear) {
            add(&*a);
            additions.erase(a);
        }
        a = next;
    }
}

/* --- products ----------------------------------------------------------------------------------------------------- */

static float from_bf16(uint16_t bits)
{
    const uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Where element (line, k) of an operand lies, by its descriptor: lines of 128 swizzled bytes in groups of eight. Along
 * k: a line is a row of the tile. Along the rows: it is a column, 64 of them in a row of 128 bytes. */
static uint32_t element_address(uint64_t tile, bool rows, int line, int k)
{
    const uint32_t start = (uint32_t)(tile & 0x3fff) << 4, leading = (uint32_t)(tile >> 16 & 0x3fff) << 4;
    const uint32_t stride = (uint32_t)(tile >> 32 & 0x3fff) << 4;
    if (tile >> 62 != 1 || (tile >> 49 & 7) != 0)
        emulated_fault("a descriptor of another layout than 128 swizzled bytes");
    uint32_t at = start;
    if (rows)
        at += (uint32_t)(line / 64) * leading + (uint32_t)(line % 64 * 2) + (uint32_t)(k / 8) * stride +
              (uint32_t)(k % 8 * 128);
    else
        at += (uint32_t)(line / 8) * stride + (uint32_t)(line % 8 * 128) + (uint32_t)(k * 2);
    at ^= (at >> 7 & 7) << 4;
    if (at < WINDOW || at - WINDOW + 2 > window_bytes)
        emulated_fault("a product of a tile outside of shared memory");
    return at - WINDOW;
}

/* Note what a product will read; each of the four warps must know that it is there. */
static void note_reads(struct product *p, uint64_t tile, bool rows, int lines, unsigned first_warp)
{
    std::vector<bool> seen(window_bytes / GRANULE);
    for (int line = 0; line < lines; line++)
        for (int k = 0; k < 16; k++)
            seen[element_address(tile, rows, line, k) / GRANULE] = true;
    for (uint32_t i = 0; i < seen.size(); i++) {
        if (!seen[i])
            continue;
        struct granule *const g = &granules[i];
        if (g->coming)
            emulated_fault("a product of a tile that has not landed");
        if (memcmp(window + i * GRANULE, shadow + i * GRANULE, GRANULE) != 0)
            emulated_fault("a product of a tile that plain stores wrote, without a fence");
        if (!g->barrier)
            emulated_fault("a product of a tile that nothing filled");
        for (unsigned w = first_warp; w < first_warp + 4 && (const char *)g->barrier != window; w++)
            if (find_barrier(g->barrier)->waited[w] <= g->phase)
                emulated_fault("a product of a tile that some warp has not waited for");
        g->readers++;
        p->reads.push_back(i);
    }
}

/* This thread's element i of a tile's sums. */
static size_t place_of(unsigned thread, int i, int n)
{
    const int row = (int)(thread / 32) * 16 + (int)(thread % 32 / 4) + i / 2 % 2 * 8;
    const int column = i / 4 * 8 + (int)(thread % 4) * 2 + i % 2;
    return (size_t)row * (size_t)n + (size_t)column;
}

static uint32_t nan_bits(unsigned thread)
{
    return 0x7fc00000u | thread;
}

static std::shared_ptr<struct sums> take_sums(struct group *g)
{
    const int n = g->calls[0].n;
    for (auto &s : g->busy)
        if (s->registers[0] == g->calls[0].sums) {
            for (unsigned t = 0; t < GROUP; t++)
                if (s->registers[t] != g->calls[t].sums || s->n != n)
                    emulated_fault("products with sums in different registers");
            return s;
        }
    auto s = std::make_shared<struct sums>();
    s->n = n;
    s->products = 0;
    s->value.resize((size_t)64 * (size_t)n);
    for (unsigned t = 0; t < GROUP; t++) {
        s->registers[t] = g->calls[t].sums;
        for (int i = 0; i < n / 2; i++) {
            const uint32_t poison = nan_bits(t);
            s->value[place_of(t, i, n)] = s->registers[t][i];
            memcpy(&s->registers[t][i], &poison, 4);
        }
    }
    g->busy.push_back(s);
    return s;
}

static void carry_out(struct product *p)
{
    if (p->done)
        return;
    p->done = true;
    const int n = p->sums->n;
    std::vector<float> a(64 * 16), b((size_t)n * 16);
    for (int row = 0; row < 64; row++)
        for (int k = 0; k < 16; k++) {
            uint16_t bits;
            if (p->from_registers) {
                const int thread = row / 16 * 32 + row % 8 * 4 + k % 8 / 2;
                bits = (uint16_t)(p->a[thread][row % 16 / 8 + k / 8 * 2] >> (k % 2 * 16));
            } else {
                memcpy(&bits, window + element_address(p->a_tile, p->a_rows, row, k), 2);
            }
            a[(size_t)(row * 16 + k)] = from_bf16(bits);
        }
    for (int column = 0; column < n; column++)
        for (int k = 0; k < 16; k++) {
            uint16_t bits;
            memcpy(&bits, window + element_address(p->b_tile, p->b_rows, column, k), 2);
            b[(size_t)(k * n + column)] = from_bf16(bits);
        }
    for (int row = 0; row < 64; row++) {
        float *const to = &p->sums->value[(size_t)row * (size_t)n];
        if (!p->add)
            memset(to, 0, (size_t)n * sizeof(float));
        for (int k = 0; k < 16; k++) {
            const float x = a[(size_t)(row * 16 + k)], *const from = &b[(size_t)(k * n)];
            for (int column = 0; column < n; column++)
                to[column] += x * from[column];
        }
    }
}

/* In the order of their calls. */
static void carry_out_all(struct group *g)
{
    for (auto &batch : g->committed)
        for (auto &p : batch)
            carry_out(&p);
    for (auto &p : g->open)
        carry_out(&p);
}

static void begin_product(struct group *g, unsigned first_warp)
{
    const struct call *const c = &g->calls[0];
    if (!g->fenced)
        emulated_fault("a product without a fence of its registers");
    if (c->n % 8 != 0 || c->n < 8 || c->n > 256)
        emulated_fault("a product of a width that cannot be");
    struct product p = {};
    p.sums = take_sums(g);
    p.sums->products++;
    p.from_registers = c->a != NULL;
    p.a_rows = c->a_rows, p.b_rows = c->b_rows, p.add = c->add;
    p.a_tile = c->a_tile, p.b_tile = c->b_tile;
    for (unsigned t = 0; t < GROUP && c->a; t++)
        memcpy(p.a[t], g->calls[t].a, sizeof p.a[t]);
    if (!c->a)
        note_reads(&p, p.a_tile, p.a_rows, 64, first_warp);
    note_reads(&p, p.b_tile, p.b_rows, c->n, first_warp);
    g->open.push_back(std::move(p));
    const enum when when = when_things_happen();
    if (when == EARLY || (when == RANDOM && coin()))
        carry_out_all(g);
}

/* Sums of which no product is under way any more come to the registers. */
static void end_products(struct group *g, std::vector<struct product> &batch)
{
    for (auto &p : batch) {
        carry_out(&p);
        for (uint32_t i : p.reads)
            granules[i].readers--;
        struct sums *const s = p.sums.get();
        if (--s->products > 0)
            continue;
        for (unsigned t = 0; t < GROUP; t++)
            for (int i = 0; i < s->n / 2; i++) {
                const uint32_t poison = nan_bits(t);
                if (memcmp(&s->registers[t][i], &poison, 4) != 0)
                    emulated_fault("sums were written while a product was under way");
                s->registers[t][i] = s->value[place_of(t, i, s->n)];
            }
        g->busy.remove(p.sums);
    }
}

static void all_there(struct group *g, unsigned first_warp)
{
    const struct call *const c = &g->calls[0];
    for (unsigned t = 1; t < GROUP; t++) {
        const struct call *const o = &g->calls[t];
        if (o->kind != c->kind || o->n != c->n || o->a_tile != c->a_tile || o->b_tile != c->b_tile ||
            o->a_rows != c->a_rows || o->b_rows != c->b_rows || o->add != c->add || (o->a != NULL) != (c->a != NULL))
            emulated_fault("four warps that do not call the same product, fence, commit or wait");
    }
    switch (c->kind) {
    case CALL_MMA:
        begin_product(g, first_warp);
        break;
    case CALL_FENCE:
        g->fenced = true;
        break;
    case CALL_COMMIT:
        g->committed.push_back(std::move(g->open));
        g->open.clear();
        g->fenced = false;
        break;
    case CALL_WAIT:
        while (g->committed.size() > (size_t)c->n) {
            end_products(g, g->committed.front());
            g->committed.pop_front();
        }
    }
}

static bool generation_is_over(const void *of, uint64_t generation)
{
    return ((const struct group *)of)->generation != generation;
}

/* The last of a group's threads to come does what all called. */
static void call_together(const struct call *call)
{
    struct group *const g = &groups[emulated_self->linear / GROUP];
    used = true;
    g->calls[emulated_self->linear % GROUP] = *call;
    const uint64_t generation = g->generation;
    if (++g->arrived == GROUP) {
        all_there(g, emulated_self->linear / GROUP * 4);
        g->arrived = 0;
        g->generation++;
    }
    emulated_wait_until(generation_is_over, g, generation, "a product's call that not all of four warps come to");
}

void emulated_mma(float *sums, int n, const uint32_t *a, uint64_t a_tile, uint64_t b_tile, bool a_rows, bool b_rows,
                  bool add)
{
    const struct call call = {CALL_MMA, sums, n, a, a_tile, b_tile, a_rows, b_rows, add};
    call_together(&call);
}

void emulated_mma_fence(void)
{
    const struct call call = {CALL_FENCE, NULL, 0, NULL, 0, 0, false, false, false};
    call_together(&call);
}

void emulated_mma_commit(void)
{
    const struct call call = {CALL_COMMIT, NULL, 0, NULL, 0, 0, false, false, false};
    call_together(&call);
}

void emulated_mma_wait(int left)
{
    const struct call call = {CALL_WAIT, NULL, left, NULL, 0, 0, false, false, false};
    call_together(&call);
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

void emulated_hopper_begin(char *shared, size_t bytes)
{
    window = shared;
    window_bytes = bytes;
    if (!used)
        return;
    used = false;
    barriers.clear();
    memset(granules, 0, sizeof granules);
    memset(shadow, 0xff, sizeof shadow);
    const char *const how = getenv("TITAN_EMULATE_ASYNC");
    seed = (how ? strtoull(how, NULL, 10) : 0) + emulated_block_at.x * 1000003u + emulated_block_at.y * 10007u +
           emulated_block_at.z;
}

void emulated_hopper_end(void)
{
    if (!used)
        return;
    if (!copies.empty())
        emulated_fault("a block ends before its copies have landed");
    if (!additions.empty())
        emulated_fault("a block ends before its added sums were waited for");
    for (struct group &g : groups) {
        if (!g.open.empty() || !g.committed.empty())
            emulated_fault("a block ends before its products were waited for");
        g = group();
    }
}
