/* SPDX-License-Identifier: Apache-2.0 */
/* jacobi.h - the pairs and angles of the operation jacobi, the same on every device. */
#ifndef TITAN_WORKER_DEVICE_JACOBI_H
#define TITAN_WORKER_DEVICE_JACOBI_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* A device defines how its functions are declared. */
#ifndef JACOBI_INLINE
#define JACOBI_INLINE static inline
#endif

#define JACOBI_ORTHOGONAL 1e-6 /* a pair's product over both norms, from which on it is rotated */

/* The rows of one of players / 2 pairs in one of players - 1 rounds, *ret_first < *ret_second. All pairs of players
 * meet once in these rounds, and the pairs of a round have no row in common. players is even. */
JACOBI_INLINE void jacobi_pair(int64_t players, int64_t round, int64_t pair, int64_t *ret_first, int64_t *ret_second)
{
    const int64_t others = players - 1, one = pair == 0 ? others : (round + pair) % others;
    const int64_t two = (round + others - pair) % others;

    *ret_first = one < two ? one : two;
    *ret_second = one < two ? two : one;
}

/* (c first - s second, s first + c second) are orthogonal. */
struct jacobi_angle {
    double c, s;
    bool turns; /* false: the rows stay as they are */
};

/* The smaller angle, of two rows with squared norms aa and bb, and product ab (Rutishauser 1966). With larger angles,
 * that sort the rows, twice as many turns are needed. */
JACOBI_INLINE struct jacobi_angle jacobi_angle_of(double aa, double bb, double ab)
{
    if (!(fabs(ab) > JACOBI_ORTHOGONAL * sqrt(aa) * sqrt(bb)))
        return (struct jacobi_angle){1, 0, false};
    const double zeta = (bb - aa) / (2 * ab), size = zeta < 0 ? -zeta : zeta;
    const double tangent = (zeta < 0 ? -1 : 1) / (size + sqrt(1 + zeta * zeta)), c = 1 / sqrt(1 + tangent * tangent);

    return (struct jacobi_angle){c, c * tangent, true};
}

#endif
