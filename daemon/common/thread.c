/* SPDX-License-Identifier: Apache-2.0 */
/* thread.c - see thread.h. */
#include "daemon/common/thread.h"

#include <pthread.h>

#include "base/error.h"

int thread_start(size_t stack_bytes, void *(*entry)(void *), void *arg)
{
    pthread_attr_t attr;
    pthread_t thread;
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void)pthread_attr_setstacksize(&attr, stack_bytes);
    const int rc = pthread_create(&thread, &attr, entry, arg);
    (void)pthread_attr_destroy(&attr);
    return rc;
}
