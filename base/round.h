/* SPDX-License-Identifier: Apache-2.0 */
/* round.h - sizes rounded to a grain. */
#ifndef TITAN_BASE_ROUND_H
#define TITAN_BASE_ROUND_H

#include <stdint.h>

#include "base/error.h"

/* The least multiple of grain that is at least n. */
static inline int64_t round_up(int64_t n, int64_t grain)
{
    titan_assert(n >= 0 && grain > 0);
    return (n + grain - 1) / grain * grain;
}

#endif
