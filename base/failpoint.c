/* SPDX-License-Identifier: Apache-2.0 */
/* failpoint.c - the armed failpoints. This file is in an archive outside the programs' own archives. A program with
 * failpoints links it by name. */
#include "base/failpoint.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"

#define POINTS_MAX 16
#define NAME_MAX_BYTES 64

enum effect { EFFECT_KILL, EFFECT_STOP, EFFECT_HANG, EFFECT_SLEEP, EFFECT_EXIT, EFFECT_FAIL, EFFECT_CALL };

struct point {
    char name[NAME_MAX_BYTES];
    enum effect effect;
    unsigned number;     /* milliseconds, or an exit code */
    titan_status status; /* result of the call */
    int rank;            /* -1: any */
    uint64_t at, passed;
    bool always; /* from the Nth pass on */
};

static struct {
    pthread_mutex_t lock; /* guards all fields below except armed */
    atomic_int armed;     /* -1: the environment was not read yet */
    struct point points[POINTS_MAX];
    int n;
    titan_status (*fn)(void *arg, const char *name, struct titan_error *err);
    void *arg;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .armed = -1};

static bool take_number(const char **at, uint64_t *ret)
{
    char *end;
    *ret = strtoull(*at, &end, 10);
    const bool found = end != *at;
    *at = end;
    return found;
}

static bool take_effect(const char **at, struct point *p)
{
    static const char *const words[] = {"kill", "stop", "hang", "sleep:", "exit:", "fail", "call"};
    static const titan_status statuses[] = {
#define X(name, value, text, grpc, code) TITAN_##name,
        TITAN_STATUS_MAP(X)
#undef X
    };
    size_t effect = 0;
    uint64_t number = 0;
    while (effect < ARRAY_SIZE(words) && strncmp(*at, words[effect], strlen(words[effect])) != 0)
        effect++;
    if (effect == ARRAY_SIZE(words))
        return false;
    *at += strlen(words[effect]);
    p->effect = (enum effect)effect;
    if ((p->effect == EFFECT_SLEEP || p->effect == EFFECT_EXIT) && !take_number(at, &number))
        return false;
    p->number = (unsigned)MIN(number, UINT64_C(3600000));
    if (p->effect != EFFECT_FAIL || **at != ':')
        return true;

    const size_t length = strcspn(++*at, ",@");
    for (size_t i = 1; i < ARRAY_SIZE(statuses); i++) {
        const char *name = titan_status_name(statuses[i]);
        if (strlen(name) == length && strncmp(*at, name, length) == 0) {
            p->status = statuses[i];
            *at += length;
            return true;
        }
    }
    return false;
}

/* "NAME[%RANK]=EFFECT[@N[+]]". */
static bool take_point(const char **at, struct point *p)
{
    const size_t length = strcspn(*at, "%=,");
    uint64_t rank;
    if (length == 0 || length >= sizeof p->name)
        return false;
    *p = (struct point){.at = 1, .rank = -1, .status = TITAN_EPEER};
    memcpy(p->name, *at, length);
    *at += length;
    if (**at == '%') {
        (*at)++;
        if (!take_number(at, &rank) || rank > INT16_MAX)
            return false;
        p->rank = (int)rank;
    }
    if (*(*at)++ != '=' || !take_effect(at, p))
        return false;
    if (**at == '@') {
        (*at)++;
        if (!take_number(at, &p->at) || p->at == 0)
            return false;
        p->always = **at == '+';
        *at += p->always;
    }
    return **at == '\0' || **at == ',';
}

/* The caller holds the lock. */
static titan_status arm(const char *text, struct titan_error *err)
{
    const char *at = text ? text : "";
    all.n = 0;
    while (*at) {
        if (all.n == POINTS_MAX || !take_point(&at, &all.points[all.n])) {
            all.n = 0;
            atomic_store(&all.armed, 0);
            return titan_fail(err, TITAN_EINVAL, "failpoints '%s': expected NAME[%%RANK]=EFFECT[@N[+]],...", text);
        }
        all.n++;
        at += *at == ',';
    }
    atomic_store(&all.armed, all.n > 0);
    titan_assert(all.n >= 0 && all.n <= POINTS_MAX);
    return TITAN_OK;
}

titan_status failpoint_set(const char *text, struct titan_error *err)
{
    (void)pthread_mutex_lock(&all.lock);
    const titan_status status = arm(text, err);
    (void)pthread_mutex_unlock(&all.lock);
    return status;
}

void failpoint_on_call(titan_status (*fn)(void *arg, const char *name, struct titan_error *err), void *arg)
{
    (void)pthread_mutex_lock(&all.lock);
    all.fn = fn;
    all.arg = arg;
    (void)pthread_mutex_unlock(&all.lock);
}

static titan_status pass(const char *name, struct titan_error *err)
{
    struct point p = {0};

    if (atomic_load_explicit(&all.armed, memory_order_relaxed) < 0) {
        struct titan_error why = {0};
        struct log log;
        (void)pthread_mutex_lock(&all.lock);
        const titan_status status = atomic_load(&all.armed) < 0 ? arm(getenv("TITAN_FAILPOINTS"), &why) : TITAN_OK;
        (void)pthread_mutex_unlock(&all.lock);
        log_init(&log, "failpoint", "%s", "");
        if (status != TITAN_OK)
            tlog_error(&log, "TITAN_FAILPOINTS is not understood", "reason=\"%s\"", why.msg);
    }
    if (atomic_load_explicit(&all.armed, memory_order_relaxed) == 0)
        return TITAN_OK;

    /* Finds the armed point that fires at this pass. */
    bool found = false;

    (void)pthread_mutex_lock(&all.lock);
    for (int i = 0; i < all.n; i++) {
        struct point *of = &all.points[i];
        if (strcmp(of->name, name) != 0 || (of->rank >= 0 && of->rank != atomic_load(&failpoint_rank)))
            continue;
        of->passed++; /* counts passes of the selected rank only */
        if (of->always ? of->passed < of->at : of->passed != of->at)
            continue;
        p = *of;
        found = true;
    }
    (void)pthread_mutex_unlock(&all.lock);
    if (!found)
        return TITAN_OK;
    switch (p.effect) {
    case EFFECT_KILL:
        (void)raise(SIGKILL);
        break;
    case EFFECT_STOP:
        (void)raise(SIGSTOP);
        break;
    case EFFECT_HANG:
        for (;;)
            (void)pause();
    case EFFECT_SLEEP:
        (void)usleep(p.number * 1000);
        break;
    case EFFECT_EXIT:
        _exit((int)p.number);
    case EFFECT_FAIL:
        return titan_fail(err, p.status, "failpoint %s", name);
    case EFFECT_CALL:
        return all.fn ? all.fn(all.arg, name, err) : TITAN_OK;
    }
    return TITAN_OK;
}

__attribute__((constructor)) static void hook(void)
{
    failpoint_pass = pass;
}
