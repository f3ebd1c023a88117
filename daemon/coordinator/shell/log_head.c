/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/shell/log_head.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"

#define HEAD_EVENTS 256
#define HEAD_MS 60000
#define HEAD_REST_MS 1000
#define WARN_MS 60000
#define LAST_WAIT_MS 2000

struct log_head {
    struct event_head now, written;
    int64_t written_ms, warned_ms; /* monotonic clock; warned_ms 0 = never */
    bool writes;                   /* a line is being written to the file */
};

static const struct log head_log = {.subsystem = "audit"};

/* --- the file ----------------------------------------------------------------------------------------------------- */

struct head_line {
    struct file_task task; /* must be first */
    struct coordinator *owner;
    char path[PATH_MAX], text[EVENT_HEAD_TEXT + 40];
    struct titan_error err;
};

static struct head_line *line_of(struct file_task *k)
{
    return (struct head_line *)(void *)k;
}

static void append_line(struct file_task *k)
{
    struct head_line *l = line_of(k);
    struct stat st;
    _cleanup_fd_ int fd =
        open(l->path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);
    if (fd < 0 || fstat(fd, &st) != 0)
        titan_fail_errno(&l->err, "'%s'", l->path);
    else if (!S_ISREG(st.st_mode))
        titan_fail(&l->err, TITAN_EINVAL, "'%s' is no file", l->path);
    else if (file_append(fd, l->text, strlen(l->text), &l->err) != TITAN_OK)
        titan_error_wrap(&l->err, "'%s'", l->path);
    else if (fdatasync(fd) != 0)
        titan_fail_errno(&l->err, "'%s'", l->path);
}

static void line_free(struct file_task *k)
{
    free(line_of(k));
}

static void warn(struct coordinator *c, const char *path, const char *why)
{
    const int64_t now = clock_mono_ms();
    if (c->head->warned_ms && now - c->head->warned_ms < WARN_MS)
        return;
    c->head->warned_ms = now;
    tlog_warn(&head_log, "the head of the event log cannot be written to its file", "path=\"%s\" reason=\"%s\"", path,
              why);
}

static void line_done(struct file_task *k)
{
    struct head_line *l = line_of(k);
    struct coordinator *c = l->owner;
    c->head->writes = false;
    if (l->err.status != TITAN_OK)
        warn(c, l->path, l->err.msg);
    line_free(k);
}

static void line_given_up(struct file_task *k, bool started)
{
    struct head_line *l = line_of(k);
    l->owner->head->writes = false;
    if (!l->owner->closing)
        warn(l->owner, l->path, "it does not answer");
    if (!started)
        line_free(k);
}

static const struct file_calls calls = {
    .run = append_line, .done = line_done, .given_up = line_given_up, .free = line_free};

/* --- when --------------------------------------------------------------------------------------------------------- */

static void write_head(struct coordinator *c)
{
    char text[EVENT_HEAD_TEXT];
    struct log_head *h = c->head;
    if (h->now.id == h->written.id)
        return;
    h->written = h->now;
    h->written_ms = clock_mono_ms();
    event_head_write(&h->now, text);
    tlog_info(&head_log, "head of the event log", "head=%s", text);
    if (c->options.head_file) {
        struct titan_error err = {0};
        if (c->head->writes && !c->closing) {
            warn(c, c->options.head_file, "the line before is on its way still");
            return;
        }
        char when[32];
        struct head_line *l = calloc(1, sizeof(*l));
        titan_assert(l);
        l->owner = c;
        l->task.key = "head file";
        (void)snprintf(l->path, sizeof(l->path), "%s", c->options.head_file);
        (void)snprintf(l->text, sizeof(l->text), "%s %s\n", text, clock_format(clock_wall_ms(), when));
        if (!c->closing) {
            c->head->writes = file_pool_add(c->files, &l->task, &calls, sizeof(*l), &err) == TITAN_OK;
            if (c->head->writes)
                return;
        } else if (file_task_await(&l->task, &calls, LAST_WAIT_MS, &err) == TITAN_OK) {
            err = l->err;
        } else if (err.status == TITAN_ETIMEDOUT) {
            l = NULL; /* the line's thread frees it */
        }
        if (err.status != TITAN_OK)
            warn(c, c->options.head_file, err.msg);
        if (l)
            line_free(&l->task);
    }
}

static void on_timer(uv_timer_t *timer)
{
    write_head(timer->data);
}

void log_head_committed(struct coordinator *c)
{
    struct log_head *h = c->head;
    if (event_head(store_reader(c->store), &h->now, NULL) != TITAN_OK || h->now.id == h->written.id || c->closing)
        return;
    const bool many = h->now.id - h->written.id >= HEAD_EVENTS;
    const int64_t rest = h->written_ms + HEAD_REST_MS - clock_mono_ms();
    if (many && rest <= 0)
        write_head(c);
    else if (many && uv_timer_get_due_in(&c->head_timer) > (uint64_t)rest)
        uv_timer_start(&c->head_timer, on_timer, (uint64_t)rest, 0);
    else if (!uv_is_active((uv_handle_t *)&c->head_timer))
        uv_timer_start(&c->head_timer, on_timer, many ? (uint64_t)rest : HEAD_MS, 0);
}

void log_head_open(struct coordinator *c)
{
    titan_assert(c->store && c->files && !c->head);
    c->head = calloc(1, sizeof(*c->head));
    titan_assert(c->head);
    (void)!event_head(store_reader(c->store), &c->head->now, NULL);
    write_head(c);
}

void log_head_close(struct coordinator *c)
{
    titan_assert(c->closing);
    write_head(c);
}

void log_head_free(struct coordinator *c)
{
    free(c->head);
}
