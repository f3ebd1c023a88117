/* SPDX-License-Identifier: Apache-2.0 */
/* The fewest faults that still show a violation: chunks of the list are left out, ever smaller ones, as long as the
 * same invariant breaks (delta debugging: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input",
 * IEEE TSE 28(2), 2002; complements only). Everything else keeps the seed. */
#include "tests/sim/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"

#define TRIES 300
#define LINES_MAX 20000

static void send_outcome(int fd, struct outcome *o)
{
    struct outcome plain = *o;
    size_t len = o->last_lines ? strlen(o->last_lines) : 0;
    plain.last_lines = NULL;
    if (write(fd, &plain, sizeof(plain)) == sizeof(plain) && len && write(fd, o->last_lines, len) < 0)
        _exit(1);
}

static void read_outcome(int fd, struct outcome *ret)
{
    size_t got = 0;
    ssize_t n;
    while (got < sizeof(*ret) && (n = read(fd, (char *)ret + got, sizeof(*ret) - got)) > 0)
        got += (size_t)n;
    if (got < sizeof(*ret)) {
        *ret = (struct outcome){.violated = true, .invariant = "end"};
        return;
    }
    char *text = calloc(1, LINES_MAX + 1);
    titan_assert(text);
    for (got = 0; got < LINES_MAX && (n = read(fd, text + got, LINES_MAX - got)) > 0; got += (size_t)n)
        ;
    ret->last_lines = text;
}

void run_apart(const struct plan *p, enum trace_mode trace, struct outcome *ret)
{
    int pipes[2], status = 0;
    titan_assert(pipe(pipes) == 0);
    fflush(NULL);
    pid_t pid = fork();
    titan_assert(pid >= 0);
    if (pid == 0) {
        (void)close(pipes[0]);
        (void)setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = 60}, NULL);
        cluster_run(p, trace, ret);
        send_outcome(pipes[1], ret);
        fflush(NULL);
        _exit(0);
    }
    (void)close(pipes[1]);
    read_outcome(pipes[0], ret);
    (void)close(pipes[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status)) {
        *ret = (struct outcome){.violated = true, .invariant = "end"};
        (void)snprintf(ret->text, sizeof(ret->text), "the process ended by signal %d (%s)", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
    }
}

uint64_t shrink_keep(int n, bool (*fails)(uint64_t keep, void *data), void *data)
{
    uint64_t keep = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
    int tries = 0;
    for (int chunk = MAX(n / 2, 1); chunk >= 1 && tries < TRIES;) {
        bool less = false;
        for (int from = 0; from < n && tries < TRIES; from += chunk) {
            uint64_t without = keep;
            for (int i = from; i < from + chunk && i < n; i++)
                without &= ~(UINT64_C(1) << i);
            if (without == keep)
                continue;
            tries++;
            if (fails(without, data)) {
                keep = without;
                less = true;
            }
        }
        if (chunk == 1 && !less)
            break;
        chunk = chunk > 1 ? chunk / 2 : 1;
    }
    return keep;
}

struct violation {
    const struct plan *whole;
    const char *invariant;
};

static bool still_fails(uint64_t keep, void *data)
{
    const struct violation *v = data;
    struct plan p = *v->whole;
    struct outcome o;
    plan_keep(&p, keep);
    run_apart(&p, TRACE_OFF, &o);
    free(o.last_lines);
    return o.violated && strcmp(o.invariant, v->invariant) == 0;
}

static void print_kept(FILE *out, const struct plan *whole, uint64_t keep)
{
    for (int i = 0; i < whole->n_faults; i++)
        if (keep >> i & 1)
            plan_print_fault(out, i, &whole->faults[i]);
    if (!keep)
        fprintf(out, "#   none: it happens undisturbed\n");
}

void shrink_and_print(FILE *out, uint64_t seed, const struct outcome *first)
{
    static struct plan whole, p;
    struct outcome o;
    char list[256] = "";
    plan_make(&whole, seed);
    struct violation v = {&whole, first->invariant};
    uint64_t keep = shrink_keep(whole.n_faults, still_fails, &v);
    p = whole;
    plan_keep(&p, keep);
    run_apart(&p, TRACE_KEEP, &o);
    for (int i = 0; i < whole.n_faults; i++)
        if (keep >> i & 1)
            (void)snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%d", *list ? "," : "", i);
    fprintf(out, "# %s is violated at %lld ms: %s\n", first->invariant, (long long)(first->when / MS), first->text);
    fprintf(out, "#   again:  make sim SEED=%llu TRACE=1\n", LL(seed));
    fprintf(out, "#   fewest faults that show it, %d of %d:  make sim SEED=%llu KEEP=%s TRACE=1\n", p.n_faults,
            whole.n_faults, LL(seed), *list ? list : "none");
    print_kept(out, &whole, keep);
    if (o.violated)
        fprintf(out, "#   then %s: %s\n", o.invariant, o.text);
    fprintf(out, "#   its last events:\n");
    for (char *line = o.last_lines ? strtok(o.last_lines, "\n") : NULL; line; line = strtok(NULL, "\n"))
        fprintf(out, "#     %s\n", line);
    free(o.last_lines);
}
