/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sm.h"

#include <string.h>

static bool in_table(const struct sm *sm, int state)
{
    return state >= 0 && state < sm->count;
}

bool sm_allowed(const struct sm *sm, int from, int to)
{
    return in_table(sm, from) && in_table(sm, to) && (sm->states[from].allowed & SM_BIT(to));
}

const char *sm_name(const struct sm *sm, int state)
{
    return in_table(sm, state) && sm->states[state].name ? sm->states[state].name : "?";
}

int sm_parse(const struct sm *sm, const char *name)
{
    if (!name)
        return -1;
    for (int i = 0; i < sm->count; i++)
        if (sm->states[i].name && strcmp(sm->states[i].name, name) == 0)
            return i;
    return -1;
}

bool sm_final(const struct sm *sm, int state)
{
    return in_table(sm, state) && (sm->states[state].flags & SM_FINAL);
}

bool sm_valid(const struct sm *sm)
{
    if (sm->count < 1 || sm->count > 32)
        return false;
    uint32_t all = sm->count == 32 ? UINT32_MAX : SM_BIT(sm->count) - 1;
    uint32_t reached = 0;
    for (int i = 0; i < sm->count; i++) {
        const struct sm_state *s = &sm->states[i];
        if (!s->name || sm_parse(sm, s->name) != i || (s->allowed & ~all))
            return false;
        if ((s->flags & SM_FINAL) ? s->allowed != 0 : s->allowed == 0)
            return false;
        if (s->flags & SM_INITIAL) {
            if (reached)
                return false;
            reached = SM_BIT(i);
        }
    }
    for (uint32_t before = 0; before != reached;) {
        before = reached;
        for (int i = 0; i < sm->count; i++)
            if (reached & SM_BIT(i))
                reached |= sm->states[i].allowed;
    }
    return reached == all;
}
