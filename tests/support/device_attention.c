/* SPDX-License-Identifier: Apache-2.0 */
/* device_attention.c - RoPE and attention: causal, with masks, in parts of a ring, with head and tail rows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/device_checker.h"
#include "support/device_ops.h"
#include "support/device_reference.h"

static void rope_case(struct checker *c, enum dtype dt, int64_t n, int64_t heads, int64_t d, int64_t pad, bool backward)
{
    int64_t ld = heads * d + pad, length = 19;
    struct tensor x = noise(c, n * ld, dt, 1.0), at = integers(c, n, 0, length);
    struct tensor cs = empty(c, length * d / 2, DTYPE_F32), sn = empty(c, length * d / 2, DTYPE_F32);
    for (int64_t p = 0; p < length; p++)
        for (int64_t i = 0; i < d / 2; i++) {
            double angle = (double)p * pow(10000.0, -2.0 * (double)i / (double)d);
            cs.x[p * d / 2 + i] = cos(angle);
            sn.x[p * d / 2 + i] = sin(angle);
        }
    upload(c, &cs);
    upload(c, &sn);
    double *want = values(c, n * ld);
    memcpy(want, x.x, (size_t)(n * ld) * sizeof(double));
    for (int64_t r = 0; r < n; r++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < d / 2; i++) {
                double *pair = want + r * ld + h * d + 2 * i, a = pair[0], b = pair[1];
                double co = cs.x[(int64_t)at.x[r] * d / 2 + i], si = sn.x[(int64_t)at.x[r] * d / 2 + i];
                si = backward ? -si : si;
                pair[0] = a * co - b * si;
                pair[1] = a * si + b * co;
            }
    need(c,
         c->ops->rope(c->s, ARGS(rope, .x = x.p, .ldx = ld, .positions = at.p, .cos = cs.p, .sin = sn.p, .dt = dt,
                                 .n = n, .heads = heads, .d = d, .backward = backward)),
         "rope");
    result(c, near(c, download(c, &x), want, n * ld, limit_of(dt), "rotated"), "rope %s %s %lldx%lldx%lld ld+%lld",
           backward ? "backward" : "forward", name_of(dt), (long long)n, (long long)heads, (long long)d,
           (long long)pad);
    sweep(c);
}

/* One attention problem on the device: every tensor with a row stride of its own. */
struct attention_data {
    struct attention_shape s;
    struct attention_ref ref;
    struct tensor q, k, v, out, lse, dout, index, start, key_index;
    double *dq, *dk, *dv;                /* dense references */
    double *dense_q, *dense_k, *dense_v; /* what the device has, dense */
    int64_t wq, wk, wv, wo, pad;         /* row widths; each stride is pad more */
};

enum attention_mask { CAUSAL, DOCUMENTS, HEAD_TAIL, SCATTERED };
static const char *const mask_names[] = {"causal", "documents", "head-tail", "scattered"};

/* Which token of its sequence (of `length`) row i of n holds: head-tail rows are chunks rank and 2*ranks-1-rank. */
static void choose_tokens(struct checker *c, int64_t *token, int64_t n, int64_t length, enum attention_mask mask,
                          int64_t rank)
{
    int64_t all[1024], half = n / 2, chunks = half > 0 ? length / half : 0;
    for (int64_t i = 0; i < length; i++)
        all[i] = i;
    if (mask == HEAD_TAIL)
        for (int64_t i = 0; i < n; i++)
            token[i] = i < half ? rank * half + i : (chunks - 1 - rank) * half + i - half;
    for (int64_t i = 0; i < n && mask != HEAD_TAIL; i++) {
        int64_t pick = i + (int64_t)(next_random(c) % (uint64_t)(length - i)), keep = all[i];
        if (mask == SCATTERED)
            all[i] = all[pick], all[pick] = keep;
        token[i] = all[i];
    }
}

/* Documents of 1 to 40 tokens, or none; then the places of the chosen queries and keys. */
static void attention_masks(struct checker *c, struct attention_data *a, enum attention_mask mask, int64_t length,
                            int64_t query_rank, int64_t key_rank)
{
    const struct attention_shape *s = &a->s;
    int64_t token[1024], begin[1024] = {0};
    a->index = empty(c, s->b * s->tq, DTYPE_I32);
    a->start = empty(c, s->b * s->tq, DTYPE_I32);
    a->key_index = empty(c, s->b * s->tk, DTYPE_I32);
    for (int64_t b = 0; b < s->b; b++) {
        for (int64_t i = 1, left = 20; i < length && mask != HEAD_TAIL; i++, left--) {
            begin[i] = left > 0 ? begin[i - 1] : i;
            left = left > 0 ? left : 1 + (int64_t)(next_random(c) % 40);
        }
        if (mask != HEAD_TAIL)
            begin[length - 1] = length - 1; /* alone: at 65 tokens, of a tile of queries and one of keys */
        choose_tokens(c, token, s->tq, length, mask, query_rank);
        for (int64_t i = 0; i < s->tq; i++) {
            a->index.x[b * s->tq + i] = (double)(b * length + token[i]);
            a->start.x[b * s->tq + i] = (double)(b * length + begin[token[i]]);
        }
        choose_tokens(c, token, s->tk, length, mask, key_rank);
        for (int64_t i = 0; i < s->tk; i++)
            a->key_index.x[b * s->tk + i] = (double)(b * length + token[i]);
    }
    upload(c, &a->index), upload(c, &a->start), upload(c, &a->key_index);
    a->s.index = a->index.p, a->s.start = a->start.p, a->s.key_index = a->key_index.p;
    a->ref.index = a->index.x, a->ref.start = a->start.x, a->ref.key_index = a->key_index.x;
}

static struct attention_data attention_data(struct checker *c, const struct attention_shape *s, int64_t pad,
                                            double sharpness)
{
    struct attention_data a = {.s = *s, .pad = pad};
    int64_t nq = s->b * s->tq, nk = s->b * s->tk;
    a.ref = (struct attention_ref){
        s->b, s->tq, s->tk, s->h, s->kv, s->d, s->dv, NULL, NULL, NULL, (double)s->scale, (double)s->softcap};
    a.wq = s->h * s->d, a.wk = s->kv * s->d, a.wv = s->kv * s->dv, a.wo = s->h * s->dv;
    a.q = noise(c, nq * (a.wq + pad), s->dt, sharpness);
    a.k = noise(c, nk * (a.wk + 2 * pad), s->dt, sharpness);
    a.v = noise(c, nk * (a.wv + 3 * pad), s->dt, sharpness);
    a.out = noise(c, nq * (a.wo + pad), s->dt, 1.0);
    a.dout = noise(c, nq * (a.wo + 2 * pad), s->dt, 1.0);
    a.lse = noise(c, s->h * nq, DTYPE_F32, 1.0);
    a.dense_q = unpack(c, a.q.x, nq, a.wq + pad, 0, a.wq);
    a.dense_k = unpack(c, a.k.x, nk, a.wk + 2 * pad, 0, a.wk);
    a.dense_v = unpack(c, a.v.x, nk, a.wv + 3 * pad, 0, a.wv);
    return a;
}

/* What lies between rows stays. */
static bool gaps_kept(struct checker *c, const double *got, const struct tensor *before, int64_t n, int64_t width,
                      int64_t pad)
{
    bool ok = true;
    for (int64_t i = 0; i < n && pad && ok; i++)
        ok = same(c, got + i * (width + pad) + width, before->x + i * (width + pad) + width, pad, "between rows");
    return ok;
}

/* lse against the reference; rows that see nothing must say -inf, and are 0 in both afterwards. */
static bool lse_near(struct checker *c, double *got, double *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (want[i] == -INFINITY && got[i] == -INFINITY)
            got[i] = want[i] = 0.0;
    return near(c, got, want, n, limit_of(DTYPE_F32), "lse"); /* fp32, from products of dt */
}

static void attention_forward(struct checker *c, struct attention_data *a, const char *name)
{
    const struct attention_shape *s = &a->s;
    int64_t n = s->b * s->tq, pad = a->pad;
    double *want = values(c, n * a->wo), *wlse = values(c, s->h * n);
    ref_attention(want, wlse, a->dense_q, a->dense_k, a->dense_v, &a->ref);
    need(c,
         c->ops->attention(c->s, ARGS(attention, .out = a->out.p, .ldo = a->wo + pad, .lse = a->lse.p, .q = a->q.p,
                                      .ldq = a->wq + pad, .k = a->k.p, .ldk = a->wk + 2 * pad, .v = a->v.p,
                                      .ldv = a->wv + 3 * pad, .shape = *s)),
         "attention");
    double *got = download(c, &a->out), *glse = download(c, &a->lse);
    bool ok = gaps_kept(c, got, &a->out, n, a->wo, pad);
    ok = near(c, unpack(c, got, n, a->wo + pad, 0, a->wo), want, n * a->wo, limit_of(s->dt), "out") && ok;
    ok = lse_near(c, glse, wlse, s->h * n) && ok;
    result(c, ok, "attention %s", name);
}

/* Scratch of a backward pass, full of NaN: nothing in it may matter. */
static void *attention_work(struct checker *c, const struct attention_shape *s)
{
    size_t bytes = c->ops->attention_work_bytes(c->h->dev, s);
    void *work = device_memory(c, bytes), *host = malloc(bytes + 1);
    if (!host)
        abort();
    memset(host, 0xff, bytes);
    transfer(c, work, host, bytes, true);
    free(host);
    return work;
}

static const char *const order_names[] = {
    [ATTENTION_FIXED] = "", [ATTENTION_REPEATABLE] = ", repeatable", [ATTENTION_ANY] = ", in any order"};

/* dq, dk and dv twice, which must be the same to the bit unless any order will do, against the reference's. */
static void attention_backward(struct checker *c, struct attention_data *a, const char *name)
{
    const struct attention_shape *s = &a->s;
    int64_t nq = s->b * s->tq, nk = s->b * s->tk, pad = a->pad;
    double *got[2][3], *out = unpack(c, download(c, &a->out), nq, a->wo + pad, 0, a->wo);
    double *wq = values(c, nq * a->wq), *wk = values(c, nk * a->wk), *wv = values(c, nk * a->wv);
    ref_attention_grad(wq, wk, wv, unpack(c, a->dout.x, nq, a->wo + 2 * pad, 0, a->wo), out, download(c, &a->lse),
                       a->dense_q, a->dense_k, a->dense_v, &a->ref);
    void *work = attention_work(c, s);
    bool ok = true;
    for (int i = 0; i < 2; i++) {
        struct tensor dq = noise(c, nq * (a->wq + 2 * pad), s->dt, 1.0), dk = noise(c, nk * (a->wk + pad), s->dt, 1.0);
        struct tensor dv = noise(c, nk * (a->wv + pad), s->dt, 1.0);
        need(c,
             c->ops->attention_dgrad(
                 c->s, ARGS(attention, .dq = dq.p, .lddq = a->wq + 2 * pad, .dk = dk.p, .lddk = a->wk + pad, .dv = dv.p,
                            .lddv = a->wv + pad, .dout = a->dout.p, .lddo = a->wo + 2 * pad, .out = a->out.p,
                            .ldo = a->wo + pad, .lse = a->lse.p, .q = a->q.p, .ldq = a->wq + pad, .k = a->k.p,
                            .ldk = a->wk + 2 * pad, .v = a->v.p, .ldv = a->wv + 3 * pad, .shape = *s, .work = work)),
             "attention_dgrad");
        double *all[3] = {download(c, &dq), download(c, &dk), download(c, &dv)};
        ok = gaps_kept(c, all[0], &dq, nq, a->wq, 2 * pad) && gaps_kept(c, all[1], &dk, nk, a->wk, pad) &&
             gaps_kept(c, all[2], &dv, nk, a->wv, pad) && ok;
        got[i][0] = unpack(c, all[0], nq, a->wq + 2 * pad, 0, a->wq);
        got[i][1] = unpack(c, all[1], nk, a->wk + pad, 0, a->wk);
        got[i][2] = unpack(c, all[2], nk, a->wv + pad, 0, a->wv);
    }
    ok = near(c, got[0][0], wq, nq * a->wq, 5.0 * limit_of(s->dt), "dq") && ok;
    ok = near(c, got[0][1], wk, nk * a->wk, 5.0 * limit_of(s->dt), "dk") && ok;
    ok = near(c, got[0][2], wv, nk * a->wv, 5.0 * limit_of(s->dt), "dv") && ok;
    if (s->order != ATTENTION_ANY) {
        ok = same(c, got[1][0], got[0][0], nq * a->wq, "repeated dq") && ok;
        ok = same(c, got[1][1], got[0][1], nk * a->wk, "repeated dk") && ok;
        ok = same(c, got[1][2], got[0][2], nk * a->wv, "repeated dv") && ok;
    }
    result(c, ok, "attention_dgrad %s", name);
}

static void attention_case(struct checker *c, struct attention_shape s, int64_t pad, double sharpness,
                           enum attention_mask mask, int64_t length)
{
    char name[128];
    struct attention_data a = attention_data(c, &s, pad, sharpness);
    if (mask != CAUSAL)
        attention_masks(c, &a, mask, length, 0, 1);
    snprintf(name, sizeof(name), "%s B%lld Tq%lld Tk%lld H%lld K%lld D%lld Dv%lld ld+%lld %s%s", name_of(s.dt),
             (long long)s.b, (long long)s.tq, (long long)s.tk, (long long)s.h, (long long)s.kv, (long long)s.d,
             (long long)s.dv, (long long)pad, mask_names[mask], order_names[s.order]);
    if (s.softcap > 0)
        strcat(name, ", capped");
    attention_forward(c, &a, name);
    attention_backward(c, &a, name);
    sweep(c);
}

/* q, k and v as columns of one product, as a model may have them; so are the gradients. */
static void check_attention_packed(struct checker *c, enum dtype dt)
{
    const struct attention_shape s = {.dt = dt, .b = 2, .tq = 100, .tk = 100, .h = 8, .kv = 4, .d = 32, .dv = 32};
    int64_t n = 200, wq = 256, wk = 128, ld = wq + 2 * wk;
    struct tensor qkv = noise(c, n * ld, dt, 2.0), out[2], lse = empty(c, s.h * n, DTYPE_F32), grad[2];
    struct tensor dout = noise(c, n * wq, dt, 1.0);
    void *work = attention_work(c, &s);
    for (int i = 0; i < 2; i++) { /* the second time with q, k and v copied apart */
        struct tensor q = qkv, k = qkv, v = qkv;
        int64_t lq = i ? wq : ld, lk = i ? wk : ld;
        int64_t at[3] = {0, i ? n * wq : wq, i ? n * (wq + wk) : wq + wk};
        if (i) {
            q = empty(c, n * ld, dt);
            memcpy(q.x, unpack(c, qkv.x, n, ld, 0, wq), (size_t)(n * wq) * 8);
            memcpy(q.x + at[1], unpack(c, qkv.x, n, ld, wq, wk), (size_t)(n * wk) * 8);
            memcpy(q.x + at[2], unpack(c, qkv.x, n, ld, wq + wk, wk), (size_t)(n * wk) * 8);
            upload(c, &q);
            k = v = q;
        }
        out[i] = empty(c, n * wq, dt), grad[i] = empty(c, n * ld, dt);
        need(c,
             c->ops->attention(c->s, ARGS(attention, .out = out[i].p, .ldo = wq, .lse = lse.p, .q = q.p, .ldq = lq,
                                          .k = offset_of(&k, at[1]), .ldk = lk, .v = offset_of(&v, at[2]), .ldv = lk,
                                          .shape = s)),
             "attention");
        need(c,
             c->ops->attention_dgrad(c->s, ARGS(attention, .dq = grad[i].p, .lddq = ld, .dk = offset_of(&grad[i], wq),
                                                .lddk = ld, .dv = offset_of(&grad[i], wq + wk), .lddv = ld,
                                                .dout = dout.p, .lddo = wq, .out = out[i].p, .ldo = wq, .lse = lse.p,
                                                .q = q.p, .ldq = lq, .k = offset_of(&k, at[1]), .ldk = lk,
                                                .v = offset_of(&v, at[2]), .ldv = lk, .shape = s, .work = work)),
             "attention_dgrad");
    }
    bool ok = same(c, download(c, &out[1]), download(c, &out[0]), n * wq, "out");
    ok = same(c, download(c, &grad[1]), download(c, &grad[0]), n * ld, "gradients") && ok;
    result(c, ok, "attention %s of q, k and v in one buffer and apart: the same bits", name_of(dt));
    sweep(c);
}

/* The keys in parts, as they come round a ring: partial results merge to the whole row's, partial gradients add up. */
static void ring_case(struct checker *c, struct attention_shape s, int parts, enum attention_mask mask, int64_t length)
{
    struct attention_data a = attention_data(c, &s, 0, 2.0);
    attention_masks(c, &a, mask, length, 0, 0);
    int64_t n = s.tq, nq = n * a.wq, no = n * a.wo;
    double *want = values(c, no), *wlse = values(c, s.h * n), *wq = values(c, nq), *sum = values(c, nq);
    double *wk = values(c, s.tk * a.wk), *wv = values(c, s.tk * a.wv);
    struct tensor part = empty(c, no, s.dt), part_lse = empty(c, s.h * n, DTYPE_F32), dq = empty(c, nq, s.dt);
    struct tensor dk = empty(c, s.tk * a.wk, s.dt), dv = empty(c, s.tk * a.wv, s.dt);
    void *work = attention_work(c, &s);
    ref_attention(want, wlse, a.dense_q, a.dense_k, a.dense_v, &a.ref);
    for (int p = 0; p < 2 * parts; p++) { /* forward round, backward round */
        int64_t i = p % parts, from = s.tk * i / parts, to = s.tk * (i + 1) / parts;
        struct attention_shape some = s;
        some.tk = to - from, some.index = a.index.p, some.start = a.start.p;
        some.key_index = offset_of(&a.key_index, from);
        void *k = offset_of(&a.k, from * a.wk), *v = offset_of(&a.v, from * a.wv);
        if (p < parts) {
            need(c,
                 c->ops->attention(c->s, ARGS(attention, .out = p ? part.p : a.out.p, .ldo = a.wo,
                                              .lse = p ? part_lse.p : a.lse.p, .q = a.q.p, .ldq = a.wq, .k = k,
                                              .ldk = a.wk, .v = v, .ldv = a.wv, .shape = some)),
                 "attention");
            if (p)
                need(c,
                     c->ops->attention_merge(c->s, ARGS(merge, .out = a.out.p, .lse = a.lse.p, .other = part.p,
                                                        .other_lse = part_lse.p, .ld = a.wo, .dt = s.dt, .b = 1, .t = n,
                                                        .h = s.h, .dv = s.dv)),
                     "attention_merge");
            continue;
        }
        need(c,
             c->ops->attention_dgrad(c->s, ARGS(attention, .dq = dq.p, .lddq = a.wq, .dk = offset_of(&dk, from * a.wk),
                                                .lddk = a.wk, .dv = offset_of(&dv, from * a.wv), .lddv = a.wv,
                                                .dout = a.dout.p, .lddo = a.wo, .out = a.out.p, .ldo = a.wo,
                                                .lse = a.lse.p, .q = a.q.p, .ldq = a.wq, .k = k, .ldk = a.wk, .v = v,
                                                .ldv = a.wv, .shape = some, .work = work)),
             "attention_dgrad");
        double *got = download(c, &dq);
        for (int64_t j = 0; j < nq; j++)
            sum[j] += got[j];
    }
    double *out = download(c, &a.out), *lse = download(c, &a.lse), limit = 5.0 * limit_of(s.dt);
    ref_attention_grad(wq, wk, wv, a.dout.x, out, lse, a.dense_q, a.dense_k, a.dense_v, &a.ref);
    bool ok = near(c, out, want, no, limit, "out") && lse_near(c, lse, wlse, s.h * n);
    ok = near(c, sum, wq, nq, limit, "dq") && near(c, download(c, &dk), wk, s.tk * a.wk, limit, "dk") &&
         near(c, download(c, &dv), wv, s.tk * a.wv, limit, "dv") && ok;
    result(c, ok, "attention %s Tq%lld Tk%lld D%lld Dv%lld in %d parts, %s", name_of(s.dt), (long long)s.tq,
           (long long)s.tk, (long long)s.d, (long long)s.dv, parts, mask_names[mask]);
    sweep(c);
}

/* Rows of `width` gathered from (or, put back, added to) their places in another order. */
static void reorder(double *dst, const double *src, const int64_t *token, int64_t n, int64_t width, bool back)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) {
            if (back)
                dst[token[i] * width + j] += src[i * width + j];
            else
                dst[i * width + j] = src[token[i] * width + j];
        }
}

/* Several sequences: rows go by sequence, their log-sum-exps by sequence and head. What saw nothing has -inf. */
static void merge_case(struct checker *c, enum dtype dt, int64_t b, int64_t t, int64_t h, int64_t dv)
{
    const int64_t n = b * t, ld = h * dv + 8;
    struct tensor out = noise(c, n * ld, dt, 1.0), other = noise(c, n * ld, dt, 1.0);
    struct tensor lse = noise(c, b * h * t, DTYPE_F32, 2.0), other_lse = noise(c, b * h * t, DTYPE_F32, 2.0);
    other_lse.x[1] = lse.x[t * h - 1] = -INFINITY;
    upload(c, &lse), upload(c, &other_lse);
    double *want = values(c, n * ld), *want_lse = values(c, b * h * t);
    memcpy(want, out.x, (size_t)(n * ld) * sizeof *want);
    for (int64_t row = 0; row < n; row++)
        for (int64_t head = 0; head < h; head++) {
            const int64_t at = (row / t * h + head) * t + row % t;
            const double top = fmax(lse.x[at], other_lse.x[at]), mine = exp(lse.x[at] - top);
            const double theirs = exp(other_lse.x[at] - top), sum = mine + theirs;
            want_lse[at] = top + log(sum);
            for (int64_t i = row * ld + head * dv; i < row * ld + (head + 1) * dv; i++)
                want[i] = out.x[i] * (mine / sum) + other.x[i] * (theirs / sum);
        }
    need(c,
         c->ops->attention_merge(c->s,
                                 ARGS(merge, .out = out.p, .lse = lse.p, .other = other.p, .other_lse = other_lse.p,
                                      .ld = ld, .dt = dt, .b = b, .t = t, .h = h, .dv = dv)),
         "attention_merge");
    bool ok = near(c, download(c, &out), want, n * ld, limit_of(dt), "out");
    ok = near(c, download(c, &lse), want_lse, b * h * t, limit_of(DTYPE_F32), "lse") && ok;
    result(c, ok, "attention_merge %s B%lld T%lld H%lld Dv%lld", name_of(dt), (long long)b, (long long)t, (long long)h,
           (long long)dv);
    sweep(c);
}

/* A key of its own logit and a value of 0 beside all keys. Of a row that saw nothing the sink takes all. */
static void sink_case(struct checker *c, enum dtype dt, int64_t b, int64_t t, int64_t h, int64_t dv)
{
    const int64_t n = b * t, ld = h * dv + 8, lddo = h * dv + 16;
    struct tensor x = noise(c, n * ld, dt, 1.0), out = noise(c, n * ld, dt, 1.0), dout = noise(c, n * lddo, dt, 1.0);
    struct tensor x_lse = noise(c, b * h * t, DTYPE_F32, 2.0), lse = empty(c, b * h * t, DTYPE_F32);
    struct tensor sinks = noise(c, h, dt, 3.0), dsinks = noise(c, h, DTYPE_F32, 1.0);
    double *want = values(c, n * ld), *want_lse = values(c, b * h * t), *sums = values(c, h);
    x_lse.x[1] = -INFINITY;
    for (int64_t i = 0; i < h * dv; i++)
        x.x[(1 % t) * ld + i] = 0;
    upload(c, &x_lse), upload(c, &x);
    memcpy(want, out.x, (size_t)(n * ld) * sizeof *want);
    for (int64_t row = 0; row < n; row++)
        for (int64_t head = 0; head < h; head++) {
            const int64_t at = (row / t * h + head) * t + row % t;
            const double keys = exp(x_lse.x[at]), sink = exp(sinks.x[head]);
            want_lse[at] = log(keys + sink);
            for (int64_t i = 0; i < dv; i++) {
                const double y = x.x[row * ld + head * dv + i] * (keys / (keys + sink));
                want[row * ld + head * dv + i] = y;
            }
        }
    need(c,
         c->ops->attention_sink(c->s, ARGS(sink, .out = out.p, .lse = lse.p, .x = x.p, .x_lse = x_lse.p, .ldo = ld,
                                           .sinks = sinks.p, .dt = dt, .b = b, .t = t, .h = h, .dv = dv)),
         "attention_sink");
    const double *got = download(c, &out);
    bool ok = near(c, got, want, n * ld, limit_of(dt), "out");
    for (int64_t row = 0; row < n; row++) /* of what is rounded there */
        for (int64_t head = 0; head < h; head++)
            for (int64_t i = 0; i < dv; i++)
                sums[head] -= exp(sinks.x[head] - want_lse[(row / t * h + head) * t + row % t]) *
                              got[row * ld + head * dv + i] * dout.x[row * lddo + head * dv + i];
    ok = near(c, download(c, &lse), want_lse, b * h * t, limit_of(DTYPE_F32), "lse") && ok;
    need(c,
         c->ops->attention_sink_dgrad(c->s, ARGS(sink, .dsinks = dsinks.p, .dout = dout.p, .lddo = lddo, .x = out.p,
                                                 .ldo = ld, .x_lse = lse.p, .sinks = sinks.p, .dt = dt, .b = b, .t = t,
                                                 .h = h, .dv = dv)),
         "attention_sink_dgrad");
    ok = near(c, download(c, &dsinks), sums, h, limit_of(DTYPE_F32), "dsinks") && ok;
    result(c, ok, "attention_sink %s B%lld T%lld H%lld Dv%lld, and its gradient", name_of(dt), (long long)b,
           (long long)t, (long long)h, (long long)dv);
    sweep(c);
}

/* Each rank's head and tail rows against the keys of all ranks, which lie in the order of ranks. */
struct head_tail {
    struct attention_data a;       /* in the order of tokens */
    double *out, *dq, *dk, *dv;    /* of all ranks, in the order of tokens */
    struct tensor k, v, key_index; /* in the order of ranks */
    int64_t token[1024], own;      /* token: of each key */
};

static void head_tail_rank(struct checker *c, struct head_tail *t, int64_t rank)
{
    struct attention_data *a = &t->a;
    struct attention_shape s = a->s;
    const int64_t own = t->own, n = s.tk, *token = t->token + rank * own;
    struct tensor q = empty(c, own * a->wq, s.dt), dout = empty(c, own * a->wo, s.dt),
                  out = empty(c, own * a->wo, s.dt);
    struct tensor lse = empty(c, s.h * own, DTYPE_F32), index = empty(c, own, DTYPE_I32), dq = empty(c, q.n, s.dt);
    struct tensor start = empty(c, own, DTYPE_I32), dk = empty(c, n * a->wk, s.dt), dv = empty(c, n * a->wv, s.dt);
    for (int64_t i = 0; i < own; i++)
        index.x[i] = (double)token[i];
    reorder(q.x, a->dense_q, token, own, a->wq, false);
    reorder(dout.x, a->dout.x, token, own, a->wo, false);
    upload(c, &index), upload(c, &q), upload(c, &dout);
    s.tq = own, s.index = index.p, s.start = start.p, s.key_index = t->key_index.p;
    void *work = attention_work(c, &s);
    need(c,
         c->ops->attention(c->s, ARGS(attention, .out = out.p, .ldo = a->wo, .lse = lse.p, .q = q.p, .ldq = a->wq,
                                      .k = t->k.p, .ldk = a->wk, .v = t->v.p, .ldv = a->wv, .shape = s)),
         "attention");
    need(c,
         c->ops->attention_dgrad(c->s, ARGS(attention, .dq = dq.p, .lddq = a->wq, .dk = dk.p, .lddk = a->wk, .dv = dv.p,
                                            .lddv = a->wv, .dout = dout.p, .lddo = a->wo, .out = out.p, .ldo = a->wo,
                                            .lse = lse.p, .q = q.p, .ldq = a->wq, .k = t->k.p, .ldk = a->wk,
                                            .v = t->v.p, .ldv = a->wv, .shape = s, .work = work)),
         "attention_dgrad");
    reorder(t->out, download(c, &out), token, own, a->wo, true);
    reorder(t->dq, download(c, &dq), token, own, a->wq, true);
    reorder(t->dk, download(c, &dk), t->token, n, a->wk, true);
    reorder(t->dv, download(c, &dv), t->token, n, a->wv, true);
}

/* What all ranks computed, put back in order and added up, is what causal attention gives. */
static void head_tail_case(struct checker *c, enum dtype dt, int64_t ranks, int64_t half)
{
    int64_t n = 2 * half * ranks;
    struct attention_shape s = {.dt = dt, .b = 1, .tq = n, .tk = n, .h = 2, .kv = 1, .d = 16, .dv = 16};
    struct head_tail t = {.a = attention_data(c, &s, 0, 2.0), .own = 2 * half};
    struct attention_data *a = &t.a;
    double *out = values(c, n * a->wo), *lse = values(c, s.h * n), *dq = values(c, n * a->wq);
    double *dk = values(c, n * a->wk), *dv = values(c, n * a->wv);
    t.out = values(c, n * a->wo), t.dq = values(c, n * a->wq), t.dk = values(c, n * a->wk), t.dv = values(c, n * a->wv);
    t.k = empty(c, n * a->wk, dt), t.v = empty(c, n * a->wv, dt), t.key_index = empty(c, n, DTYPE_I32);
    for (int64_t r = 0; r < ranks; r++)
        choose_tokens(c, t.token + r * t.own, t.own, n, HEAD_TAIL, r);
    for (int64_t i = 0; i < n; i++)
        t.key_index.x[i] = (double)t.token[i];
    reorder(t.k.x, a->dense_k, t.token, n, a->wk, false);
    reorder(t.v.x, a->dense_v, t.token, n, a->wv, false);
    upload(c, &t.k), upload(c, &t.v), upload(c, &t.key_index);
    for (int64_t r = 0; r < ranks; r++)
        head_tail_rank(c, &t, r);
    ref_attention(out, lse, a->dense_q, a->dense_k, a->dense_v, &a->ref);
    ref_attention_grad(dq, dk, dv, a->dout.x, t.out, lse, a->dense_q, a->dense_k, a->dense_v, &a->ref);
    bool ok = near(c, t.out, out, n * a->wo, limit_of(dt), "out");
    ok = near(c, t.dq, dq, n * a->wq, 5.0 * limit_of(dt), "dq") && ok;
    ok = near(c, t.dk, dk, n * a->wk, 5.0 * limit_of(dt), "dk") && ok;
    ok = near(c, t.dv, dv, n * a->wv, 5.0 * limit_of(dt), "dv") && ok;
    result(c, ok, "attention %s of %lld ranks' heads and tails of %lld is causal", name_of(dt), (long long)ranks,
           (long long)half);
    sweep(c);
}

static void check_attention_masks(struct checker *c, enum dtype dt)
{
    attention_case(c, (struct attention_shape){dt, 2, 100, 100, 4, 2, 32, 32, 0, 0, 0, 0, ATTENTION_FIXED, 0}, 0, 2.0,
                   DOCUMENTS, 100);
    attention_case(c, (struct attention_shape){dt, 1, 71, 71, 3, 1, 24, 40, 0, 0, 0, 0, ATTENTION_FIXED, 0}, 4, 1.0,
                   DOCUMENTS, 71);
    attention_case(c, (struct attention_shape){dt, 1, 65, 65, 2, 1, 16, 16, 0, 0, 0, 0, ATTENTION_FIXED, 0}, 0, 1.0,
                   DOCUMENTS, 65);
    attention_case(c, (struct attention_shape){dt, 1, 33, 33, 1, 1, 128, 96, 0, 0, 0, 0, ATTENTION_FIXED, 0}, 0, 1.0,
                   DOCUMENTS, 33);
    attention_case(c, (struct attention_shape){dt, 1, 64, 64, 2, 2, 16, 16, 0, 0, 0, 0, ATTENTION_FIXED, 0}, 0, 2.0,
                   HEAD_TAIL, 256);
    attention_case(c, (struct attention_shape){dt, 2, 37, 150, 4, 1, 16, 32, 0, 0, 0, 0, ATTENTION_FIXED, 0}, 2, 1.0,
                   SCATTERED, 170);
    attention_case(c, (struct attention_shape){dt, 1, 130, 33, 2, 2, 48, 16, 0, 0, 0, 0, ATTENTION_FIXED, 0}, 8, 2.0,
                   SCATTERED, 400);
    ring_case(c, (struct attention_shape){dt, 1, 96, 96, 4, 2, 32, 32, 0, 0, 0, 0, ATTENTION_FIXED, 0}, 3, DOCUMENTS,
              96);
    ring_case(c, (struct attention_shape){dt, 1, 50, 131, 2, 1, 16, 24, 0, 0, 0, 0, ATTENTION_FIXED, 0}, 4, SCATTERED,
              150);
    ring_case(c, (struct attention_shape){dt, 1, 64, 64, 4, 4, 16, 16, 0, 0, 0, 0, ATTENTION_FIXED, 0}, 2, HEAD_TAIL,
              64);
    merge_case(c, dt, 3, 5, 4, 24);
    const uint64_t random = c->random; /* what comes behind draws what it always has */
    sink_case(c, dt, 3, 5, 4, 24);
    sink_case(c, dt, 1, 200, 3, 64);
    c->random = random;
    head_tail_case(c, dt, 4, 20);
    head_tail_case(c, dt, 3, 100);
}

/* More rows than a tile of any device has, of the widths that models have: whole tiles that a mask shows, parts of it
 * and what it hides. */
void device_attention_tiles_check(struct checker *c)
{
    static const struct {
        int64_t b, tq, tk, h, kv, d, dv, pad, length;
        enum attention_mask mask;
    } cases[] = {{1, 300, 300, 2, 1, 64, 64, 0, 0, CAUSAL},        {2, 261, 261, 2, 2, 128, 128, 8, 0, CAUSAL},
                 {1, 129, 129, 2, 2, 192, 128, 0, 0, CAUSAL},      {1, 300, 300, 4, 1, 64, 64, 8, 300, DOCUMENTS},
                 {1, 270, 270, 2, 1, 128, 128, 0, 270, DOCUMENTS}, {1, 140, 140, 1, 1, 192, 128, 8, 140, DOCUMENTS},
                 {1, 256, 256, 2, 2, 64, 64, 0, 1024, HEAD_TAIL},  {2, 200, 330, 2, 1, 128, 128, 0, 400, SCATTERED},
                 {1, 200, 200, 2, 2, 72, 40, 8, 200, DOCUMENTS}};
    const enum attention_order orders[] = {ATTENTION_FIXED, ATTENTION_ANY};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        const int64_t n = (int64_t)i / 2;
        attention_case(c,
                       (struct attention_shape){DTYPE_BF16, cases[n].b, cases[n].tq, cases[n].tk, cases[n].h,
                                                cases[n].kv, cases[n].d, cases[n].dv, 0, 0, 0, 0, orders[i % 2], 0},
                       cases[n].pad, 1.5, cases[n].mask, cases[n].length);
    }
    ring_case(c, (struct attention_shape){DTYPE_BF16, 1, 256, 384, 2, 1, 64, 64, 0, 0, 0, 0, ATTENTION_FIXED, 0}, 3,
              DOCUMENTS, 384);
}

void device_attention_check(struct checker *c)
{
    static const int64_t shapes[][6] = {/* B, T, H, K, D, Dv */
                                        {1, 1, 1, 1, 16, 16},   {2, 5, 4, 2, 16, 16},  {1, 33, 3, 1, 32, 32},
                                        {2, 100, 8, 4, 32, 32}, {1, 64, 2, 2, 64, 64}, {1, 130, 4, 1, 128, 128},
                                        {3, 71, 2, 1, 64, 64},  {2, 45, 4, 4, 48, 32}, {1, 66, 2, 1, 16, 40}};
    for (int i = 0; i < 2; i++) {
        rope_case(c, both[i], 23, 3, 16, 0, false);
        rope_case(c, both[i], 23, 2, 32, 16, true);
        rope_case(c, both[i], 7, 4, 128, 64, false);
        for (size_t j = 0; j < sizeof(shapes) / sizeof(shapes[0]); j++) {
            const int64_t *z = shapes[j];
            attention_case(c,
                           (struct attention_shape){both[i], z[0], z[1], z[1], z[2], z[3], z[4], z[5], 0, 0, 0, 0,
                                                    ATTENTION_FIXED, 0},
                           j % 3 ? 0 : 8, j % 2 ? 3.0 : 1.0, CAUSAL, 0);
        }
        /* Of latent attention: heads of odd width, a scale of their own. */
        attention_case(c, (struct attention_shape){both[i], 2, 45, 45, 3, 3, 21, 13, 0, 0, 0, 0.4f, ATTENTION_FIXED, 0},
                       0, 1.0, CAUSAL, 0);
        attention_case(c, (struct attention_shape){both[i], 1, 70, 70, 2, 2, 24, 16, 0, 0, 0, 0.3f, ATTENTION_FIXED, 0},
                       5, 1.0, CAUSAL, 0);
        attention_case(c, (struct attention_shape){both[i], 1, 40, 40, 2, 1, 9, 11, 0, 0, 0, 0, ATTENTION_FIXED, 0}, 1,
                       1.0, DOCUMENTS, 40);
        const uint64_t random = c->random; /* what comes behind draws what it always has */
        attention_case(c, (struct attention_shape){both[i], 2, 70, 70, 4, 2, 64, 64, 0, 0, 0, 0, ATTENTION_ANY, 2.0f},
                       0, 2.0, CAUSAL, 0);
        attention_case(c,
                       (struct attention_shape){both[i], 1, 71, 71, 3, 1, 24, 40, 0, 0, 0, 0.4f, ATTENTION_FIXED, 1.5f},
                       4, 2.0, DOCUMENTS, 71);
        c->random = random;
        check_attention_packed(c, both[i]);
        check_attention_masks(c, both[i]);
    }
    struct tensor x = empty(c, 4096, DTYPE_F32);
    struct attention_shape s = {DTYPE_F32, 1, 4, 4, 3, 2, 16, 16, NULL, NULL, NULL, 0, ATTENTION_FIXED, 0};
    bool ok = c->ops->attention(c->s, ARGS(attention, .out = x.p, .ldo = 48, .lse = x.p, .q = x.p, .ldq = 48, .k = x.p,
                                           .ldk = 32, .v = x.p, .ldv = 32, .shape = s)) == TITAN_EINVAL;
    result(c, ok, "attention refuses query heads that key heads do not divide");
    s = (struct attention_shape){DTYPE_F32, 1, 4, 5, 2, 2, 16, 16, NULL, NULL, NULL, 0, ATTENTION_FIXED, 0};
    ok = c->ops->attention(c->s, ARGS(attention, .out = x.p, .ldo = 48, .lse = x.p, .q = x.p, .ldq = 48, .k = x.p,
                                      .ldk = 32, .v = x.p, .ldv = 32, .shape = s)) == TITAN_EINVAL;
    s.tk = 4, s.index = x.p;
    ok = ok && c->ops->attention(c->s, ARGS(attention, .out = x.p, .ldo = 48, .lse = x.p, .q = x.p, .ldq = 48, .k = x.p,
                                            .ldk = 32, .v = x.p, .ldv = 32, .shape = s)) == TITAN_EINVAL;
    result(c, ok, "attention refuses lengths that differ without masks, and half a mask");
    sweep(c);
}

/* What a device may leave to a library with sums in an order of its own or none, and what that has to leave to it. */
void device_attention_orders_check(struct checker *c)
{
    const int64_t shapes[][6] = {
        {2, 70, 4, 2, 64, 64}, {1, 48, 4, 1, 128, 128}, {3, 33, 4, 1, 64, 64}, {1, 40, 2, 2, 24, 16}};
    const enum attention_order orders[] = {ATTENTION_ANY, ATTENTION_REPEATABLE};
    for (int i = 0; i < 2; i++) {
        const enum attention_order o = orders[i];
        for (int j = 0; j < 4; j++) {
            const int64_t *z = shapes[j];
            attention_case(
                c, (struct attention_shape){DTYPE_BF16, z[0], z[1], z[1], z[2], z[3], z[4], z[5], 0, 0, 0, 0, o, 0},
                j % 2 ? 8 : 0, j % 2 ? 3.0 : 1.0, CAUSAL, 0);
        }
        attention_case(c, (struct attention_shape){DTYPE_BF16, 1, 40, 40, 2, 2, 16, 16, 0, 0, 0, 0.3f, o, 0}, 16, 1.0,
                       CAUSAL, 0);
        attention_case(c, (struct attention_shape){DTYPE_BF16, 1, 40, 40, 2, 1, 12, 20, 0, 0, 0, 0, o, 0}, 1, 1.0,
                       CAUSAL, 0);
        attention_case(c, (struct attention_shape){DTYPE_F32, 1, 40, 40, 2, 1, 16, 16, 0, 0, 0, 0, o, 0}, 0, 1.0,
                       CAUSAL, 0);
        attention_case(c, (struct attention_shape){DTYPE_BF16, 1, 40, 40, 2, 1, 16, 16, 0, 0, 0, 0, o, 0}, 0, 1.0,
                       DOCUMENTS, 40);
    }
}
