/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/rounds.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define PROCESSES_MAX 16
#define AGAIN_EVERY 50  /* every so many schedules one is run twice */
#define PRINTED_WHOLE 4 /* violations of one process that are shrunk */
#define STUCK_S 60      /* of a processor for one schedule */

/* One process's share, in memory that outlives it. */
struct share {
    uint64_t next, passed, failed, again;
    uint64_t failed_seeds[ROUNDS_FAILED_MAX];
    uint64_t first_failed;
    char invariant[8], text[600];
    int end_signal; /* of the first failure */
    volatile bool *stop;
    struct totals totals;
};

static void note_failure(struct share *s, uint64_t seed, const struct outcome *o)
{
    if (s->failed < ROUNDS_FAILED_MAX)
        s->failed_seeds[s->failed] = seed;
    if (s->failed == 0) {
        s->first_failed = seed;
        memcpy(s->invariant, o->invariant, sizeof(s->invariant));
        memcpy(s->text, o->text, sizeof(s->text));
    }
    s->failed++;
}

static void tell(FILE *out, const struct rounds *r, const struct share *s, uint64_t seed, const struct outcome *o)
{
    char *text = NULL;
    size_t len = 0;
    if (r->quiet)
        return;
    FILE *f = open_memstream(&text, &len);
    titan_assert(f);
    if (s->failed <= PRINTED_WHOLE)
        shrink_and_print(f, seed, o);
    else
        fprintf(f, "# SEED=%llu: %s is violated: %s\n", LL(seed), o->invariant, o->text);
    fclose(f);
    fwrite(text, 1, len, out);
    fflush(out);
    free(text);
}

static void run_one(FILE *out, const struct rounds *r, struct share *s, uint64_t seed)
{
    static struct plan p;
    struct outcome o, twin;
    plan_make(&p, seed);
    (void)setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = STUCK_S}, NULL);
    cluster_run(&p, TRACE_OFF, &o);
    if (!o.violated && seed % AGAIN_EVERY == 0) {
        cluster_run(&p, TRACE_OFF, &twin);
        s->again++;
        if (twin.hash != o.hash) {
            o.violated = true;
            (void)snprintf(o.invariant, sizeof(o.invariant), "sim");
            (void)snprintf(o.text, sizeof(o.text), "two runs of one seed differ");
        }
    }
    (void)setitimer(ITIMER_PROF, &(struct itimerval){0}, NULL);
    if (!o.violated) {
        s->passed++;
        return;
    }
    note_failure(s, seed, &o);
    tell(out, r, s, seed, &o);
}

static void run_share(FILE *out, const struct rounds *r, struct share *s)
{
    totals = &s->totals;
    while (s->next < r->first + r->count && !(r->stop_at_first && *s->stop)) {
        run_one(out, r, s, s->next);
        s->next += (uint64_t)r->processes;
        if (s->failed)
            *s->stop = true;
    }
}

static pid_t start(FILE *out, const struct rounds *r, struct share *s)
{
    fflush(NULL);
    pid_t pid = fork();
    titan_assert(pid >= 0);
    if (pid == 0) {
        run_share(out, r, s);
        fflush(NULL);
        _exit(0);
    }
    return pid;
}

/* Its process died in the schedule it was at: that is a failure; the rest go on in another. */
static void bury(FILE *out, const struct rounds *r, struct share *s, int signal)
{
    struct outcome o = {.violated = true, .invariant = "end"};
    (void)snprintf(o.text, sizeof(o.text), "the process ended by signal %d (%s)", signal, strsignal(signal));
    s->end_signal = s->failed == 0 ? signal : s->end_signal;
    note_failure(s, s->next, &o);
    tell(out, r, s, s->next, &o);
    s->next += (uint64_t)r->processes;
    *s->stop = true;
}

static void add_totals(struct totals *to, const struct totals *from)
{
    uint64_t *a = (uint64_t *)to;
    const uint64_t *b = (const uint64_t *)from;
    for (size_t i = 0; i < sizeof(*to) / sizeof(*a); i++)
        a[i] += b[i];
}

void rounds_run(const struct rounds *r, FILE *out, struct rounds_result *ret)
{
    size_t bytes = sizeof(struct share) * PROCESSES_MAX + sizeof(bool);
    struct share *shares = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[PROCESSES_MAX];
    int n = r->processes, left = n;
    titan_assert(shares != MAP_FAILED && n >= 1 && n <= PROCESSES_MAX);
    int64_t began = clock_mono_ns();
    for (int i = 0; i < n; i++) {
        shares[i].next = r->first + (uint64_t)i;
        shares[i].stop = (volatile bool *)(shares + PROCESSES_MAX);
        pids[i] = start(out, r, &shares[i]);
    }
    while (left > 0) {
        int status = 0;
        pid_t pid = waitpid(-1, &status, 0);
        int i = 0;
        while (i < n && pids[i] != pid)
            i++;
        if (i == n)
            continue;
        left--;
        if (WIFSIGNALED(status)) {
            bury(out, r, &shares[i], WTERMSIG(status));
            pids[i] = start(out, r, &shares[i]);
            left++;
        }
    }
    memset(ret, 0, sizeof(*ret));
    ret->seconds = (double)(clock_mono_ns() - began) * 1e-9;
    uint64_t first = UINT64_MAX;
    for (int i = 0; i < n; i++) {
        const struct share *s = &shares[i];
        ret->passed += s->passed;
        ret->again += s->again;
        for (uint64_t k = 0; k < s->failed && k < ROUNDS_FAILED_MAX; k++)
            if (ret->failed + k < ROUNDS_FAILED_MAX)
                ret->failed_seeds[ret->failed + k] = s->failed_seeds[k];
        ret->failed += s->failed;
        if (s->failed && s->first_failed < first) {
            first = s->first_failed;
            memcpy(ret->invariant, s->invariant, sizeof(ret->invariant));
            memcpy(ret->text, s->text, sizeof(ret->text));
            ret->end_signal = s->end_signal;
        }
        add_totals(&ret->totals, &s->totals);
    }
    (void)munmap(shares, bytes);
}

void rounds_print(FILE *out, const struct rounds *r, const struct rounds_result *result)
{
    const struct totals *t = &result->totals;
    fprintf(out, "# seeds %llu to %llu: %llu schedules in %.1f s, %.0f a second in %d processes; %llu run twice\n",
            LL(r->first), LL(r->first + r->count - 1), LL(result->passed + result->failed), result->seconds,
            (double)(result->passed + result->failed) / result->seconds, r->processes, LL(result->again));
    int column = 0;
#define PRINT(name) fprintf(out, "%s%s %llu", column++ % 8 ? ", " : column == 1 ? "# " : "\n# ", #name, LL(t->name));
    TOTALS(PRINT)
#undef PRINT
    fprintf(out, "\n");
    for (int k = 0; k < FAULT_KINDS; k++)
        fprintf(out, "%s%s %llu", k % 6 ? ", " : k ? "\n# " : "# struck: ", fault_names[k], LL(t->struck[k]));
    fprintf(out, "\n");
    for (uint64_t i = 0; i < result->failed && i < ROUNDS_FAILED_MAX; i++)
        fprintf(out, "%s%llu", i ? " " : "# failed seeds: ", LL(result->failed_seeds[i]));
    fprintf(out, "%s%llu passed, %llu failed\n", result->failed ? "\n" : "", LL(result->passed), LL(result->failed));
}
