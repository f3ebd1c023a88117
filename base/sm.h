/* SPDX-License-Identifier: Apache-2.0 */
/* sm.h - state machines as tables: a state has a name, flags, and the set of states it may move to. Every move goes
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
    uint32_t allowed; /* SM_BIT of every state it may move to */
};
struct sm {
    const char *name;
    const struct sm_state *states;
    int count; /* at most 32 */
};

bool sm_allowed(const struct sm *sm, int from, int to);
const char *sm_name(const struct sm *sm, int state); /* "?" outside the table */
/* State by name; -1 when there is none. */
int sm_parse(const struct sm *sm, const char *name);
bool sm_final(const struct sm *sm, int state);
/* The table is sound: one initial state, final states have no way out, every state is reachable. Used by tests. */
bool sm_valid(const struct sm *sm);

#endif
