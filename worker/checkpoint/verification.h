/* SPDX-License-Identifier: Apache-2.0 */
/* verification.h - titan-worker verify: are checkpoints sound? */
#ifndef TITAN_WORKER_CHECKPOINT_VERIFICATION_H
#define TITAN_WORKER_CHECKPOINT_VERIFICATION_H

#include "base/options.h"

extern const struct command verify_command;

#endif
