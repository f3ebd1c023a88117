/* SPDX-License-Identifier: Apache-2.0 */
/* checker.h - what check*.c share for the proof over one program (check.h). Private to check*.c. */
#ifndef TITAN_WORKER_PLAN_CHECKER_H
#define TITAN_WORKER_PLAN_CHECKER_H

#include <stdlib.h>

#include "worker/plan/check.h"

#define NONE (-1)

struct checker {
    const struct program *p;
    const struct model *model;
    struct titan_error *err; /* not NULL */
    int index;               /* index of the current action; NONE: no action */
    const int *first, *last; /* per buffer: first and last action that touch it; NONE: untouched */
};

/* Fills the error with the reason and the place. The macro's value is the status to return. */
#define REFUSE(c, ...) (titan_fail((c)->err, TITAN_EBUG, __VA_ARGS__), checker_where(c))
titan_status checker_where(const struct checker *c);
static inline titan_status checker_no_memory(const struct checker *c)
{
    return titan_fail(c->err, TITAN_ENOMEM, "checking a program: out of memory");
}

/* check_form.c: every action by itself. */
titan_status check_form(struct checker *c);
/* check_values.c: reads and writes in order; what every execution of a unit does. */
titan_status check_values(struct checker *c);
/* check_gradients.c: from weight gradients to the update. */
titan_status check_gradients(struct checker *c);
/* check_memory.c: what lies where, and what waits for what. */
titan_status check_memory(struct checker *c);

#endif
