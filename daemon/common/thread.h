/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - threads without a join, on stacks of a given size. */
#ifndef TITAN_DAEMON_COMMON_THREAD_H
#define TITAN_DAEMON_COMMON_THREAD_H

#include <stddef.h>

/* Returns 0 or an errno value. */
int thread_start(size_t stack_bytes, void *(*entry)(void *), void *arg);

#endif
