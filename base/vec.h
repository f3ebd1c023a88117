/* SPDX-License-Identifier: Apache-2.0 */
/* vec.h - growing arrays. The caller keeps a pointer, a count and a capacity, of integer types of its choice:
 *   struct token *tokens; size_t n_tokens, cap_tokens;
 *   if (!VEC_PUSH(l->tokens, l->n_tokens, l->cap_tokens, token)) return titan_fail(err, TITAN_ENOMEM, "out of memory");
 * If all three are zero, the array is empty; free() releases it. Growth doubles the capacity, so pushes take constant
 * time on average; new entries are not zeroed. False means out of memory, or more entries than the capacity's type
 * counts; the array then stays as it was. The macros evaluate array, count and capacity more than once, an entry
 * once. */
#ifndef TITAN_BASE_VEC_H
#define TITAN_BASE_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"

/* Implements the macros: the array with room for at least `need` entries of `size` bytes; NULL = out of memory. *cap is
 * set on success and never exceeds `cap_max`. */
void *vec_grow(void *array, size_t *cap, size_t need, size_t size, size_t cap_max) __attribute__((warn_unused_result));

/* The largest value of an integer expression's type. */
#define VEC_TYPE_MAX(x) ((__typeof__(x))-1 > 0 ? (size_t)(__typeof__(x))-1 : ((size_t)1 << (8 * sizeof(x) - 1)) - 1)

/* Makes room for a total of `need` entries. */
#define VEC_RESERVE(array, cap, need)                                                                                  \
    ({                                                                                                                 \
        size_t cap_ = (size_t)(cap), need_ = (size_t)(need);                                                           \
        bool fits_ = need_ <= cap_;                                                                                    \
        if (!fits_) {                                                                                                  \
            void *grown_ = vec_grow((array), &cap_, need_, sizeof(*(array)), VEC_TYPE_MAX(cap));                       \
            if (grown_) {                                                                                              \
                (array) = grown_;                                                                                      \
                (cap) = (__typeof__(cap))cap_;                                                                         \
                fits_ = true;                                                                                          \
            }                                                                                                          \
        }                                                                                                              \
        fits_;                                                                                                         \
    })

/* Appends an entry: VEC_PUSH(array, n, cap, (struct point){x, y}). */
#define VEC_PUSH(array, n, cap, ...)                                                                                   \
    (VEC_RESERVE(array, cap, (size_t)(n) + 1) && ((array)[n] = (__VA_ARGS__), (n)++, true))

/* Inserts an entry in front of entry `at`; at = n appends. */
#define VEC_INSERT(array, n, cap, at, ...)                                                                             \
    ({                                                                                                                 \
        const size_t at_ = (size_t)(at);                                                                               \
        const __typeof__(*(array)) entry_ = (__VA_ARGS__);                                                             \
        const bool room_ = VEC_RESERVE(array, cap, (size_t)(n) + 1);                                                   \
        if (room_) {                                                                                                   \
            memmove(&(array)[at_ + 1], &(array)[at_], ((size_t)(n)++ - at_) * sizeof(*(array)));                       \
            (array)[at_] = entry_;                                                                                     \
        }                                                                                                              \
        room_;                                                                                                         \
    })

/* For callers that cannot continue without memory: the process ends with the line of the call. */
#define VEC_MUST(done) ((void)((done) || (titan_bug("out of memory"), false)))
#define VEC_MUST_RESERVE(array, cap, need) VEC_MUST(VEC_RESERVE(array, cap, need))
#define VEC_MUST_PUSH(array, n, cap, ...) VEC_MUST(VEC_PUSH(array, n, cap, __VA_ARGS__))
#define VEC_MUST_INSERT(array, n, cap, at, ...) VEC_MUST(VEC_INSERT(array, n, cap, at, __VA_ARGS__))

/* Removes entry `at`; later entries move down by one. */
#define VEC_REMOVE(array, n, at)                                                                                       \
    ({                                                                                                                 \
        const size_t at_ = (size_t)(at);                                                                               \
        memmove(&(array)[at_], &(array)[at_ + 1], ((size_t)--(n)-at_) * sizeof(*(array)));                             \
    })

#endif
