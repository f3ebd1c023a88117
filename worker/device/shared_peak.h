/* SPDX-License-Identifier: Apache-2.0 */
/* shared_peak.h - the peak against which MFU is computed: what the devices of a run can do together. */
#ifndef TITAN_WORKER_DEVICE_SHARED_PEAK_H
#define TITAN_WORKER_DEVICE_SHARED_PEAK_H

#include "worker/device/device.h"

/* A rank's claim about its device. All fields are doubles, so they travel as doubles. */
struct peak_claim {
    double hardware, share; /* of device_info */
    double peak;            /* FLOP/s; 0: not known */
};

struct peak_claim peak_claim_of(const struct device_info *info, enum dtype dt);
/* FLOP/s of each of n equal devices with these properties that run side by side; 0: not known. */
double peak_each(const struct device_info *info, enum dtype dt, int n);
/* FLOP/s of all devices together. Devices that share hardware get no more than the hardware's peak. 0: the peak of a
 * device is not known. The function sorts `claims`. */
double peak_together(struct peak_claim *claims, int n);

#endif
