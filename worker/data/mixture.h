/* SPDX-License-Identifier: Apache-2.0 */
/* mixture.h - which window of which source a sample reads: a pure function of (seed, sample number).
 *
 * Samples all have seq_len tokens, so shares of samples are shares of tokens. 2^20 consecutive samples are a block, in
 * which source k has exactly c[k] samples, its rounded weight (largest remainders, sum 2^20). The block has 1024 rows
 * of 1024 samples. The samples are dealt to the rows so that every row has floor(c[k]/1024) samples of source k, or one
 * more:
 *   block B = g >> 20, row R = (g >> 10) & 1023, q = permute("data.row.<g >> 10>", g & 1023, 1024), slot = 1024 q + R
 *   source: the k with first[k] <= slot < first[k] + c[k], first the running sum of c
 *   its sample number n = B * c[k] + slot - first[k]
 * Sample n of a source with w windows reads window permute("data.pass.<n / w>", n mod w, w): every window once per
 * pass, in another order each pass. A mixture's source k has streams named "data.<k>.pass.<n / w>". permute:
 * rng_permute() with rng_key(seed, name). */
#ifndef TITAN_WORKER_DATA_MIXTURE_H
#define TITAN_WORKER_DATA_MIXTURE_H

#include <stdint.h>

#include "base/error.h"

#define MIXTURE_MAX 16 /* sources */
#define MIXTURE_BLOCK (UINT64_C(1) << 20)

struct mixture {
    int n;
    uint64_t seed;
    uint64_t windows[MIXTURE_MAX], count[MIXTURE_MAX]; /* count: samples per block */
    /* For a run that had another mixture before. first: number of the first sample of this mixture. from: number of
     * samples of each source that were read before. In the formulas, g counts from `first` and n from `from`. */
    uint64_t first, from[MIXTURE_MAX];
};

struct mixture_pick {
    int source;
    uint64_t window;
};

/* weights are relative. If all weights are 0, they are in proportion to the sources' windows. TITAN_EINVAL: a weight is
 * not positive, or too small for one sample in a block. */
titan_status mixture_init(struct mixture *m, uint64_t seed, int n, const uint64_t *windows, const double *weights,
                          struct titan_error *err) TITAN_MUST_USE;
struct mixture_pick mixture_pick(const struct mixture *m, uint64_t g);

#endif
