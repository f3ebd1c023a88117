/* SPDX-License-Identifier: Apache-2.0 */
/* cleanup.h - lexical ownership: _cleanup_(free_fn) frees at scope end, TAKE(p) moves the value out. */
#ifndef TITAN_BASE_CLEANUP_H
#define TITAN_BASE_CLEANUP_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/param.h> /* MIN, MAX: uv.h brings it too */
#include <unistd.h>

#define _cleanup_(fn) __attribute__((cleanup(fn)))

/* Moves the pointer out; the variable becomes NULL, so its cleanup does nothing. */
#define TAKE(ptr)                                                                                                      \
    ({                                                                                                                 \
        __typeof__(ptr) take_ = (ptr);                                                                                 \
        (ptr) = NULL;                                                                                                  \
        take_;                                                                                                         \
    })
/* TAKE() for a file descriptor; the variable is -1 afterwards. */
#define TAKE_FD(fd)                                                                                                    \
    ({                                                                                                                 \
        int take_ = (fd);                                                                                              \
        (fd) = -1;                                                                                                     \
        take_;                                                                                                         \
    })

static inline void free_ptr(void *p)
{
    free(*(void **)p);
}
static inline void close_fd(const int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
}
static inline void close_file(FILE **f)
{
    if (*f)
        (void)fclose(*f);
}
#define _cleanup_free_ _cleanup_(free_ptr)
#define _cleanup_fd_ _cleanup_(close_fd)
#define _cleanup_file_ _cleanup_(close_file)

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#endif
