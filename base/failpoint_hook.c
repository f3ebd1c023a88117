/* SPDX-License-Identifier: Apache-2.0 */
/* failpoint_hook.c - what a program without failpoints has of them. */
#include <stddef.h>

#include "base/failpoint.h"

titan_status (*failpoint_pass)(const char *name, struct titan_error *err) = NULL;
atomic_int failpoint_rank = -1;
