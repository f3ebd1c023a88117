/* SPDX-License-Identifier: Apache-2.0 */
/* tokenize.h - a text's tokens, shown. */
#ifndef TITAN_WORKER_TOKENIZER_TOKENIZE_H
#define TITAN_WORKER_TOKENIZER_TOKENIZE_H

#include "base/options.h"

extern const struct command tokenize_command; /* titan-worker tokenize */

#endif
