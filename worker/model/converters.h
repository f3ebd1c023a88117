/* SPDX-License-Identifier: Apache-2.0 */
/* converters.h - chooses the linear layers that compute in eight bits, and how: the equivalent of TorchTitan's
 * converters "float8" and "mx", and SwitchBack (Wortsman et al. 2023, arXiv:2304.13013).
 *
 * The linear layers of attention and of feed-forward layers are converted, shared experts included. The head, the
 * embedding, the router and the experts' grouped products are not converted. A layer is left out if a side of its
 * matrix is not a multiple of 16, or if float8.filter_fqns names it. "auto_filter_small_kn" also leaves out the layers
 * that torchao measured to be slower in float8 (torchao/float8/float8_linear_utils.py). The rules use the shape of the
 * whole matrix, so all layouts convert the same layers.
 *
 *   recipe               y = x w^T                  dx = dy w                         dw = dy^T x
 *   tensorwise           x, w e4m3                  dy e5m2, w e4m3                   dy e5m2, x e4m3
 *   rowwise              x, w e4m3 by row           dy e4m3 by row, w by column       both e4m3 by column
 *   rowwise_with_gw_hp   x, w e4m3 by row           dy e4m3 by row, w e4m3            not in float8
 *   mxfp8_cublas         x, w e4m3 by blocks        dy, w e4m3 by blocks              both e4m3 by blocks
 *   scalify              as tensorwise, with static scales (worker/plan/scales.h): no pass looks for the largest
 *                        magnitudes of x and dy, and those of weights are looked for once a step, in the ranks' shards
 *   global               x int8 by row, w int8      dy int8 by row, w int8            not in int8
 *   vectorwise           x, w int8 by row           dy int8 by row, w by column       not in int8
 *   the last two with    the same                   the same                          dy, the values of x's codes
 *   mem_efficient
 *
 * By row or column: a scale for each row or column along the dimension of the sum; float8's scales are powers of
 * two. Otherwise the whole operand has one scale: the part of the matrix that is on this rank. By blocks: MXFP8
 * (base/float8.h), with blocks of 32 along the dimension of the sum. MXFP8 leaves out layers with a side that is not a
 * multiple of 32, and layers that mx.filter_fqns names. SwitchBack's variants, global and vectorwise, leave out layers
 * that switchback.filter_fqns names, and those with a side above INT8_DEPTH_MAX (worker/device/operations.h). */
#ifndef TITAN_WORKER_MODEL_CONVERTERS_H
#define TITAN_WORKER_MODEL_CONVERTERS_H

#include "base/recipe.h"
#include "worker/program/program.h"

enum linear_product { LINEAR_FORWARD, LINEAR_DGRAD, LINEAR_WGRAD, LINEAR_PRODUCTS };

/* Exponents of static scales, powers of two: of a layer's input and of the gradient of its output. */
struct product_powers {
    int8_t x, dy;
};

struct converters {
    uint32_t flags[LINEAR_PRODUCTS]; /* enum op_flag: flags of a converted layer */
    bool codes;                      /* weights with one scale are gathered as codes, if the recipe asks for it */
    bool keeps_codes;                /* inputs are kept for the weights' gradients as int8 codes of their rows */
    struct product_powers *powers;   /* per tensor, zeros at first (scales_choose); NULL: no static scales */
    bool converted[];                /* per tensor of the model */
};

/* *ret is owned by the caller (free()). It is NULL if the recipe converts nothing. */
titan_status converters_open(const struct recipe *recipe, const struct model *model, struct converters **ret,
                             struct titan_error *err) TITAN_MUST_USE;
/* Bits of the unit's weights that are gathered as codes, from its first tensor on. Latent attention's wkv_a has no bit
 * without static scales, because its two parts then have a scale each. converters NULL: no bits. */
uint64_t converters_coded(const struct converters *converters, const struct model *model, int unit);
/* Bits of the unit's weights whose scale all ranks find together as a step begins: with static scales all that are
 * converted, otherwise none. */
uint64_t converters_scaled(const struct converters *converters, const struct model *model, int unit);

#endif
