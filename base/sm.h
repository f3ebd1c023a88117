/* SPDX-License-Identifier: Apache-2.0 */
/* sm.h - state machines as tables: a state has a name, flags, and its set of legal next states. Every move goes
 * through sm_allowed(); tests walk every pair. */
#ifndef TITAN_BASE_SM_H
#define TITAN_BASE_SM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

#define SM_BIT(state) (UINT32_C(1) << (state))

enum { SM_INITIAL = 1, SM_FINAL = 2, SM_FAILURE = 4 };

struct sm_state {
    const char *name;
    uint32_t flags;
    uint32_t allowed; /* SM_BIT of every state that may follow */
};
struct sm {
    const char *name;
    const struct sm_state *states;
    int count; /* at most 32 */
};

bool sm_allowed(const struct sm *sm, int from, int to);
const char *sm_name(const struct sm *sm, int state); /* "?" outside the table */
/* Looks up a state by name; -1: no such state. */
int sm_parse(const struct sm *sm, const char *name);
bool sm_final(const struct sm *sm, int state);
/* Checks the table: one initial state, final states have no exit, every state is reachable. For tests. */
bool sm_valid(const struct sm *sm);

#endif
