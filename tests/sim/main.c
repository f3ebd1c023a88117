/* The simulator by itself: `make sim`.
 *   SEED=n         this schedule only (KEEP=1,4 with only these of its faults, KEEP=none with none)
 *   ROUNDS=n       that many, from FIRST=n on (default: 20000 from 1)
 *   PROCESSES=n    side by side (default: as many as there are processors)
 *   TRACE=1        with SEED: print what happens
 *   MUTANTS=NAME   in a build with -DTITAN_MUTANTS: is that deliberate bug found ("" = is each)? */
#include "tests/sim/mutants.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t number(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : fallback;
}

static void keep_named(struct plan *p, const char *list)
{
    uint64_t keep = 0;
    for (const char *at = list; strcmp(list, "none") != 0 && at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        keep |= UINT64_C(1) << (strtoul(at, NULL, 10) & 63);
    plan_keep(p, keep);
}

static int one(uint64_t seed)
{
    static struct plan p;
    struct outcome o;
    const char *keep = getenv("KEEP"), *trace = getenv("TRACE");
    plan_make(&p, seed);
    printf("# %d nodes, %d jobs, %d faults\n", p.nodes, p.jobs, p.n_faults);
    for (int i = 0; i < p.n_faults; i++)
        plan_print_fault(stdout, i, &p.faults[i]);
    if (keep && *keep)
        keep_named(&p, keep);
    cluster_run(&p, trace && *trace && *trace != '0' ? TRACE_PRINT : TRACE_OFF, &o);
    printf("# %llu events, trace %016llx\n", LL(o.events), LL(o.hash));
    if (o.violated)
        printf("# %s is violated at %lld ms: %s\n", o.invariant, (long long)(o.when / MS), o.text);
    printf("%d passed, %d failed\n", !o.violated, o.violated);
    return o.violated;
}

int main(void)
{
    uint64_t seed = number("SEED", 0);
    if (seed)
        return one(seed);
    struct rounds r = {.first = number("FIRST", 1),
                       .count = number("ROUNDS", 20000),
                       .processes = (int)number("PROCESSES", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN)),
                       .quiet = number("QUIET", 0) != 0};
    if (getenv("MUTANTS"))
        return mutants_run(stdout, &r, getenv("MUTANTS"));
    static struct rounds_result result;
    rounds_run(&r, stdout, &result);
    rounds_print(stdout, &r, &result);
    return result.failed > 0;
}
