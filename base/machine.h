/* SPDX-License-Identifier: Apache-2.0 */
/* machine.h - the GPUs of this machine. */
#ifndef TITAN_BASE_MACHINE_H
#define TITAN_BASE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

/* The GPUs this process may use, in CUDA's order: the entries of CUDA_VISIBLE_DEVICES up to the first invalid entry.
 * Without that variable: the devices /dev/nvidia0, ... that can be opened. */
uint32_t machine_gpus(void);
/* CUDA_VISIBLE_DEVICES for a process that gets the i-th GPU alone; false when that GPU does not exist. */
bool machine_gpu(uint32_t i, char out[128]);

/* machine_gpus() for a given value (NULL: not set) and folder of devices. */
uint32_t machine_gpus_in(const char *visible, const char *devices);
bool machine_gpu_in(const char *visible, const char *devices, uint32_t i, char out[128]);

#endif
