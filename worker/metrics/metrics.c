/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c - step lines. */
#include "worker/metrics/metrics.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"

#define WRITER_GONE_MS 500

/* The writer before may be dead and still be writing: a thread that is killed in a system call comes to its end there,
 * later, and the lock goes with the descriptor. There is none with a time limit, and a writer on another host may live
 * on: so it is asked for often, and not for long. False: the file is not ours alone. */
static bool wait_for_writer(int fd)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const int64_t until = clock_mono_ns() + INT64_C(1000000) * WRITER_GONE_MS;
    bool locked;

    while (!(locked = flock(fd, LOCK_EX | LOCK_NB) == 0) && clock_mono_ns() < until)
        (void)nanosleep(&pause, NULL);
    return locked;
}

static uint64_t step_of(const struct json *line, const char *key)
{
    const int64_t step = json_int(line, key, 0);
    return step > 0 ? (uint64_t)step : 0;
}

/* From the last whole line. cut: what is left of one behind it goes. */
static void read_last(struct metrics *m, bool cut)
{
    const int fd = m->fd;
    char text[4096];
    const off_t size = lseek(fd, 0, SEEK_END), from = MAX(size - (off_t)sizeof text, 0);
    const ssize_t n = pread(fd, text, sizeof text, from);
    struct json *j = NULL;

    const char *end = n > 0 ? memrchr(text, '\n', (size_t)n) : NULL;
    m->written = m->evaluated = 0;
    if (!end)
        return;
    if (cut && from + (end + 1 - text) < size)
        (void)!ftruncate(fd, from + (end + 1 - text));
    const char *before = memrchr(text, '\n', (size_t)(end - text));
    const char *line = before ? before + 1 : text;
    if (json_parse(line, (size_t)(end - line), &j, NULL) != TITAN_OK)
        return;
    m->written = step_of(j, "step");
    m->evaluated = step_of(j, "validation_step");
    json_free(j);
}

titan_status metrics_open(struct metrics *m, const char *job_dir, int rank, int64_t log_freq, int64_t steps,
                          struct titan_error *err)
{
    char path[PATH_MAX];

    titan_assert(rank >= 0 && job_dir);
    titan_assert(log_freq > 0 && steps > 0);
    metrics_close(m);
    m->log_freq = log_freq;
    m->steps = steps;
    if (rank != 0)
        return TITAN_OK;
    TRY(dir_make(job_dir, err));
    if (snprintf(path, sizeof path, "%s/metrics.jsonl", job_dir) >= (int)sizeof path)
        return titan_fail(err, TITAN_EINVAL, "folder '%.64s...' has too long a name", job_dir);
    m->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (m->fd < 0)
        return titan_fail_errno(err, "cannot open '%s'", path);
    read_last(m, wait_for_writer(m->fd));
    return TITAN_OK;
}

void metrics_close(struct metrics *m)
{
    close_fd(&m->fd);
    m->fd = -1;
}

double evaluation_perplexity(const struct evaluation_report *r)
{
    return exp(r->loss);
}

double evaluation_bits_per_byte(const struct evaluation_report *r)
{
    return r->bytes > 0 ? r->loss * (double)r->tokens / (M_LN2 * (double)r->bytes) : (double)NAN;
}

static void append_json(const struct metrics *m, const struct step_report *r)
{
    _cleanup_(buf_free) struct buf line = BUF_INIT;
    struct json_writer w = {.out = &line};
    const struct evaluation_report *v = &r->evaluation;

    json_begin_object(&w, NULL);
    json_put_uint(&w, "step", r->step);
    json_put_uint(&w, "epoch", r->epoch);
    json_put_int(&w, "time_ms", r->at_ms);
    json_put_real(&w, "loss", r->loss);
    json_put_real(&w, "grad_norm", r->grad_norm);
    json_put_real(&w, "learning_rate", r->learning_rate);
    json_put_uint(&w, "tokens", r->tokens);
    json_put_real(&w, "tokens_per_second", r->tokens_per_second);
    json_put_real(&w, "mfu", r->mfu);
    json_put_real(&w, "step_ms", r->step_ms);
    json_put_int(&w, "world_size", r->world);
    json_put_uint(&w, "memory_bytes", r->memory_bytes);
    json_put_uint(&w, "skipped_steps", r->skipped_steps);
    if (v->step > 0) {
        json_put_uint(&w, "validation_step", v->step);
        json_put_real(&w, "validation_loss", v->loss);
        json_put_real(&w, "validation_perplexity", evaluation_perplexity(v));
        json_put_real(&w, "validation_bits_per_byte", evaluation_bits_per_byte(v));
        json_put_uint(&w, "validation_tokens", v->tokens);
        json_put_real(&w, "validation_ms", v->ms);
    }
    json_end_object(&w);
    buf_puts(&line, "\n");
    if (!buf_failed(&line))
        (void)!write(m->fd, line.data, line.len); /* one write: lines of two writers do not mix */
}

void metrics_step(struct metrics *m, const struct log *log, const struct step_report *r)
{
    if (m->fd < 0)
        return;
    titan_assert(r->step > 0 && r->world > 0);
    append_json(m, r);
    m->written = r->step;
    m->evaluated = MAX(m->evaluated, r->evaluation.step);
    if (r->evaluation.step > 0)
        tlog_info(log, "evaluation", "step=%lu loss=%.6f perplexity=%.4f bits_per_byte=%.5f tokens=%lu ms=%.0f",
                  (unsigned long)r->evaluation.step, r->evaluation.loss, evaluation_perplexity(&r->evaluation),
                  evaluation_bits_per_byte(&r->evaluation), (unsigned long)r->evaluation.tokens, r->evaluation.ms);
    if (r->step % (uint64_t)m->log_freq == 0 || r->step == 1 || r->step == (uint64_t)m->steps)
        tlog_info(log, "step",
                  "step=%lu loss=%.6f grad_norm=%.4f lr=%.3e tokens_per_second=%.0f mfu=%.2f%% memory_gib=%.2f "
                  "workers=%d epoch=%lu",
                  (unsigned long)r->step, r->loss, r->grad_norm, r->learning_rate, r->tokens_per_second, 100 * r->mfu,
                  (double)r->memory_bytes / 1073741824.0, r->world, (unsigned long)r->epoch);
}
