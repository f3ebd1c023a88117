/* SPDX-License-Identifier: Apache-2.0 */
/* curves.c - see curves.h.
 *
 * When all ranges are in use, each pair of neighbours is merged and the stride doubles. The number of steps need not be
 * known ahead, and each point is processed once. */
#include "proto/curves.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"

static const char *const names[CURVES_N] = {
#define X(number, name, has, value) #name,
    CURVES_TABLE
#undef X
};

bool curves_init(struct curves *c)
{
    *c = (struct curves){.stride = 1, .first_loss = NAN, .last_loss = NAN};
    c->ranges = calloc(CURVES_RANGES, sizeof(*c->ranges));
    c->ranks = calloc(CURVES_RANKS, sizeof(*c->ranks));
    return c->ranges && c->ranks;
}

void curves_free(struct curves *c)
{
    free(c->ranges);
    free(c->ranks);
    *c = (struct curves){0};
}

static void add_value(struct curves_values *v, double value)
{
    titan_assert(v->n < UINT32_MAX && v->bad < UINT32_MAX);
    if (!isfinite(value)) {
        v->bad++;
        return;
    }
    v->min = v->n ? fmin(v->min, value) : value;
    v->max = v->n ? fmax(v->max, value) : value;
    v->sum += value;
    v->last = value;
    v->n++;
}

static void merge(struct curves_range *into, const struct curves_range *next)
{
    titan_assert(into->last_step < next->step);
    into->last_step = next->last_step;
    into->trained = next->trained;
    into->tokens += next->tokens;
    into->seconds += next->seconds;
    if (next->waited > into->waited) {
        into->waited = next->waited;
        into->slowest = next->slowest;
    }
    for (int i = 0; i < CURVES_N; i++) {
        struct curves_values *a = &into->values[i];
        const struct curves_values *b = &next->values[i];
        if (b->n > 0) {
            a->min = a->n ? fmin(a->min, b->min) : b->min;
            a->max = a->n ? fmax(a->max, b->max) : b->max;
            a->last = b->last;
        }
        a->sum += b->sum;
        a->n += b->n;
        a->bad += b->bad;
    }
}

void curves_add(struct curves *c, const Titan__V1__MetricPoint *p)
{
    titan_assert(c->ranges && c->n <= CURVES_RANGES);
    if (c->n && p->step <= c->ranges[c->n - 1].last_step && p->epoch <= c->epoch)
        return;
    /* steps are trained again: later ranges were lost with their epoch */
    while (c->n && c->ranges[c->n - 1].step >= p->step)
        c->n--;
    struct curves_range *last = c->n ? &c->ranges[c->n - 1] : NULL;
    if (last) /* the range's values still include the lost steps */
        last->last_step = MIN(last->last_step, p->step - 1);
    c->epoch = p->epoch;
    if (!last || last->step / c->stride != p->step / c->stride) {
        while (c->n == CURVES_RANGES) {
            size_t n = 0;
            titan_assert(c->stride <= UINT64_MAX / 2);
            c->stride *= 2;
            for (size_t i = 0; i < c->n; i++) {
                if (n > 0 && c->ranges[n - 1].step / c->stride == c->ranges[i].step / c->stride)
                    merge(&c->ranges[n - 1], &c->ranges[i]);
                else
                    c->ranges[n++] = c->ranges[i];
            }
            c->n = n;
        }
        last = &c->ranges[c->n++];
        *last = (struct curves_range){.step = p->step, .at_ms = MAX(p->at_ms, 0), .waited = -1};
    }
    titan_assert(last);
    last->last_step = p->step;
    last->trained = p->tokens;
#define X(number, name, has, value)                                                                                    \
    if (has)                                                                                                           \
        add_value(&last->values[CURVES_##number], value);
    CURVES_TABLE
#undef X
    const Titan__V1__StepSplit *const s = p->split;
    if (s && p->world_size > 1 && isfinite(s->straggler_ms) && isfinite(s->slowest_busy_ms)) {
        if (s->straggler_ms > last->waited) {
            last->waited = s->straggler_ms;
            last->slowest = s->slowest_rank;
        }
        c->splits++;
        if (s->slowest_rank < CURVES_RANKS) {
            struct curves_rank *const rank = &c->ranks[s->slowest_rank];
            rank->steps++;
            rank->busy_ms += s->slowest_busy_ms;
            rank->waited_ms += s->straggler_ms;
        }
    }
    if (isfinite(p->tokens_per_second) && isfinite(p->step_ms)) {
        last->tokens += p->tokens_per_second * p->step_ms / 1000;
        last->seconds += p->step_ms / 1000;
    }
    if (c->points++ == 0)
        c->first_loss = p->loss;
    c->last_loss = p->loss;
    c->tokens = p->tokens;
    c->skipped_steps = p->skipped_steps;
    c->last_at_ms = p->at_ms;
}

double curves_mean(const struct curves_values *v)
{
    return v->n > 0 ? v->sum / v->n : (double)NAN;
}

double curves_mean_of_all(const struct curves *c, int curve)
{
    double sum = 0, n = 0;
    titan_assert(curve >= 0 && curve < CURVES_N);
    for (size_t i = 0; i < c->n; i++) {
        sum += c->ranges[i].values[curve].sum;
        n += c->ranges[i].values[curve].n;
    }
    return n > 0 ? sum / n : (double)NAN;
}

size_t curves_slowest(const struct curves *c, size_t most, uint32_t *ret)
{
    size_t n = 0;
    titan_assert(most > 0 && c->ranks);
    for (uint32_t rank = 0; rank < CURVES_RANKS; rank++) {
        if (c->ranks[rank].steps == 0)
            continue;
        size_t at = n;
        while (at > 0 && c->ranks[ret[at - 1]].waited_ms < c->ranks[rank].waited_ms)
            at--;
        if (at == most)
            continue;
        n = MIN(n + 1, most);
        memmove(ret + at + 1, ret + at, (n - 1 - at) * sizeof(*ret));
        ret[at] = rank;
    }
    return n;
}

void curves_shrink(struct curves *c, size_t most)
{
    titan_assert(most > 0);
    while (c->n > most) {
        const size_t of_one = (c->n + most - 1) / most;
        size_t n = 0;
        for (size_t i = 0; i < c->n; i++)
            if (i % of_one > 0)
                merge(&c->ranges[n - 1], &c->ranges[i]);
            else
                c->ranges[n++] = c->ranges[i];
        c->n = n;
        c->stride = MAX(c->stride, (uint64_t)2); /* a range is more than a step now */
    }
}

/* Writes six digits: more than a chart shows, and a third of the digits of a full double. */
static void put_number(struct json_writer *w, bool there, double value)
{
    char text[32];
    (void)snprintf(text, sizeof(text), "%.6g", value);
    json_put_raw(w, NULL, there && isfinite(value) ? text : "null");
}

/* put_number() in a fifth of its time: the daemon's loop writes many charts. Ties may be rounded otherwise. */
static void put_fast(struct json_writer *w, bool there, double value)
{
    static const uint64_t tens[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000};
    double size = fabs(value);
    if (!there || !isfinite(value) || (size != 0 && size < 1e-4) || size >= 1e15) {
        put_number(w, there, value);
        return;
    }
    int zeros = 0; /* behind the six digits of a large number */
    while (size >= 999999.5) {
        size /= 10;
        zeros++;
    }
    int before = 1, behind = 0; /* digits before the point; zeros right behind it */
    while (before < 6 && size >= (double)tens[before])
        before++;
    while (behind < 4 && size > 0 && size * (double)tens[behind] < 1)
        behind++;
    int after = 6 - before + behind; /* digits behind the point */
    uint64_t digits = (uint64_t)(size * (double)tens[after] + 0.5);
    for (; after > 0 && digits % 10 == 0; after--)
        digits /= 10;
    char text[32], *at = text + sizeof(text) - 1;
    *at = '\0';
    for (; zeros > 0; zeros--)
        *--at = '0';
    for (int n = 0; n <= after || digits > 0; n++, digits /= 10) {
        if (n == after && after > 0)
            *--at = '.';
        *--at = (char)('0' + digits % 10);
    }
    if (value < 0)
        *--at = '-';
    json_put_raw(w, NULL, at);
}

static void put(const struct curves *c, const char *key, int64_t begin_ms, bool page, struct json_writer *w)
{
    void (*const number)(struct json_writer *, bool, double) = page ? put_fast : put_number;
    titan_assert(c->n == 0 || c->ranges);
    json_begin_object(w, key);
    json_begin_array(w, "step");
    for (size_t i = 0; i < c->n; i++)
        json_put_uint(w, NULL, c->ranges[i].step);
    json_end_array(w);
    json_begin_array(w, "last_step");
    for (size_t i = 0; i < c->n; i++)
        json_put_uint(w, NULL, c->ranges[i].last_step);
    json_end_array(w);
    json_begin_array(w, page ? "at" : "at_ms");
    for (size_t i = 0; i < c->n; i++)
        json_put_int(w, NULL, c->ranges[i].at_ms - begin_ms);
    json_end_array(w);
    if (page) {
        json_begin_array(w, "tokens");
        for (size_t i = 0; i < c->n; i++)
            json_put_uint(w, NULL, c->ranges[i].trained);
        json_end_array(w);
    }
    if (c->splits > 0) {
        json_begin_array(w, "slowest");
        for (size_t i = 0; i < c->n; i++)
            number(w, c->ranges[i].waited >= 0, c->ranges[i].slowest);
        json_end_array(w);
    }
    for (int curve = 0; curve < CURVES_N; curve++) {
        bool any = false, bad = false;
        double last = NAN;
        for (size_t i = 0; i < c->n; i++) {
            const struct curves_values *v = &c->ranges[i].values[curve];
            any = any || v->n > 0;
            bad = bad || v->bad > 0;
            last = v->n > 0 ? v->last : last;
        }
        if (!any && !bad)
            continue;
        json_begin_object(w, names[curve]);
        json_begin_array(w, "mean");
        for (size_t i = 0; i < c->n; i++)
            number(w, true, curves_mean(&c->ranges[i].values[curve]));
        json_end_array(w);
        if (c->stride > 1) {
            json_begin_array(w, "min");
            for (size_t i = 0; i < c->n; i++)
                number(w, c->ranges[i].values[curve].n > 0, c->ranges[i].values[curve].min);
            json_end_array(w);
            json_begin_array(w, "max");
            for (size_t i = 0; i < c->n; i++)
                number(w, c->ranges[i].values[curve].n > 0, c->ranges[i].values[curve].max);
            json_end_array(w);
        }
        if (bad) {
            json_begin_array(w, "bad");
            for (size_t i = 0; i < c->n; i++)
                json_put_uint(w, NULL, c->ranges[i].values[curve].bad);
            json_end_array(w);
        }
        if (page)
            json_put_real(w, "last", last);
        json_end_object(w);
    }
    json_end_object(w);
}

void curves_put(const struct curves *c, const char *key, int64_t begin_ms, struct json_writer *w)
{
    put(c, key, begin_ms, false, w);
}

void curves_put_page(const struct curves *c, const char *key, struct json_writer *w)
{
    put(c, key, 0, true, w);
}
