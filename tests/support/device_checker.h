/* SPDX-License-Identifier: Apache-2.0 */
/* device_checker.h - what the checks of a device's operations share: a device under test, tensors of which the exact
 * values are known in fp64, and comparisons. A check uploads inputs, runs operations, compares, reports a result and
 * sweeps.
 */
#ifndef TITAN_TESTS_SUPPORT_DEVICE_CHECKER_H
#define TITAN_TESTS_SUPPORT_DEVICE_CHECKER_H

#include <stdio.h>

#include "worker/device/device.h"

enum { TRACKED_MAX = 128 };

struct checker {
    const struct device_handle *h;
    const struct device_ops *ops;
    struct stream *s, *side;
    FILE *report;
    int count, failed;
    uint64_t random;
    void *tracked[TRACKED_MAX]; /* device memory of the running check */
    double *values[TRACKED_MAX];
    int tracked_count, values_count;
    bool broken; /* the running check could not be carried out */
};

/* A device tensor and its exact values in fp64. */
struct tensor {
    void *p;
    double *x;
    int64_t n;
    enum dtype dt;
};

static const enum dtype both[] = {DTYPE_F32, DTYPE_BF16};

/* One TAP line. */
void result(struct checker *c, bool ok, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* An operation that must be accepted; otherwise the running check is broken. */
void need(struct checker *c, titan_status status, const char *what);
void sync_stream(struct checker *c);
/* Ends a check: its memory goes. */
void sweep(struct checker *c);

uint64_t next_random(struct checker *c);
double uniform(struct checker *c, double low, double high);
uint16_t to_bf16(float x);
float from_bf16(uint16_t h);
/* Element i of an array of dt. */
void put(void *p, int64_t i, enum dtype dt, double x);
double get(const void *p, int64_t i, enum dtype dt);

/* Memory until the next sweep: zeroed values on the host, bytes on the device. */
double *values(struct checker *c, int64_t n);
void *device_memory(struct checker *c, size_t bytes);
/* Host bytes to the device or back, through memory the device may copy from at any time. */
void transfer(struct checker *c, void *dst, const void *src, size_t bytes, bool to_device);
/* Values rounded to the tensor's type, on the device; x afterwards holds what the device has. */
void upload(struct checker *c, struct tensor *t);
double *download(struct checker *c, const struct tensor *t);
struct tensor empty(struct checker *c, int64_t n, enum dtype dt);
struct tensor noise(struct checker *c, int64_t n, enum dtype dt, double scale);
struct tensor integers(struct checker *c, int64_t n, int64_t low, int64_t high); /* low <= x < high, int32 */
void *offset_of(const struct tensor *t, int64_t i);
/* Columns [offset, offset+width) of n rows, dense. */
double *unpack(struct checker *c, const double *x, int64_t n, int64_t ld, int64_t offset, int64_t width);
void fill(struct checker *c, double *x, int64_t n, double scale);

/* Normalised mean squared error allowed. bf16 rounds once to 2^-9: 1.3e-6; what an operation rounds inside adds. */
double limit_of(enum dtype dt);
const char *name_of(enum dtype dt);
/* got against want, by NMSE and by the worst element (30 times the root of the limit, of the RMS). */
bool near(struct checker *c, const double *got, const double *want, int64_t n, double limit, const char *what);
/* To the bit. */
bool same(struct checker *c, const double *got, const double *want, int64_t n, const char *what);

double dot_of(const double *a, const double *b, int64_t n);
/* grad[i] of f = <forward(x), weight> against (f(x+h) - f(x-h)) / 2h for every i. */
bool differences(struct checker *c, double *x, const double *grad, int64_t n, double (*f)(const void *arg),
                 const void *arg);

#endif
