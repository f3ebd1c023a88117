/* SPDX-License-Identifier: Apache-2.0 */
/* labels.h - labels of a job, KEY=VALUE, for finding jobs. */
#ifndef TITAN_BASE_LABELS_H
#define TITAN_BASE_LABELS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"

enum { LABELS_MAX = 32, LABEL_KEY_MAX = 64, LABEL_VALUE_MAX = 128 };

/* Appends the labels as one text, one per line, sorted by key. Keys are letters, digits, '.', '_', '/', '-' and begin
 * with a letter or digit; values are any characters allowed in a line of text. TITAN_EINVAL: too many labels, a label
 * too long, a duplicate key, or no KEY=VALUE. `what` names the labels in the message ("--label"). */
titan_status labels_join(char *const *labels, size_t n, const char *what, struct buf *out,
                         struct titan_error *err) TITAN_MUST_USE;
/* Do the joined labels contain `wanted`? KEY alone matches any value. */
bool labels_have(const char *labels, const char *wanted);

#endif
