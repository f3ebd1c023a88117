/* SPDX-License-Identifier: Apache-2.0 */
/* coded.c - see coded.h. */
#include "worker/tensor/coded.h"

#include "base/cleanup.h"

/* Parts are rounded up to MODEL_ALIGN and lie side by side, so every element of the buffer is written. */
static int64_t round_up(int64_t n)
{
    titan_assert(n >= 0);
    return (n + MODEL_ALIGN - 1) / MODEL_ALIGN * MODEL_ALIGN;
}

/* Places the runs. A run within one rank's range lies in that rank's part of `others`. A run over several ranks lies
 * behind all ranks' parts. */
static void place_runs(struct coded *c)
{
    int64_t rank = -1, before = 0, together = 0;

    for (int i = 0; i < c->n_runs; i++) {
        struct coded_run *const run = &c->runs[i];
        const int64_t first = run->from / c->shard, last = (run->to - 1) / c->shard;
        run->together = first < last;
        run->at = run->together ? together : rank == first ? before : 0;
        together += run->together ? run->to - run->from : 0;
        for (int64_t r = first; r <= last; r++) {
            before = (rank == r ? before : 0) + MIN(run->to, (r + 1) * c->shard) - MAX(run->from, r * c->shard);
            rank = r;
            c->others = MAX(c->others, before);
        }
    }
    c->others = round_up(c->others);
    for (int i = 0; i < c->n_runs; i++)
        c->runs[i].at += (c->runs[i].together ? c->members : c->runs[i].from / c->shard) * c->others;
    c->codes_bytes = (size_t)c->padded;
    c->own_codes = c->codes_bytes + (size_t)(c->members * c->others + together) * c->elem;
    c->own_others = c->own_codes + (size_t)c->shard;
    c->bytes = c->own_others + (size_t)c->others * c->elem;
}

void coded_split(const struct layout *layout, int unit, uint64_t tensors, size_t elem, struct coded *ret)
{
    const struct model_unit *const model = &layout->model->units[unit];
    const struct unit_layout *const u = &layout->units[unit];
    const struct local_tensor *const local = layout->tensors;
    int order[CODED_MAX], n = 0; /* the coded tensors in order of offset */
    int64_t done = 0;

    *ret = (struct coded){.tensors = tensors,
                          .members = mesh_group_size(&layout->mesh, u->group),
                          .shard = u->shard,
                          .padded = u->padded,
                          .elem = elem};
    if (tensors == 0 || __builtin_popcountll(tensors) > CODED_MAX) {
        *ret = (struct coded){0};
        return;
    }
    titan_assert(u->shard > 0 && model->n_tensors <= 64);
    for (int i = 0; i < model->n_tensors; i++) {
        if (!(tensors >> i & 1))
            continue;
        titan_assert(n < CODED_MAX);
        int at = n++;
        for (; at > 0 && local[order[at - 1]].offset > local[model->first_tensor + i].offset; at--)
            order[at] = order[at - 1];
        order[at] = model->first_tensor + i;
    }

    /* Between the coded tensors are the runs of elements without codes. */
    ret->n = n;
    for (int i = 0; i <= n; i++) {
        const int64_t to = i < n ? local[order[i]].offset : round_up(u->numel);
        if (done < to)
            ret->runs[ret->n_runs++] = (struct coded_run){.from = done, .to = to};
        if (i < n)
            done = to + local[order[i]].rows * local[order[i]].cols;
    }
    place_runs(ret);
}

void coded_init(const struct layout *layout, int unit, uint64_t tensors, size_t elem, struct coded *ret)
{
    coded_split(layout, unit, tensors, elem, ret);
    if (ret->members <= 1 || (size_t)ret->shard + (size_t)ret->others * ret->elem >= (size_t)ret->shard * ret->elem)
        *ret = (struct coded){0};
}

int coded_place(const struct coded *coded, int tensor)
{
    titan_assert(tensor >= 0 && tensor < 64);
    return coded->tensors >> tensor & 1 ? __builtin_popcountll(coded->tensors & ((UINT64_C(1) << tensor) - 1)) : -1;
}

size_t coded_offset(const struct coded *coded, int64_t element)
{
    const struct coded_run *run = coded->runs;

    while (run < coded->runs + coded->n_runs && element >= run->to)
        run++;
    titan_assert(run < coded->runs + coded->n_runs && element >= run->from);
    return coded->codes_bytes + (size_t)(run->at + element - run->from) * coded->elem;
}

void coded_parts(const struct coded *coded, int member, struct coded_part *ret, int *ret_n)
{
    const int64_t begin = member * coded->shard, end = begin + coded->shard;
    int64_t at = 0;

    titan_assert(member >= 0 && member < coded->members);
    *ret_n = 0;
    for (int i = 0; i < coded->n_runs; i++) {
        const int64_t from = MAX(coded->runs[i].from, begin), to = MIN(coded->runs[i].to, end);
        if (from >= to)
            continue;
        ret[(*ret_n)++] = (struct coded_part){.from = from, .count = to - from, .at = at};
        at += to - from;
    }
    titan_assert(at <= coded->others);
}

size_t coded_sent(const struct coded *coded, int member, int64_t element)
{
    struct coded_part parts[CODED_MAX + 1];
    int n, i = 0;

    coded_parts(coded, member, parts, &n);
    while (i < n && element >= parts[i].from + parts[i].count)
        i++;
    titan_assert(i < n && element >= parts[i].from);
    return coded->codes_bytes + (size_t)(member * coded->others + parts[i].at + element - parts[i].from) * coded->elem;
}
