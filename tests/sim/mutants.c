/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/mutants.h"

#include <signal.h>
#include <string.h>

#include "base/mutant.h"

#ifdef TITAN_MUTANTS
static const struct {
    const char *name, *what;
} mutants[MUTANT_COUNT] = {
#define ROW(name_, what_) [MUTANT_##name_] = {#name_, what_},
    MUTANTS(ROW)
#undef ROW
};

enum { ASSERTED_LEAST = 3 }; /* of all: so many are found by an assertion of the programs, at its line */

/* Is it found? *asserted counts those that end at an assertion, which is on standard error. */
static bool hunt(FILE *out, enum mutant m, const struct rounds *r, int *asserted)
{
    static struct rounds_result result;
    titan_mutant = m;
    rounds_run(r, out, &result);
    titan_mutant = MUTANT_NONE;
    uint64_t needed = result.failed ? result.passed + result.failed : 0;
    fprintf(out, "# %-22s %7llu  %-4s %s\n", mutants[m].name, LL(needed), needed ? result.invariant : "-",
            mutants[m].what);
    if (needed)
        fprintf(out, "#     SEED=%llu %s\n", LL(result.failed_seeds[0]), result.text);
    fflush(out);
    *asserted += needed && result.end_signal == SIGABRT;
    return needed > 0;
}

int mutants_run(FILE *out, const struct rounds *rounds, const char *only)
{
    struct rounds r = *rounds;
    static struct rounds_result sane;
    int found = 0, missed = 0, asserted = 0;
    r.quiet = r.stop_at_first = true;
    rounds_run(&r, out, &sane);
    fprintf(out, "# without a mutant: %llu schedules, %llu violations\n", LL(sane.passed + sane.failed),
            LL(sane.failed));
    fprintf(out, "# %-22s %s\n", "mutant", "schedules until it is found, invariant");
    for (int m = 1; m < MUTANT_COUNT; m++) {
        if (only && *only && strcmp(only, mutants[m].name) != 0)
            continue;
        if (hunt(out, (enum mutant)m, &r, &asserted))
            found++;
        else
            missed++;
    }
    fprintf(out, "# %d of %d end at an assertion of the programs; others are seen by the simulation's invariants\n",
            asserted, found);
    missed += sane.failed > 0;
    missed += asserted < ASSERTED_LEAST && !(only && *only);
    fprintf(out, "%d passed, %d failed\n", found, missed);
    return missed > 0;
}
#else
int mutants_run(FILE *out, const struct rounds *rounds, const char *only)
{
    (void)rounds;
    (void)only;
    fprintf(out, "this build has no mutants: make sim-mutants\n");
    return 2;
}
#endif
