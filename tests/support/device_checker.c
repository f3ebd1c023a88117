/* SPDX-License-Identifier: Apache-2.0 */
/* device_checker.c - see device_checker.h. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "support/device_checker.h"

void result(struct checker *c, bool ok, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    ok = ok && !c->broken;
    c->count++;
    c->failed += !ok;
    fprintf(c->report, "%sok %d - %s%s\n", ok ? "" : "not ", c->count, text, c->broken ? " (could not run)" : "");
    c->broken = false;
}

void need(struct checker *c, titan_status status, const char *what)
{
    if (status != TITAN_OK) {
        fprintf(c->report, "# %s: %s\n", what, titan_status_name(status));
        c->broken = true;
    }
}

void sync_stream(struct checker *c)
{
    struct titan_error err = {0};
    if (c->ops->stream_sync(c->s, &err) != TITAN_OK) {
        fprintf(c->report, "# stream failed: %s\n", err.msg);
        c->broken = true;
        c->ops->stream_clear(c->s);
    }
}

void sweep(struct checker *c)
{
    for (int i = 0; i < c->tracked_count; i++)
        c->ops->release(c->h->dev, c->tracked[i]);
    for (int i = 0; i < c->values_count; i++)
        free(c->values[i]);
    c->tracked_count = c->values_count = 0;
}

uint64_t next_random(struct checker *c)
{
    return hash_draw(&c->random);
}
double uniform(struct checker *c, double low, double high)
{
    return low + (high - low) * (double)(next_random(c) >> 11) * 0x1p-53;
}

uint16_t to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if (isnan(x))
        return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
float from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}
void put(void *p, int64_t i, enum dtype dt, double x)
{
    if (dt == DTYPE_F64)
        ((double *)p)[i] = x;
    else if (dt == DTYPE_BF16)
        ((uint16_t *)p)[i] = to_bf16((float)x);
    else if (dt == DTYPE_I32)
        ((int32_t *)p)[i] = (int32_t)x;
    else if (dt == DTYPE_U8)
        ((uint8_t *)p)[i] = (uint8_t)x;
    else
        ((float *)p)[i] = (float)x;
}
double get(const void *p, int64_t i, enum dtype dt)
{
    if (dt == DTYPE_F64)
        return ((const double *)p)[i];
    if (dt == DTYPE_BF16)
        return from_bf16(((const uint16_t *)p)[i]);
    if (dt == DTYPE_I32)
        return ((const int32_t *)p)[i];
    if (dt == DTYPE_U8)
        return ((const uint8_t *)p)[i];
    return ((const float *)p)[i];
}

double *values(struct checker *c, int64_t n)
{
    double *x = calloc((size_t)(n > 0 ? n : 1), sizeof(*x));
    if (!x || c->values_count == TRACKED_MAX) {
        fprintf(c->report, "Bail out! out of memory\n");
        abort();
    }
    return c->values[c->values_count++] = x;
}

void *device_memory(struct checker *c, size_t bytes)
{
    void *p = NULL;
    struct titan_error err = {0};
    if (c->tracked_count == TRACKED_MAX || c->ops->alloc(c->h->dev, bytes, &p, &err) != TITAN_OK) {
        fprintf(c->report, "Bail out! device memory: %s\n", err.msg);
        abort();
    }
    return c->tracked[c->tracked_count++] = p;
}

void transfer(struct checker *c, void *dst, const void *src, size_t bytes, bool to_device)
{
    void *staging = NULL;
    need(c, c->ops->alloc_host(c->h->dev, bytes, &staging, NULL), "alloc_host");
    if (!staging)
        return;
    if (to_device)
        memcpy(staging, src, bytes);
    need(c, c->ops->copy(c->s, to_device ? dst : staging, to_device ? staging : src, bytes), "copy");
    sync_stream(c);
    if (!to_device)
        memcpy(dst, staging, bytes);
    c->ops->release_host(c->h->dev, staging);
}

void upload(struct checker *c, struct tensor *t)
{
    void *host = malloc((size_t)t->n * 8 + 8);
    if (!host)
        abort();
    for (int64_t i = 0; i < t->n; i++) {
        put(host, i, t->dt, t->x[i]);
        t->x[i] = get(host, i, t->dt);
    }
    transfer(c, t->p, host, (size_t)t->n * dtype_bytes(t->dt), true);
    free(host);
}
double *download(struct checker *c, const struct tensor *t)
{
    double *x = values(c, t->n);
    void *host = malloc((size_t)t->n * 8 + 8);
    if (!host)
        abort();
    transfer(c, host, t->p, (size_t)t->n * dtype_bytes(t->dt), false);
    for (int64_t i = 0; i < t->n; i++)
        x[i] = get(host, i, t->dt);
    free(host);
    return x;
}

struct tensor empty(struct checker *c, int64_t n, enum dtype dt)
{
    return (struct tensor){.p = device_memory(c, (size_t)n * dtype_bytes(dt)), .x = values(c, n), .n = n, .dt = dt};
}
struct tensor noise(struct checker *c, int64_t n, enum dtype dt, double scale)
{
    struct tensor t = empty(c, n, dt);
    for (int64_t i = 0; i < n; i++)
        t.x[i] = uniform(c, -scale, scale);
    upload(c, &t);
    return t;
}
struct tensor integers(struct checker *c, int64_t n, int64_t low, int64_t high)
{
    struct tensor t = empty(c, n, DTYPE_I32);
    for (int64_t i = 0; i < n; i++)
        t.x[i] = (double)(low + (int64_t)(next_random(c) % (uint64_t)(high - low)));
    upload(c, &t);
    return t;
}

double limit_of(enum dtype dt)
{
    return dt == DTYPE_BF16 ? 2e-5 : 1e-11;
}

bool near(struct checker *c, const double *got, const double *want, int64_t n, double limit, const char *what)
{
    double err = 0.0, power = 0.0, worst = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(got[i] - want[i]);
        if (isnan(d)) {
            fprintf(c->report, "# %s: element %lld is %g, expected %g\n", what, (long long)i, got[i], want[i]);
            return false;
        }
        err += d * d;
        power += want[i] * want[i];
        worst = fmax(worst, d);
    }
    /* Where all terms cancel in exact arithmetic, rounding is measured against the inputs, which are about 1. */
    if (power == 0.0)
        power = (double)n;
    double nmse = n > 0 ? err / power : 0.0;
    double rms = sqrt(power / (double)(n > 0 ? n : 1));
    bool ok = nmse <= limit && worst <= 30.0 * sqrt(limit) * rms;
    if (!ok)
        fprintf(c->report, "# %s: nmse %.3g (limit %.3g), worst %.3g at rms %.3g\n", what, nmse, limit, worst, rms);
    return ok;
}
bool same(struct checker *c, const double *got, const double *want, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&got[i], &want[i], 8) != 0 && !(isnan(got[i]) && isnan(want[i]))) {
            fprintf(c->report, "# %s: element %lld is %.17g, expected %.17g\n", what, (long long)i, got[i], want[i]);
            return false;
        }
    }
    return true;
}
const char *name_of(enum dtype dt)
{
    return dt == DTYPE_BF16 ? "bf16" : "fp32";
}

double *unpack(struct checker *c, const double *x, int64_t n, int64_t ld, int64_t offset, int64_t width)
{
    double *out = values(c, n * width);
    for (int64_t i = 0; i < n; i++)
        memcpy(out + i * width, x + i * ld + offset, (size_t)width * sizeof(double));
    return out;
}
void *offset_of(const struct tensor *t, int64_t i)
{
    return (char *)t->p + (size_t)i * dtype_bytes(t->dt);
}

double dot_of(const double *a, const double *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}
void fill(struct checker *c, double *x, int64_t n, double scale)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = uniform(c, -scale, scale);
}

bool differences(struct checker *c, double *x, const double *grad, int64_t n, double (*f)(const void *arg),
                 const void *arg)
{
    const double h = 1e-5;
    for (int64_t i = 0; i < n; i++) {
        double keep = x[i];
        x[i] = keep + h;
        double up = f(arg);
        x[i] = keep - h;
        double down = f(arg);
        x[i] = keep;
        double want = (up - down) / (2.0 * h);
        if (fabs(grad[i] - want) > 1e-8 * (1.0 + fabs(want))) {
            fprintf(c->report, "# element %lld: %.12g, by differences %.12g\n", (long long)i, grad[i], want);
            return false;
        }
    }
    return true;
}
