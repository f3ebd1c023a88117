/* SPDX-License-Identifier: Apache-2.0 */
/* error.h - what went wrong, where, and what to do about it.
 *
 * The function at fault fills the error with titan_fail(); callers add context in front with titan_error_wrap(). A
 * NULL error is always allowed and means "the code is enough". Nothing here allocates. Library code returns errors;
 * program code logs them, once. */
#ifndef TITAN_BASE_ERROR_H
#define TITAN_BASE_ERROR_H

#include "base/status.h"

struct titan_error {
    titan_status status;
    int sys_errno;    /* errno at the fault, or 0 */
    const char *file; /* source position of the fault */
    int line;
    char msg[384];  /* one line: what failed and where; ends in "..." where it was cut */
    char hint[160]; /* one line: what the person can do; may be empty */
};

/* Fill err (may be NULL) and return status. */
#define titan_fail(err, status, ...)                                                                                   \
    ({                                                                                                                 \
        titan_status failed_ = (status);                                                                               \
        (void)titan_error_set((err), failed_, 0, __FILE__, __LINE__, __VA_ARGS__);                                     \
        failed_; /* not the call's: compilers and checkers see which status comes back */                              \
    })
/* The same for a failed system call: status from errno, ": strerror" appended. Use directly after the call. */
#define titan_fail_errno(err, ...)                                                                                     \
    ({                                                                                                                 \
        titan_status failed_ = titan_error_set_errno((err), __FILE__, __LINE__, __VA_ARGS__);                          \
        if (failed_ == TITAN_OK) /* never: an errno of 0 is an EIO */                                                  \
            __builtin_unreachable();                                                                                   \
        failed_;                                                                                                       \
    })

titan_status titan_error_set(struct titan_error *err, titan_status status, int sys_errno, const char *file, int line,
                             const char *fmt, ...) __attribute__((format(printf, 6, 7)));
titan_status titan_error_set_errno(struct titan_error *err, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Put "prefix: " in front of the message; returns err->status so that it can end a function. */
titan_status titan_error_wrap(struct titan_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Set the hint. */
void titan_error_hint(struct titan_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Is it for want of what the machine has too little of: descriptors, memory of the kernel's, room on a disk? Then it is
 * no fault of the caller's, and may work later. */
bool titan_error_short(const struct titan_error *err);

/* Return from the enclosing function with the status of expr unless it is TITAN_OK. */
#define TRY(expr)                                                                                                      \
    do {                                                                                                               \
        titan_status try_status_ = (expr);                                                                             \
        if (try_status_ != TITAN_OK)                                                                                   \
            return try_status_;                                                                                        \
    } while (0)

/* Always on: for what only a bug of ours can break. Never for input from network, disk or user. */
#define titan_assert(cond) ((cond) ? (void)0 : titan_assert_fail(#cond, __FILE__, __LINE__, __func__))
void titan_assert_fail(const char *cond, const char *file, int line, const char *func) __attribute__((noreturn));
/* The same for what a condition alone does not tell: a message in printf's manner. */
/* Called before the process ends by either: what is left to write, such as the log's queue. Set before threads start.
 */
void titan_before_abort(void (*call)(void));

#define titan_bug(...) titan_bug_fail(__FILE__, __LINE__, __VA_ARGS__)
void titan_bug_fail(const char *file, int line, const char *fmt, ...) __attribute__((noreturn, format(printf, 3, 4)));
/* Hot paths: on in DEBUG=1 and sanitizer builds. */
#ifdef TITAN_DEBUG
#define titan_debug_assert(cond) titan_assert(cond)
#else
#define titan_debug_assert(cond) ((void)0)
#endif

#endif
