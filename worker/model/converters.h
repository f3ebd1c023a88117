/* SPDX-License-Identifier: Apache-2.0 */
/* converters.h - which linear layers compute in float8, and how: what TorchTitan's converters "float8" and "mx" do to a
 * model.
 *
 * The linear layers of attention and of feed-forward layers, shared experts included; not the head, the embedding, the
 * router, nor the experts' grouped products. One is left out when a side of its matrix is no multiple of 16, or when
 * float8.filter_fqns names it; "auto_filter_small_kn" leaves out those that torchao measured to be slower in float8
 * (torchao/float8/float8_linear_utils.py). Shapes are those of the whole matrix, so all layouts convert the same
 * layers.
 *
 *   recipe               y = x w^T                  dx = dy w                         dw = dy^T x
 *   tensorwise           x, w e4m3                  dy e5m2, w e4m3                   dy e5m2, x e4m3
 *   rowwise              x, w e4m3 by row           dy e4m3 by row, w by column       both e4m3 by column
 *   rowwise_with_gw_hp   x, w e4m3 by row           dy e4m3 by row, w e4m3            not in float8
 *   mxfp8_cublas         x, w e4m3 by blocks        dy, w e4m3 by blocks              both e4m3 by blocks
 *
 * By row or column: along the dimension that is summed over, with scales that are powers of two; otherwise a scale for
 * the whole operand, as it lies on its rank. By blocks: MXFP8 (base/float8.h), of 32 along the dimension that is summed
 * over; layers with a side that is no multiple of 32 are left out, and those that mx.filter_fqns names. */
#ifndef TITAN_WORKER_MODEL_CONVERTERS_H
#define TITAN_WORKER_MODEL_CONVERTERS_H

#include "base/recipe.h"
#include "worker/program/program.h"

enum linear_product { LINEAR_FORWARD, LINEAR_DGRAD, LINEAR_WGRAD, LINEAR_PRODUCTS };

struct converters {
    uint32_t flags[LINEAR_PRODUCTS]; /* enum op_flag, of a converted layer */
    bool codes;                      /* weights are gathered as codes: tensorwise, where the recipe wants that */
    bool converted[];                /* of the model's tensors */
};

/* *ret owned, freed with free(); NULL where the recipe converts nothing. */
titan_status converters_open(const struct recipe *recipe, const struct model *model, struct converters **ret,
                             struct titan_error *err) TITAN_MUST_USE;
/* Which of a unit's weights are gathered as codes: bits, from its first tensor on. Not latent attention's wkv_a: its
 * two parts have a scale each. converters NULL: none. */
uint64_t converters_coded(const struct converters *converters, const struct model *model, int unit);

#endif
