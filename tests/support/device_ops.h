/* SPDX-License-Identifier: Apache-2.0 */
/* device_ops.h - every operation of a device against a plain fp64 reference.
 *
 * Works for any plug-in and needs nothing but libc, so a bare GPU machine runs the same checks as the CPU's unit test.
 * The reference is written here, in the shortest form of the formulas; its backward passes are themselves checked
 * against finite differences of its forward passes. */
#ifndef TITAN_TESTS_SUPPORT_DEVICE_OPS_H
#define TITAN_TESTS_SUPPORT_DEVICE_OPS_H

#include <stdio.h>

#include "worker/device/device.h"

struct checker;
/* device_experts.c: strided rows, routing, permutation and grouped products. */
void device_experts_check(struct checker *c);

/* Runs all checks and prints one TAP line each to report. Returns the number of failed ones. The inputs come from a
 * fixed seed, or from TITAN_SEED; it is printed. */
int device_ops_check(const struct device_handle *handle, FILE *report);

#endif
