/* SPDX-License-Identifier: Apache-2.0 */
/* exposition.h - writes metrics in the formats that Prometheus reads: text 0.0.4 and OpenMetrics 1.0.
 * metric_table.def has all metrics. */
#ifndef TITAN_DAEMON_COMMON_EXPOSITION_H
#define TITAN_DAEMON_COMMON_EXPOSITION_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/histogram.h"

enum metric_name {
#define METRIC(name, type, labels, who, help) METRIC_##name,
#include "daemon/common/metric_table.def"
#undef METRIC
    METRICS
};

enum exposition_format { EXPOSITION_TEXT, EXPOSITION_OPENMETRICS, EXPOSITION_FORMATS };
/* The format that the client asks for. accept: its header; NULL = none. */
enum exposition_format exposition_format(const char *accept);
const char *exposition_type(enum exposition_format format); /* content type */

/* A page under construction. Starts with all fields zero but out and format. All samples of a metric follow each other;
 * its HELP and TYPE come with the first. */
struct exposition {
    struct buf *out;
    enum exposition_format format;
    bool begun;
    enum metric_name now; /* the metric of the last sample, if begun */
    bool said[METRICS];
};

/* PUT(e, titan_nodes, 3, "ready"): a value, then the labels' values, which are any bytes. */
#define PUT(e, name, value, ...) exposition_put((e), METRIC_##name, (value), ##__VA_ARGS__, (const char *)NULL)
#define PUT_HISTOGRAM(e, name, h, ...)                                                                                 \
    exposition_put_histogram((e), METRIC_##name, (h), ##__VA_ARGS__, (const char *)NULL)
void exposition_put(struct exposition *e, enum metric_name m, double value, ...) __attribute__((sentinel));
void exposition_put_histogram(struct exposition *e, enum metric_name m, const struct histogram *h, ...)
    __attribute__((sentinel));
void exposition_end(struct exposition *e); /* call it once, last */

#endif
