/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - threads that nothing joins, on stacks of a given size. */
#ifndef TITAN_DAEMON_COMMON_THREAD_H
#define TITAN_DAEMON_COMMON_THREAD_H

#include <stddef.h>

/* 0, or the errno value of what failed. */
int thread_start(size_t stack_bytes, void *(*entry)(void *), void *arg);

#endif
