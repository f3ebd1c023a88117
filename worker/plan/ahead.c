/* SPDX-License-Identifier: Apache-2.0 */
/* ahead.c - a thread that plans. */
#include "worker/plan/ahead.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "worker/plan/fitting.h"

/* A plan with the programs of all classes; world 0: none. */
struct planned {
    int world;
    struct plan *plan;
    struct program **programs;
};

struct plan_ahead {
    struct plan_options options;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all members below */
    pthread_cond_t changed;
    int wanted, making; /* worlds of the wanted plan and of the plan that is being made; 0: no plan */
    bool closing;
    struct planned made;
};

static void planned_close(struct planned *p)
{
    if (p->plan)
        plan_free_programs(p->plan, p->programs);
    plan_close(p->plan);
    *p = (struct planned){0};
}

static titan_status make(const struct plan_options *options, int world, struct planned *ret, struct titan_error *err)
{
    struct plan_options o = *options;
    struct planned p = {.world = world};

    titan_assert(world > 0);
    o.world = world;
    titan_status status = plan_open(&o, &p.plan, err);
    if (status == TITAN_OK)
        status = plan_programs(p.plan, &p.programs, err);
    if (status != TITAN_OK) {
        planned_close(&p);
        return status;
    }
    *ret = p;
    return TITAN_OK;
}

/* The thread does not report a plan that fails: plan_ahead_take() makes the plan again and reports the failure. */
static void *plan_main(void *arg)
{
    struct plan_ahead *a = arg;

    (void)pthread_mutex_lock(&a->lock);
    while (!a->closing) {
        if (a->wanted == 0) {
            (void)pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        struct planned p = {0}, before = a->made;
        a->made = (struct planned){0};
        titan_assert(a->making == 0);
        a->making = a->wanted;
        a->wanted = 0;
        (void)pthread_mutex_unlock(&a->lock);
        planned_close(&before);
        (void)!make(&a->options, a->making, &p, NULL);
        (void)pthread_mutex_lock(&a->lock);
        a->made = p;
        a->making = 0;
        (void)pthread_cond_broadcast(&a->changed);
    }
    (void)pthread_mutex_unlock(&a->lock);
    return NULL;
}

titan_status plan_ahead_open(const struct plan_options *options, struct plan_ahead **ret, struct titan_error *err)
{
    struct plan_ahead *a = calloc(1, sizeof *a);
    sigset_t all, before;

    if (!a)
        return titan_fail(err, TITAN_ENOMEM, "plan: out of memory");
    a->options = *options;
    (void)pthread_mutex_init(&a->lock, NULL);
    (void)pthread_cond_init(&a->changed, NULL);
    (void)sigfillset(&all); /* the main thread takes the signals */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&a->thread, NULL, plan_main, a);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        (void)pthread_cond_destroy(&a->changed);
        (void)pthread_mutex_destroy(&a->lock);
        free(a);
        return titan_fail(err, TITAN_EIO, "plan: cannot start a thread");
    }
    *ret = a;
    return TITAN_OK;
}

void plan_ahead_close(struct plan_ahead *a)
{
    if (!a)
        return;
    (void)pthread_mutex_lock(&a->lock);
    a->closing = true;
    (void)pthread_cond_broadcast(&a->changed);
    (void)pthread_mutex_unlock(&a->lock);
    (void)pthread_join(a->thread, NULL);
    planned_close(&a->made);
    (void)pthread_cond_destroy(&a->changed);
    (void)pthread_mutex_destroy(&a->lock);
    free(a);
}

bool plan_ahead_expect(struct plan_ahead *a, int world)
{
    titan_assert(world > 0);
    (void)pthread_mutex_lock(&a->lock);
    const bool nothing = !a->wanted && !a->making && !a->made.world;
    if (nothing)
        a->wanted = world;
    (void)pthread_cond_broadcast(&a->changed);
    (void)pthread_mutex_unlock(&a->lock);
    return nothing;
}

void plan_ahead_want(struct plan_ahead *a, int world)
{
    titan_assert(world > 0);
    (void)pthread_mutex_lock(&a->lock);
    a->wanted = world == a->making || world == a->made.world ? 0 : world;
    (void)pthread_cond_broadcast(&a->changed);
    (void)pthread_mutex_unlock(&a->lock);
}

titan_status plan_ahead_take(struct plan_ahead *a, int world, struct plan **ret, struct program ***ret_programs,
                             struct titan_error *err)
{
    struct planned p = {0};

    (void)pthread_mutex_lock(&a->lock);
    while (a->wanted == world || a->making == world)
        (void)pthread_cond_wait(&a->changed, &a->lock);
    if (a->made.world == world) {
        p = a->made;
        a->made = (struct planned){0};
    }
    (void)pthread_mutex_unlock(&a->lock);
    if (p.world == 0) {
        const titan_status status = make(&a->options, world, &p, err);
        if (status == TITAN_EUNPLACEABLE) {
            /* A refusal for want of memory gets a hint: a room for experts, or a batch, with which the plan is not
             * refused. */
            struct plan_options o = a->options;
            o.world = world;
            if (o.evaluation)
                titan_error_hint(err,
                                 "a smaller validation.local_batch_size, a shorter validation.seq_len or more workers");
            else if (o.recipe->parallelism.pipeline_parallel_degree > 1)
                titan_error_hint(err,
                                 "a smaller parallelism.pipeline_parallel_microbatch_size, more workers, activation "
                                 "checkpointing or a shorter training.seq_len");
            const int room = plan_fitting_room(&o, NULL, NULL);
            const int64_t batch = room > 0 ? 0 : plan_fitting_batch(&o, NULL, NULL);
            if (room > 0)
                titan_error_hint(
                    err, "parallelism.expert_parallel_room = %d would fit, with the same result in more rounds", room);
            else if (batch > 0)
                titan_error_hint(err,
                                 "%s = %ld would fit; or use more workers, activation checkpointing or a shorter "
                                 "training.seq_len",
                                 plan_batch_key(o.recipe), (long)batch);
        }
        TRY(status);
    }
    titan_assert(p.plan && p.world == world);
    *ret = p.plan;
    *ret_programs = p.programs;
    return TITAN_OK;
}
