/* SPDX-License-Identifier: Apache-2.0 */
/* normal.h - logarithm, sine and cosine for normal numbers, inline, for rng.h and for device kernels.
 *
 * The functions use plain double arithmetic without contraction. So a model's initial weights have the same bits on
 * every machine and device, and compilers can vectorise whole ranges. A libm's results vary with its version and the
 * CPU. Both functions are exact to a few units of double's last place. */
#ifndef TITAN_BASE_NORMAL_H
#define TITAN_BASE_NORMAL_H

#include <string.h>

#include "base/philox.h"

/* ln(u), u in (0,1] normal: u = 2^e m, m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh((m-1)/(m+1)). */
PHILOX_INLINE double normal_log(double u)
{
    uint64_t bits;
    memcpy(&bits, &u, sizeof(bits));
    uint64_t shifted = bits - UINT64_C(0x3fe6a09e667f3bcd); /* sqrt(1/2) */
    int64_t e = (int64_t)shifted >> 52;
    bits -= (uint64_t)e << 52;
    double m;
    memcpy(&m, &bits, sizeof(m));
    double z = (m - 1.0) / (m + 1.0), y = z * z;
    double p = 1.0 / 23;
    p = p * y + 1.0 / 21;
    p = p * y + 1.0 / 19;
    p = p * y + 1.0 / 17;
    p = p * y + 1.0 / 15;
    p = p * y + 1.0 / 13;
    p = p * y + 1.0 / 11;
    p = p * y + 1.0 / 9;
    p = p * y + 1.0 / 7;
    p = p * y + 1.0 / 5;
    p = p * y + 1.0 / 3;
    return (double)e * 0.693147180559945309417 + 2.0 * (z + z * (y * p));
}

/* Sine and cosine of turns / 2^32 of a full turn. The angle is an exact number of quarter turns and a remainder of at
 * most an eighth turn. */
PHILOX_INLINE void normal_sincos(uint32_t turns, double *ret_sin, double *ret_cos)
{
    uint32_t quarter = (turns + UINT32_C(0x20000000)) >> 30;
    double x = (double)(int32_t)(turns - (quarter << 30)) * (6.283185307179586476925 * 0x1p-32), y = x * x;
    double s = 1.0 / 355687428096000.0, c = -1.0 / 6402373705728000.0;
    s = s * y - 1.0 / 1307674368000.0;
    s = s * y + 1.0 / 6227020800.0;
    s = s * y - 1.0 / 39916800.0;
    s = s * y + 1.0 / 362880.0;
    s = s * y - 1.0 / 5040.0;
    s = s * y + 1.0 / 120.0;
    s = s * y - 1.0 / 6.0;
    s = x + x * (y * s);
    c = c * y + 1.0 / 20922789888000.0;
    c = c * y - 1.0 / 87178291200.0;
    c = c * y + 1.0 / 479001600.0;
    c = c * y - 1.0 / 3628800.0;
    c = c * y + 1.0 / 40320.0;
    c = c * y - 1.0 / 720.0;
    c = c * y + 1.0 / 24.0;
    c = c * y - 0.5;
    c = 1.0 + y * c;
    /* Branch-free, and exact: one factor is 1, the other 0. */
    double odd = (double)(int32_t)(quarter & 1), even = 1.0 - odd;
    *ret_sin = (s * even + c * odd) * (1.0 - (double)(int32_t)(quarter & 2));
    *ret_cos = (c * even + s * odd) * (1.0 - (double)(int32_t)((quarter + 1) & 2));
}

#endif
