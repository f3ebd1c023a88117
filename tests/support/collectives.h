/* SPDX-License-Identifier: Apache-2.0 */
/* collectives.h - every operation of a communicator against plain loops: random sequences of operations, sizes, types,
 * in place and not. */
#ifndef TITAN_TESTS_SUPPORT_COLLECTIVES_H
#define TITAN_TESTS_SUPPORT_COLLECTIVES_H

#include "tests/support/ranks.h"

/* TITAN_TEST_SEED, or a new one. */
uint64_t collectives_seed(void);
/* Member ctx->rank of ctx->world on ctx->comm: that many operations of at most count_max elements a member, the same
 * ones on all members that pass the same seed. */
void collectives_run(struct rank_context *ctx, uint64_t seed, int operations, size_t count_max);

#endif
