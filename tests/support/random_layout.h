/* SPDX-License-Identifier: Apache-2.0 */
/* random_layout.h - models, meshes and layouts drawn at random: dense layers and mixtures of experts, tensors cut by
 * rows, by columns, by experts and not at all, sizes that are no multiples of anything they need not be. */
#ifndef TITAN_TESTS_SUPPORT_RANDOM_LAYOUT_H
#define TITAN_TESTS_SUPPORT_RANDOM_LAYOUT_H

#include "worker/tensor/layout.h"

/* TITAN_TEST_SEED, or a new one; printed. */
unsigned random_seed(void);
int random_below(unsigned *seed, int n); /* 0 <= x < n */

/* model_close frees it. */
struct model *random_model(unsigned *seed);
/* Any legal one of at most world_max ranks. */
struct mesh random_mesh(unsigned *seed, int world_max);
/* On a random mesh, with random stages, in either order, canonical or not, with kinds of state that depend on the
 * model alone. */
struct layout *random_layout(unsigned *seed, const struct model *model, int world_max);
struct layout *random_layout_of(unsigned *seed, const struct model *model, int world_max, struct state_kinds kinds);
/* With kinds of state in blocks of codes. */
struct layout *random_coded_layout(unsigned *seed, const struct model *model, int world_max);
struct state_kinds adamw_kinds(void);
/* One line about it, for messages; static memory. */
const char *layout_text(const struct layout *layout);

#endif
