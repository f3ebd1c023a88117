/* SPDX-License-Identifier: Apache-2.0 */
/* device_samples.h - attention, products, experts' products and the loss at large shapes, where whole results are too
 * large for an fp64 reference: rows and elements drawn at random against it, and all of each result, computed twice,
 * bit for bit.
 *
 * What only large shapes show: index arithmetic beyond 31 bits, tiles beyond the first few, sums over thousands of
 * terms. Inputs are bf16. Works for any plug-in and needs nothing but libc, as device_ops.h does. */
#ifndef TITAN_TESTS_SUPPORT_DEVICE_SAMPLES_H
#define TITAN_TESTS_SUPPORT_DEVICE_SAMPLES_H

#include <stdbool.h>
#include <stdio.h>

#include "worker/device/device.h"

/* Prints one TAP line for each check to report and returns the number of failed ones. reduced: shapes of the same form
 * that a processor or the emulator does in a second; otherwise 10 GiB of device memory and a few seconds of one core
 * for the reference. The seed is fixed, or TITAN_SEED's; it is printed. */
int device_samples_check(const struct device_handle *handle, bool reduced, FILE *report);

#endif
