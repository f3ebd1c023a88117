/* SPDX-License-Identifier: Apache-2.0 */
/* recipe_conflicts.h - which settings of a run file do not go together: a row for each pair, with the reason.
 *
 * A row's texts are what is tested, what a refusal says, what `titanctl help --conflicts` prints, and what
 * docs/methods.md has (make docs). A setting is
 *     SECTION.KEY                                 another value than the key's default
 *     SECTION.KEY = VALUE                         TOML, as "int8", true or 1
 *     SECTION.KEY > NUMBER
 *     SECTION.KEY other than VALUE, VALUE and VALUE
 *     Muon, GaLore2          all              all but AdamW, Adam     an optimizer of the run is one of these
 * or a phrase of the table of phrases in recipe_conflicts.c. "A with B" holds where both hold.
 *
 * What is a matter of one key's value, or of numbers that must divide each other, is refused elsewhere
 * (recipe_resolve.c, recipe_mesh.c). */
#ifndef TITAN_BASE_RECIPE_CONFLICTS_H
#define TITAN_BASE_RECIPE_CONFLICTS_H

#include "base/buf.h"
#include "base/recipe.h"

struct recipe_conflict {
    const char *setting, *with, *reason; /* static; the reason ends with what to do instead */
};

extern const struct recipe_conflict recipe_conflicts[];
extern const int recipe_conflicts_count;

/* TITAN_EINVAL names the first row whose settings the recipe both has: "SETTING does not go with WITH: REASON", keys
 * with their values, optimizers as optimizer.name or rest. The recipe is resolved up to its numbers of workers. */
titan_status recipe_check_conflicts(const struct recipe *r, struct titan_error *err) TITAN_MUST_USE;
/* May a run take the optimizer's state of another run's checkpoint, written with the recipe `there`? Both are resolved.
 * False unless both parameter groups have the same rows, or checkpoint.accept_changed names "optimizer"; *why then gets
 * "optimizer.name = \"Lion\", there \"AdamW\"". */
bool recipe_continues_state(const struct recipe *r, const struct recipe *there, struct buf *why);

#endif
