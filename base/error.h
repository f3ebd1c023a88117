/* SPDX-License-Identifier: Apache-2.0 */
/* error.h - what failed, where, and the remedy.
 *
 * The failing function fills the error with titan_fail(); callers prepend context with titan_error_wrap(). A NULL error
 * is always allowed, for a caller that needs only the code. Nothing here allocates. Library code returns errors;
 * program code logs each error once. */
#ifndef TITAN_BASE_ERROR_H
#define TITAN_BASE_ERROR_H

#include "base/status.h"

struct titan_error {
    titan_status status;
    int sys_errno;    /* errno at the fault, or 0 */
    const char *file; /* source position of the fault */
    int line;
    char msg[384];  /* one line: what failed and where; a message that was cut ends in "..." */
    char hint[160]; /* one line: the remedy for the user; may be empty */
};

/* Fills err (may be NULL) and returns status. */
#define titan_fail(err, status, ...)                                                                                   \
    ({                                                                                                                 \
        titan_status failed_ = (status);                                                                               \
        (void)titan_error_set((err), failed_, 0, __FILE__, __LINE__, __VA_ARGS__);                                     \
        failed_; /* the block's value: compilers and checkers then see the returned status */                          \
    })
/* titan_fail() for a failed system call: the status comes from errno, and ": strerror" is appended. Use it directly
 * after the call. */
#define titan_fail_errno(err, ...)                                                                                     \
    ({                                                                                                                 \
        titan_status failed_ = titan_error_set_errno((err), __FILE__, __LINE__, __VA_ARGS__);                          \
        if (failed_ == TITAN_OK) /* never happens: errno 0 becomes EIO */                                              \
            __builtin_unreachable();                                                                                   \
        failed_;                                                                                                       \
    })

titan_status titan_error_set(struct titan_error *err, titan_status status, int sys_errno, const char *file, int line,
                             const char *fmt, ...) __attribute__((format(printf, 6, 7)));
titan_status titan_error_set_errno(struct titan_error *err, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Prepends "prefix: " to the message; returns err->status so that the call can end a function. */
titan_status titan_error_wrap(struct titan_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void titan_error_hint(struct titan_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Did the machine lack a resource: descriptors, kernel memory, disk space? This error is not the caller's fault, and a
 * later attempt may succeed. */
bool titan_error_short(const struct titan_error *err);

/* Returns the status of expr from the enclosing function unless the status is TITAN_OK. */
#define TRY(expr)                                                                                                      \
    do {                                                                                                               \
        titan_status try_status_ = (expr);                                                                             \
        if (try_status_ != TITAN_OK)                                                                                   \
            return try_status_;                                                                                        \
    } while (0)

/* Always active; checks conditions that only a bug in Titan can break. Never use it to check input from network, disk
 * or user. */
#define titan_assert(cond) ((cond) ? (void)0 : titan_assert_fail(#cond, __FILE__, __LINE__, __func__))
void titan_assert_fail(const char *cond, const char *file, int line, const char *func) __attribute__((noreturn));
/* Sets a function that titan_assert_fail() and titan_bug_fail() call before the process ends, for example to write the
 * log's queue. Call it before threads start. */
void titan_before_abort(void (*call)(void));

/* Ends the process as titan_assert() does, with a printf message, for cases that a condition alone does not explain. */
#define titan_bug(...) titan_bug_fail(__FILE__, __LINE__, __VA_ARGS__)
void titan_bug_fail(const char *file, int line, const char *fmt, ...) __attribute__((noreturn, format(printf, 3, 4)));
/* titan_assert() for hot paths: active only in DEBUG=1 and sanitizer builds. */
#ifdef TITAN_DEBUG
#define titan_debug_assert(cond) titan_assert(cond)
#else
#define titan_debug_assert(cond) ((void)0)
#endif

#endif
