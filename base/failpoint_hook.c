/* SPDX-License-Identifier: Apache-2.0 */
/* failpoint_hook.c - the part linked into programs without failpoints. */
#include <stddef.h>

#include "base/failpoint.h"

titan_status (*failpoint_pass)(const char *name, struct titan_error *err) = NULL;
atomic_int failpoint_rank = -1;
