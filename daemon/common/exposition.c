/* SPDX-License-Identifier: Apache-2.0 */
/* exposition.c - see exposition.h. Formats: Prometheus' "Exposition formats", and the OpenMetrics 1.0 specification. */
#include "daemon/common/exposition.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/utf8.h"

enum { LABELS_MAX = 4 };
#define TOTAL "_total"

enum type { GAUGE, COUNTER, HISTOGRAM };
static const char *const type_names[] = {[GAUGE] = "gauge", [COUNTER] = "counter", [HISTOGRAM] = "histogram"};

static const struct row {
    const char *name, *labels, *help;
    enum type type;
} rows[METRICS] = {
#define METRIC(name, type, labels, who, help) [METRIC_##name] = {#name, labels, help, type},
#include "daemon/common/metric_table.def"
#undef METRIC
};

enum exposition_format exposition_format(const char *accept)
{
    return accept && strstr(accept, "application/openmetrics-text") ? EXPOSITION_OPENMETRICS : EXPOSITION_TEXT;
}

const char *exposition_type(enum exposition_format format)
{
    return format == EXPOSITION_OPENMETRICS ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                            : "text/plain; version=0.0.4; charset=utf-8";
}

/* Length of the family's name: OpenMetrics leaves the end of a counter's name to the samples. */
static size_t family_len(const struct exposition *e, const struct row *r)
{
    const size_t len = strlen(r->name);
    return r->type == COUNTER && e->format == EXPOSITION_OPENMETRICS ? len - strlen(TOTAL) : len;
}

static void head(struct exposition *e, enum metric_name m)
{
    const struct row *r = &rows[m];
    const int len = (int)family_len(e, r);
    if (e->begun && e->now == m)
        return;
    titan_assert(!e->said[m]);
    e->said[m] = e->begun = true;
    e->now = m;
    buf_printf(e->out, "# HELP %.*s %s\n# TYPE %.*s %s\n", len, r->name, r->help, len, r->name, type_names[r->type]);
}

/* A byte that is no UTF-8 becomes '?': a scraper would refuse the whole page for it. */
static void put_label_value(struct buf *out, const char *value)
{
    for (size_t n; *value; value += n) {
        const size_t plain = strcspn(value, "\\\"\n");
        n = utf8_check(value, plain);
        buf_put(out, value, n);
        if (!value[n])
            continue;
        buf_puts(out, n < plain ? "?" : value[n] == '\n' ? "\\n" : value[n] == '"' ? "\\\"" : "\\\\");
        n++;
    }
}

/* Puts "{a="1",b="2"". Returns whether something was put. The number of values is the table's. */
static bool put_labels(struct exposition *e, const struct row *r, const char *const values[LABELS_MAX])
{
    size_t i = 0;
    for (const char *name = r->labels; *name; i++) {
        const size_t len = strcspn(name, ",");
        titan_assert(i < LABELS_MAX && values[i]);
        buf_put(e->out, i ? "," : "{", 1);
        buf_put(e->out, name, len);
        buf_put(e->out, "=\"", 2);
        put_label_value(e->out, values[i]);
        buf_put(e->out, "\"", 1);
        name += len + (name[len] == ',');
    }
    titan_assert(i == LABELS_MAX || !values[i]);
    return i > 0;
}

static void put_value(struct exposition *e, double value)
{
    char text[40];
    if (isnan(value))
        buf_puts(e->out, " NaN\n");
    else if (isinf(value))
        buf_puts(e->out, value > 0 ? " +Inf\n" : " -Inf\n");
    else
        buf_put(e->out, text,
                (size_t)(fabs(value) < 1e15 && value == floor(value)
                             ? snprintf(text, sizeof(text), " %.0f\n", value)
                             : snprintf(text, sizeof(text), " %.15g\n", value)));
}

static void take_values(va_list ap, const char *values[LABELS_MAX])
{
    size_t n = 0;
    memset(values, 0, LABELS_MAX * sizeof(*values));
    for (const char *v; (v = va_arg(ap, const char *)); n++) {
        titan_assert(n < LABELS_MAX);
        values[n] = v;
    }
}

void exposition_put(struct exposition *e, enum metric_name m, double value, ...)
{
    const struct row *r = &rows[m];
    const char *values[LABELS_MAX];
    va_list ap;
    va_start(ap, value);
    take_values(ap, values);
    va_end(ap);
    titan_assert(r->type != HISTOGRAM);
    head(e, m);
    buf_puts(e->out, r->name);
    if (put_labels(e, r, values))
        buf_put(e->out, "}", 1);
    put_value(e, value);
}

void exposition_put_histogram(struct exposition *e, enum metric_name m, const struct histogram *h, ...)
{
    const struct row *r = &rows[m];
    const char *values[LABELS_MAX];
    va_list ap;
    va_start(ap, h);
    take_values(ap, values);
    va_end(ap);
    titan_assert(r->type == HISTOGRAM);
    head(e, m);
    uint64_t n = 0;
    for (unsigned i = 0; i <= HISTOGRAM_BOUNDS; i++) {
        char bound[24] = "+Inf";
        if (i < HISTOGRAM_BOUNDS)
            (void)snprintf(bound, sizeof(bound), histogram_bounds[i] < 1 ? "%g" : "%.1f", histogram_bounds[i]);
        n += h->counts[i];
        buf_printf(e->out, "%s_bucket", r->name);
        buf_puts(e->out, put_labels(e, r, values) ? ",le=\"" : "{le=\"");
        buf_printf(e->out, "%s\"}", bound);
        put_value(e, (double)n);
    }
    buf_printf(e->out, "%s_sum", r->name);
    if (put_labels(e, r, values))
        buf_put(e->out, "}", 1);
    put_value(e, h->sum);
    buf_printf(e->out, "%s_count", r->name);
    if (put_labels(e, r, values))
        buf_put(e->out, "}", 1);
    put_value(e, (double)n);
}

void exposition_end(struct exposition *e)
{
    if (e->format == EXPOSITION_OPENMETRICS)
        buf_puts(e->out, "# EOF\n");
}
