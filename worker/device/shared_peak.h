/* SPDX-License-Identifier: Apache-2.0 */
/* shared_peak.h - the peak that MFU is a share of: what the devices of a run can do together. */
#ifndef TITAN_WORKER_DEVICE_SHARED_PEAK_H
#define TITAN_WORKER_DEVICE_SHARED_PEAK_H

#include "worker/device/device.h"

/* What a rank says of its device. Doubles carry it. */
struct peak_claim {
    double hardware, share; /* of device_info */
    double peak;            /* FLOP/s; 0: not known */
};

struct peak_claim peak_claim_of(const struct device_info *info, enum dtype dt);
/* FLOP/s of one of so many such devices beside each other; 0: not known. */
double peak_each(const struct device_info *info, enum dtype dt, int n);
/* FLOP/s: devices that share hardware do no more than it can. 0: of one it is not known. Claims are put in order. */
double peak_together(struct peak_claim *claims, int n);

#endif
