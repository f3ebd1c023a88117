/* SPDX-License-Identifier: Apache-2.0 */
/* machine.h - what this machine has. */
#ifndef TITAN_BASE_MACHINE_H
#define TITAN_BASE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

/* The GPUs this process may use, as CUDA counts them: the entries of CUDA_VISIBLE_DEVICES up to the first that names
 * none; where that is not set, the devices /dev/nvidia0 and so on that can be opened. */
uint32_t machine_gpus(void);
/* What CUDA_VISIBLE_DEVICES is to be for a process that is to have the i-th of them alone; false when there is no such.
 */
bool machine_gpu(uint32_t i, char out[128]);

/* The same of a given value (NULL: not set) and folder of devices. */
uint32_t machine_gpus_in(const char *visible, const char *devices);
bool machine_gpu_in(const char *visible, const char *devices, uint32_t i, char out[128]);

#endif
