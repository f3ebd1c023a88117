/* SPDX-License-Identifier: Apache-2.0 */
/* memory_device.h - a device of host memory where everything runs at once: what moving a training state takes, int8
 * codes of gradients among it, and nothing that computes. Any thread; streams are not looked at. */
#ifndef TITAN_TESTS_SUPPORT_MEMORY_DEVICE_H
#define TITAN_TESTS_SUPPORT_MEMORY_DEVICE_H

#include "worker/device/device.h"

extern const struct device_handle memory_device;
/* The same, but its memory passes for the device's own: what goes there and back is staged. */
extern const struct device_handle apart_device;

#endif
