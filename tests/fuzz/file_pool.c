/* SPDX-License-Identifier: Apache-2.0 */
/* In place of daemon/common/file_pool.c: tasks wait until the target runs them, so that an input always does the same.
 */
#include "daemon/common/file_pool.h"

#include <stdlib.h>

#include "tests/fuzz/common.h"

struct file_pool {
    struct file_task *first, **last;
};
static struct file_pool files;

titan_status file_pool_open(uv_loop_t *loop, uint32_t deadline_ms, struct file_pool **ret, struct titan_error *err)
{
    (void)loop, (void)deadline_ms, (void)err;
    files = (struct file_pool){.last = &files.first};
    *ret = &files;
    return TITAN_OK;
}

titan_status file_pool_add(struct file_pool *p, struct file_task *k, const struct file_calls *calls, size_t bytes,
                           struct titan_error *err)
{
    (void)bytes, (void)err;
    k->calls = calls;
    k->next = NULL;
    *p->last = k;
    p->last = &k->next;
    return TITAN_OK;
}

static struct file_task *task_take(struct file_pool *p, const struct file_task *k)
{
    struct file_task **at = &p->first;
    while (*at && *at != k)
        at = &(*at)->next;
    struct file_task *found = *at;
    if (!found)
        return NULL;
    *at = found->next;
    if (!*at)
        p->last = at;
    return found;
}

static void task_free(struct file_task *k)
{
    if (k->calls->free)
        k->calls->free(k);
    else
        free(k);
}

bool file_pool_drop(struct file_pool *p, struct file_task *k)
{
    return task_take(p, k) != NULL;
}

bool file_pool_abandon(struct file_pool *p, struct file_task *k)
{
    return task_take(p, k) != NULL; /* what is taken out is run at once */
}

bool file_task_wanted(const struct file_task *k)
{
    (void)k;
    return true;
}

uint32_t file_pool_deadline_ms(const struct file_pool *p)
{
    (void)p;
    return 10000;
}

void file_pool_close(struct file_pool *p, void (*closed)(void *data), void *data)
{
    while (p->first) {
        struct file_task *k = task_take(p, p->first);
        if (k->calls->given_up)
            k->calls->given_up(k, false);
        else
            task_free(k);
    }
    if (closed)
        closed(data);
}

titan_status file_task_await(struct file_task *k, const struct file_calls *calls, uint32_t wait_ms,
                             struct titan_error *err)
{
    (void)wait_ms, (void)err;
    calls->run(k);
    return TITAN_OK;
}

bool fuzz_file_task(void)
{
    struct file_task *k = files.first ? task_take(&files, files.first) : NULL;
    if (!k)
        return false;
    k->calls->run(k);
    if (k->calls->done)
        k->calls->done(k);
    else
        task_free(k);
    return true;
}
