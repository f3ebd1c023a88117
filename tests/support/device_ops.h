/* SPDX-License-Identifier: Apache-2.0 */
/* device_ops.h - every operation of a device against a plain fp64 reference.
 *
 * Works for any plug-in and needs nothing but libc, so a bare GPU machine runs the same checks as the CPU's unit test.
 * device_ops.c calls the checks of one subject after the other, a file each. */
#ifndef TITAN_TESTS_SUPPORT_DEVICE_OPS_H
#define TITAN_TESTS_SUPPORT_DEVICE_OPS_H

#include <stdio.h>

#include "worker/device/device.h"

struct checker;
/* One subject each, in device_SUBJECT.c. They draw from the checker's random numbers, one after the other. */
void device_reference_check(struct checker *c);
void device_memory_check(struct checker *c);
void device_streams_check(struct checker *c);
void device_products_check(struct checker *c);
void device_float8_check(struct checker *c);
void device_int8_check(struct checker *c);
void device_embedding_check(struct checker *c);
void device_norms_check(struct checker *c);
void device_attention_check(struct checker *c);
void device_attention_orders_check(struct checker *c);
void device_attention_tiles_check(struct checker *c);
void device_layers_check(struct checker *c);
void device_sums_check(struct checker *c);
void device_optimizer_check(struct checker *c);
void device_weights_check(struct checker *c);
void device_experts_check(struct checker *c);
void device_grouped_check(struct checker *c);
void device_orthogonal_check(struct checker *c);
void device_codecs_check(struct checker *c);
void device_grouped_tiles_check(struct checker *c);

/* Runs all checks and prints one TAP line each to report. Returns the number of failed ones. The inputs come from a
 * fixed seed, or from TITAN_SEED; it is printed. */
int device_ops_check(const struct device_handle *handle, FILE *report);

#endif
