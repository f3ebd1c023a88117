/* SPDX-License-Identifier: Apache-2.0 */
/* labels.h - labels of a job, KEY=VALUE: what people find it by. */
#ifndef TITAN_BASE_LABELS_H
#define TITAN_BASE_LABELS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"

enum { LABELS_MAX = 32, LABEL_KEY_MAX = 64, LABEL_VALUE_MAX = 128 };

/* Appends them as one text: a line each, in the order of their keys. Keys are letters, digits, '.', '_', '/', '-' and
 * begin with a letter or digit; values are what a line of text may hold. TITAN_EINVAL: too many, too long, a key twice,
 * or no KEY=VALUE; `what` names them in the message ("--label"). */
titan_status labels_join(char *const *labels, size_t n, const char *what, struct buf *out,
                         struct titan_error *err) TITAN_MUST_USE;
/* Do the labels (as joined) have this one? KEY alone: with whatever value. */
bool labels_have(const char *labels, const char *wanted);

#endif
