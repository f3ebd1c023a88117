/* SPDX-License-Identifier: Apache-2.0 */
/* tokenize.h - shows a text's tokens. */
#ifndef TITAN_WORKER_TOKENIZER_TOKENIZE_H
#define TITAN_WORKER_TOKENIZER_TOKENIZE_H

#include "base/options.h"

extern const struct command tokenize_command; /* titan-worker tokenize */

#endif
