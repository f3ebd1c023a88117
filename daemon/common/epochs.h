/* SPDX-License-Identifier: Apache-2.0 */
/* epochs.h - bounds on epoch numbers and other epoch data from outside. */
#ifndef TITAN_DAEMON_COMMON_EPOCHS_H
#define TITAN_DAEMON_COMMON_EPOCHS_H

#include <stdbool.h>
#include <stdint.h>

#include "titan/internal/agent.pb-c.h"

/* Largest distance from a job's epoch to an acting leader's epoch, or to an epoch that an agent has seen. No run has
 * that many epochs. Above the largest number there could be no next epoch. */
#define EPOCH_STEP_MAX (UINT64_C(1) << 32)
#define EPOCH_ID_BYTES 16       /* bytes of a communicator id */
#define EPOCH_HOLDERS_MAX 65536 /* holders of an epoch's state */

/* Each worker has one place in the epoch: as a member or as a departing rank. */
bool epoch_workers_distinct(const Titan__Internal__FormEpoch *f);
/* Each worker appears once among the holders of the epoch's state. */
bool epoch_holders_distinct(const Titan__Internal__FormEpoch *f);

#endif
