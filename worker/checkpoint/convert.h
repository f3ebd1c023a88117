/* SPDX-License-Identifier: Apache-2.0 */
/* convert.h - titan-worker convert: a checkpoint as a Hugging Face directory, and the other way round. */
#ifndef TITAN_WORKER_CHECKPOINT_CONVERT_H
#define TITAN_WORKER_CHECKPOINT_CONVERT_H

#include "base/error.h"
#include "base/options.h"

/* Converts a weights folder of transformers to a folder of checkpoints (made if missing). The folder gets one
 * checkpoint of step 0, with the weights and no optimizer state. */
titan_status convert_weights(const char *weights, const char *out_dir, struct titan_error *err) TITAN_MUST_USE;

extern const struct command convert_command; /* titan-worker convert */

#endif
