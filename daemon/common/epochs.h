/* SPDX-License-Identifier: Apache-2.0 */
/* epochs.h - what a number of an epoch from outside may be, and its other bounds. */
#ifndef TITAN_DAEMON_COMMON_EPOCHS_H
#define TITAN_DAEMON_COMMON_EPOCHS_H

#include <stdbool.h>
#include <stdint.h>

#include "titan/internal/agent.pb-c.h"

/* An acting leader's, or one that an agent has seen, is at most so far above the job's own: no run has that many, and
 * above the highest there could be no next one. */
#define EPOCH_STEP_MAX (UINT64_C(1) << 32)
#define EPOCH_ID_BYTES 16       /* of a communicator's id */
#define EPOCH_HOLDERS_MAX 65536 /* of its state */

/* A worker has one place in an epoch: as a member or as a departing rank. */
bool epoch_workers_distinct(const Titan__Internal__FormEpoch *f);
/* ... and one among the holders of its state. */
bool epoch_holders_distinct(const Titan__Internal__FormEpoch *f);

#endif
