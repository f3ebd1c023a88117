/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator by itself: `make sim`.
 *   SEED=n         this schedule only (KEEP=1,4 with only these of its faults, KEEP=none with none)
 *   ROUNDS=n       that many, from FIRST=n on (default: 20000 from 1)
 *   PROCESSES=n    side by side (default: as many as there are processors)
 *   TRACE=1        with SEED: print what happens
 *   SEEDS=a-b      print a line for each: seed, events, hash of what was delivered, hash of what was stored
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

/* For before and after: what leaves these lines as they are has not changed what coordinator, agents and workers do. */
static int traces(const char *range)
{
    char *end;
    uint64_t from = strtoull(range, &end, 10), to = *end == '-' ? strtoull(end + 1, &end, 10) : from;
    int violations = 0;
    if (*end || from == 0 || to < from) {
        fprintf(stderr, "SEEDS='%s': expected 1-2000\n", range);
        return 2;
    }
    for (uint64_t seed = from; seed <= to; seed++) {
        static struct plan p;
        struct outcome o;
        plan_make(&p, seed);
        cluster_run(&p, TRACE_OFF, &o);
        printf("%llu %llu %016llx %016llx\n", LL(seed), LL(o.events), LL(o.hash), LL(o.hash_stored));
        violations += o.violated;
    }
    return violations > 0;
}

int main(void)
{
    const char *range = getenv("SEEDS");
    if (range && *range)
        return traces(range);
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
