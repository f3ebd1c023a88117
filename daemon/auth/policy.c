/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/auth/policy.h"

#include <string.h>

#include "base/error.h"

enum { READS, AUDIT };

static const struct row {
    const char *method;
    char cells[POLICY_ROLES + 1];
    bool audit;
} rows[POLICY_METHODS] = {[POLICY_NOTHING] = {NULL, "-------", READS},
#define X(name, method, cells, audit) [POLICY_##name] = {method, cells, audit},
                          POLICY_TABLE(X)
#undef X
};

/* Asserts that every row has a cell for each role. */
#define X(name, method, cells, audit)                                                                                  \
    _Static_assert(sizeof(cells) == POLICY_ROLES + 1, "the row of " method " has another number of cells");
POLICY_TABLE(X)
#undef X

static const struct row *row_of(unsigned method)
{
    return &rows[method < POLICY_METHODS ? method : POLICY_NOTHING];
}

static enum policy_cell cell_of(char letter)
{
    switch (letter) {
    case 'o':
        return POLICY_OWN;
    case 'v':
        return POLICY_VIEW;
    case 'y':
        return POLICY_YES;
    default:
        return POLICY_NO;
    }
}

enum policy_cell policy_look_up(unsigned method, unsigned roles)
{
    titan_assert(roles < POLICY_BIT(POLICY_ROLES));
    const struct row *row = row_of(method);
    enum policy_cell most = POLICY_NO;
    for (unsigned role = 0; role < POLICY_ROLES; role++) {
        enum policy_cell cell = cell_of(row->cells[role]);
        titan_assert(cell != POLICY_NO || row->cells[role] == '-');
        if ((roles & POLICY_BIT(role)) && cell > most)
            most = cell;
    }
    return most;
}

const char *policy_method(unsigned method)
{
    return row_of(method)->method;
}

const char *policy_method_short(unsigned method)
{
    const char *full = policy_method(method), *slash = full ? strrchr(full, '/') : NULL;
    return slash ? slash + 1 : "an unknown method";
}

bool policy_audits(unsigned method)
{
    return row_of(method)->audit;
}

const char *policy_needs(unsigned method)
{
    static const struct {
        enum policy_role least;
        const char *text;
    } ranks[] = {{POLICY_USER, "a user"},
                 {POLICY_OPERATOR, "an operator or admin"},
                 {POLICY_ADMIN, "an admin"},
                 {POLICY_NODE, "a node"}};
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++)
        if (policy_look_up(method, POLICY_BIT(ranks[i].least)) != POLICY_NO)
            return ranks[i].text;
    return "nobody";
}
