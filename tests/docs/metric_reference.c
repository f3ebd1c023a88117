/* SPDX-License-Identifier: Apache-2.0 */
/* Prints docs/metrics.md; used by `make docs`. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/histogram.h"

static const struct {
    const char *name, *type, *labels, *who, *help;
} rows[] = {
#define METRIC(name, type, labels, who, help) {#name, #type, labels, #who, help},
#include "daemon/common/metric_table.def"
#undef METRIC
};

/* Prints the text as code, or in small letters: "GAUGE" -> "gauge", "a,b" -> "`a`, `b`". */
static void print_small(const char *text)
{
    for (; *text; text++)
        (void)putchar(*text >= 'A' && *text <= 'Z' ? *text + 32 : *text);
}

int main(void)
{
    printf(
        "# Metrics\n\n"
        "What titand shows at `/metrics` ([operations.md](operations.md#watch-it)); `make docs` writes this page from\n"
        "`daemon/common/metric_table.def`. Names follow Prometheus' conventions: seconds and bytes, `_total` for what "
        "only grows. In text 0.0.4, and\n"
        "in OpenMetrics 1.0 for a scraper that asks for it. Series of jobs and nodes come and go; the others are there "
        "from the start, at 0.\n\n"
        "Histograms have buckets up to");
    for (size_t i = 0; i < HISTOGRAM_BOUNDS; i++)
        printf("%s %g", i ? "," : "", histogram_bounds[i]);
    printf(" s.\n\n| Metric | Type | Labels | Of | What |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        printf("| `%s` | ", rows[i].name);
        print_small(rows[i].type);
        printf(" | ");
        for (const char *at = rows[i].labels; *at;) {
            const size_t len = strcspn(at, ",");
            printf("%s`%.*s`", at == rows[i].labels ? "" : ", ", (int)len, at);
            at += len + (at[len] == ',');
        }
        printf(" | ");
        print_small(rows[i].who);
        printf(" | %s |\n", rows[i].help);
    }
    return fflush(stdout) != 0;
}
