/* SPDX-License-Identifier: Apache-2.0 */
/* plans.h - plans of recipes made from keys, as `titan-worker plan` makes them. */
#ifndef TITAN_TESTS_SUPPORT_PLANS_H
#define TITAN_TESTS_SUPPORT_PLANS_H

#include "worker/plan/plan.h"

struct planned {
    struct recipe recipe;
    struct model *model;
    struct plan *plan;
    struct program **programs; /* of all classes, checked */
    struct cost cost;
};

/* A recipe for `world` workers: sets ("section.key=value", NULL ends them; the first model.flavor) over defaults of 64
 * tokens and one sequence. Memory is not limited; machine "cpu" plans in fp32, others in bf16. */
titan_status planned_open(struct planned *ret, int world, const char *machine, const char *const *sets,
                          struct titan_error *err) TITAN_MUST_USE;
void planned_close(struct planned *p);
/* The program of a class as built: no pass has run, program_finish has not either. */
titan_status planned_draft(const struct planned *p, int class, struct program **ret,
                           struct titan_error *err) TITAN_MUST_USE;

#endif
