/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer_conflicts.h - what optimizers do not go together with, a row for each reason. docs/methods.md has the same
 * rows (tests/docs/test_conflicts.py). */
#ifndef TITAN_BASE_OPTIMIZER_CONFLICTS_H
#define TITAN_BASE_OPTIMIZER_CONFLICTS_H

#include "base/buf.h"
#include "base/optimizers.h"

struct optimizer_conflict {
    const char *optimizers, *with, *reason; /* as docs/methods.md has them; static */
    /* Does the resolved recipe have it? o: one of the recipe's rows; rest: o is the row of other parameters than
     * layers' matrices. */
    bool (*there)(const struct recipe *r, const struct optimizer *o, bool rest);
};

extern const struct optimizer_conflict optimizer_conflicts[];
extern const int optimizer_conflicts_count;

/* TITAN_EINVAL: names the key, what it does not go with, and the reason. The recipe is resolved. */
titan_status optimizer_check(const struct recipe *r, struct titan_error *err) TITAN_MUST_USE;
/* May a run take the optimizer's state of another run's checkpoint, written with the recipe `there`? Both are resolved.
 * False unless both parameter groups have the same rows, or checkpoint.accept_changed names "optimizer"; *why then gets
 * "optimizer.name = \"Lion\", there \"AdamW\"". */
bool optimizer_continues(const struct recipe *r, const struct recipe *there, struct buf *why);

#endif
