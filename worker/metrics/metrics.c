/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c - writes and reads the lines of metrics.jsonl. */
#include "worker/metrics/metrics.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "worker/metrics/line_writer.h"

#define WRITER_GONE_MS 500
#define LAST_WAITS 5 /* number of waits for lines before the file is read back */

/* Takes the file's lock. The previous writer may be killed and still be writing, because a thread that is killed in a
 * system call ends only after the call. Its lock ends with its descriptor. flock has no time limit, and a writer on
 * another host may live on. So this thread asks often, but only for a short time; the writing thread asks longer.
 * False: another writer still has the file. */
static bool wait_for_writer(int fd)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const int64_t until = clock_mono_ns() + INT64_C(1000000) * WRITER_GONE_MS;
    bool locked;

    while (!(locked = flock(fd, LOCK_EX | LOCK_NB) == 0) && clock_mono_ns() < until)
        (void)nanosleep(&pause, NULL);
    return locked;
}

static uint64_t count_of(const struct json *line, const char *key)
{
    const int64_t n = json_int(line, key, 0);
    return n > 0 ? (uint64_t)n : 0;
}

static titan_status open_file(struct metrics *m, struct titan_error *err)
{
    char path[PATH_MAX];

    TRY(dir_make(m->job_dir, err));
    if (snprintf(path, sizeof path, "%s/metrics.jsonl", m->job_dir) >= (int)sizeof path)
        return titan_fail(err, TITAN_EINVAL, "folder '%.64s...' has too long a name", m->job_dir);
    m->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (m->fd < 0)
        return titan_fail_errno(err, "cannot open '%s'", path);

    /* Reads `written` from the last whole line. If no other writer has the file, cuts off an incomplete line behind the
     * last whole line. */
    const bool cut = wait_for_writer(m->fd);
    char text[4096];
    const off_t size = lseek(m->fd, 0, SEEK_END), from = MAX(size - (off_t)sizeof text, 0);
    const ssize_t n = pread(m->fd, text, sizeof text, from);
    const char *end = n > 0 ? memrchr(text, '\n', (size_t)n) : NULL;
    struct json *j = NULL;
    m->written = 0;
    if (cut && end && from + (end + 1 - text) < size)
        (void)!ftruncate(m->fd, from + (end + 1 - text));
    const char *before = end ? memrchr(text, '\n', (size_t)(end - text)) : NULL;
    const char *line = before ? before + 1 : text;
    if (end && json_parse(line, (size_t)(end - line), &j, NULL) == TITAN_OK) {
        m->written = count_of(j, "step");
        json_free(j);
    }
    m->writer = line_writer_open(m->fd, err);
    if (!m->writer)
        m->fd = -1;
    return m->writer ? TITAN_OK : err->status;
}

void metrics_open(struct metrics *m, const char *job_dir, int rank, int64_t log_freq, int64_t steps)
{
    struct titan_error why; /* dropped: the first line opens the file again, and reports a failure */

    titan_assert(rank >= 0 && job_dir);
    titan_assert(log_freq > 0 && steps > 0);
    metrics_close(m);
    m->log_freq = log_freq;
    m->steps = steps;
    m->job_dir = rank == 0 ? job_dir : NULL;
    if (m->job_dir)
        (void)open_file(m, &why);
}

void metrics_close(struct metrics *m)
{
    line_writer_close(TAKE(m->writer));
    m->fd = -1;
    m->job_dir = NULL;
}

static void append_line(struct metrics *m, const struct log *log, struct json_writer *w)
{
    struct titan_error why = {.msg = "the disk is full or does not answer"};

    json_end_object(w);
    buf_puts(w->out, "\n");
    if (buf_failed(w->out))
        return;
    const bool stalled =
        (!m->writer && open_file(m, &why) != TITAN_OK) || !line_writer_put(m->writer, w->out->data, w->out->len);
    if (stalled && !m->stalled)
        tlog_warn(log, "the file of metrics takes no lines, going on without it", "reason=\"%s\"", why.msg);
    if (!stalled && m->stalled)
        tlog_info(log, "the file of metrics takes lines again", "%s", "");
    m->stalled = stalled;
}

static void put_evaluation(struct json_writer *w, const struct evaluation_report *v)
{
    json_put_uint(w, "validation_step", v->step);
    json_put_real(w, "validation_loss", v->loss);
    json_put_real(w, "validation_perplexity", evaluation_perplexity(v));
    json_put_real(w, "validation_bits_per_byte", evaluation_bits_per_byte(v));
    json_put_uint(w, "validation_tokens", v->tokens);
    json_put_uint(w, "validation_bytes", v->bytes);
    json_put_real(w, "validation_ms", v->ms);
}

static void log_evaluation(const struct log *log, const struct evaluation_report *v)
{
    tlog_info(log, "evaluation", "step=%lu loss=%.6f perplexity=%.4f bits_per_byte=%.5f tokens=%lu ms=%.0f",
              (unsigned long)v->step, v->loss, evaluation_perplexity(v), evaluation_bits_per_byte(v),
              (unsigned long)v->tokens, v->ms);
}

static void begin_step(struct json_writer *w, const struct step_report *r)
{
    titan_assert(r->step > 0 && r->world > 0);
    json_begin_object(w, NULL);
    json_put_uint(w, "step", r->step);
    json_put_uint(w, "epoch", r->epoch);
    json_put_int(w, "time_ms", r->at_ms);
    json_put_real(w, "loss", r->loss);
    json_put_real(w, "loss_max", r->loss_max);
    json_put_real(w, "grad_norm", r->grad_norm);
    json_put_real(w, "learning_rate", r->learning_rate);
    json_put_uint(w, "tokens", r->tokens);
    json_put_real(w, "tokens_per_second", r->tokens_per_second);
    json_put_real(w, "tflops", r->tflops);
    json_put_real(w, "mfu", r->mfu);
    json_put_real(w, "mfu_causal", r->mfu_causal);
    json_put_real(w, "step_ms", r->step_ms);
    json_put_int(w, "world_size", r->world);
    json_put_uint(w, "memory_bytes", r->memory_bytes);
    json_put_uint(w, "planned_bytes", r->planned_bytes);
    json_put_uint(w, "skipped_steps", r->skipped_steps);
    if (r->split.slowest >= 0)
        step_split_print(&r->split, w);
    if (r->expert_tokens_mean > 0) {
        json_put_real(w, "expert_tokens_min", r->expert_tokens_min);
        json_put_real(w, "expert_tokens_max", r->expert_tokens_max);
        json_put_real(w, "expert_tokens_mean", r->expert_tokens_mean);
        json_put_real(w, "expert_tokens_dropped", r->dropped);
        json_put_real(w, "expert_further_rounds", r->further_rounds);
        json_put_real(w, "expert_room_needed", r->room_needed);
    }
    if (r->balance_loss != 0)
        json_put_real(w, "balance_loss", r->balance_loss);
    if (r->mtp_loss != 0)
        json_put_real(w, "mtp_loss", r->mtp_loss);
}

void metrics_print_step(const struct step_report *r, struct buf *out)
{
    struct json_writer w = {.out = out};
    begin_step(&w, r);
    json_end_object(&w);
}

bool metrics_parse_step(const char *line, struct step_report *ret)
{
    struct json *j = NULL;

    if (json_parse(line, strlen(line), &j, NULL) != TITAN_OK)
        return false;
    const int64_t world = json_int(j, "world_size", 0), skipped = json_int(j, "skipped_steps", 0);
    const double none = __builtin_nan("");
    *ret = (struct step_report){.step = count_of(j, "step"),
                                .tokens = count_of(j, "tokens"),
                                .epoch = count_of(j, "epoch"),
                                .loss = json_real(j, "loss", none),
                                .loss_max = json_real(j, "loss_max", none),
                                .grad_norm = json_real(j, "grad_norm", none),
                                .learning_rate = json_real(j, "learning_rate", 0),
                                .tokens_per_second = json_real(j, "tokens_per_second", 0),
                                .tflops = json_real(j, "tflops", 0),
                                .mfu = json_real(j, "mfu", 0),
                                .mfu_causal = json_real(j, "mfu_causal", 0),
                                .step_ms = json_real(j, "step_ms", 0),
                                .split = step_split_parse(j),
                                .expert_tokens_min = json_real(j, "expert_tokens_min", 0),
                                .expert_tokens_max = json_real(j, "expert_tokens_max", 0),
                                .expert_tokens_mean = json_real(j, "expert_tokens_mean", 0),
                                .dropped = json_real(j, "expert_tokens_dropped", 0),
                                .further_rounds = json_real(j, "expert_further_rounds", 0),
                                .room_needed = json_real(j, "expert_room_needed", 0),
                                .balance_loss = json_real(j, "balance_loss", 0),
                                .mtp_loss = json_real(j, "mtp_loss", 0),
                                .world = world > 0 && world <= INT_MAX ? (int)world : 0,
                                .memory_bytes = count_of(j, "memory_bytes"),
                                .planned_bytes = count_of(j, "planned_bytes"),
                                .skipped_steps = skipped > 0 && skipped <= UINT32_MAX ? (uint32_t)skipped : 0,
                                .at_ms = json_int(j, "time_ms", 0)};
    json_free(j);
    return ret->step > 0 && ret->epoch > 0 && ret->world > 0;
}

void metrics_step(struct metrics *m, const struct log *log, const struct step_report *r)
{
    _cleanup_(buf_free) struct buf line = BUF_INIT;
    struct json_writer w = {.out = &line};

    if (!m->job_dir)
        return;
    begin_step(&w, r);
    if (r->evaluation.step > 0)
        put_evaluation(&w, &r->evaluation);
    append_line(m, log, &w);
    m->written = r->step;
    const bool logs = r->step % (uint64_t)m->log_freq == 0 || r->step == 1 || r->step == (uint64_t)m->steps;
    if ((logs || r->evaluation.step > 0) && m->writer && !m->stalled) /* the file gets the line before the log */
        (void)line_writer_wait(m->writer);
    if (r->evaluation.step > 0)
        log_evaluation(log, &r->evaluation);
    if (logs)
        tlog_info(log, "step",
                  "step=%lu loss=%.6f grad_norm=%.4f lr=%.3e tokens_per_second=%.0f mfu=%.2f%% memory_gib=%.2f "
                  "workers=%d epoch=%lu",
                  (unsigned long)r->step, r->loss, r->grad_norm, r->learning_rate, r->tokens_per_second, 100 * r->mfu,
                  (double)r->memory_bytes / 1073741824.0, r->world, (unsigned long)r->epoch);
}

void metrics_evaluation(struct metrics *m, const struct log *log, const struct evaluation_report *v, uint64_t epoch,
                        int64_t at_ms)
{
    _cleanup_(buf_free) struct buf line = BUF_INIT;
    struct json_writer w = {.out = &line};

    if (!m->job_dir)
        return;
    titan_assert(v->step > 0);
    json_begin_object(&w, NULL);
    json_put_uint(&w, "step", v->step);
    json_put_uint(&w, "epoch", epoch);
    json_put_int(&w, "time_ms", at_ms);
    put_evaluation(&w, v);
    append_line(m, log, &w);
    m->written = MAX(m->written, v->step);
    if (m->writer && !m->stalled)
        (void)line_writer_wait(m->writer);
    log_evaluation(log, v);
}

/* --- looking back ------------------------------------------------------------------------------------------------- */

bool metrics_have_evaluation(const struct metrics *m, uint64_t step)
{
    enum { BLOCK = 65536 };
    _cleanup_free_ char *text = malloc(BLOCK);
    for (int i = 0; i < LAST_WAITS && m->fd >= 0 && !line_writer_wait(m->writer); i++)
        ;
    off_t end = m->fd < 0 ? 0 : lseek(m->fd, 0, SEEK_END);

    titan_assert(step > 0);
    while (text && end > 0) {
        const off_t from = MAX(end - BLOCK, 0);
        const ssize_t n = pread(m->fd, text, (size_t)(end - from), from);
        const char *last = n > 0 ? memrchr(text, '\n', (size_t)n) : NULL;
        if (!last)
            return false;
        /* The next block has the line that begins before this block. */
        const char *first = from > 0 ? (const char *)memchr(text, '\n', (size_t)n) + 1 : text;
        if (first > last)
            return false;                                         /* a line that is longer than a block is not ours */
        for (size_t len = (size_t)(last + 1 - first); len > 0;) { /* from the last line to the first */
            const char *before = memrchr(first, '\n', len - 1);
            const char *line = before ? before + 1 : first;
            struct json *j = NULL;
            const bool read = json_parse(line, (size_t)(first + len - 1 - line), &j, NULL) == TITAN_OK;
            const bool found = read && count_of(j, "validation_step") == step;
            const bool over = found || (read && count_of(j, "step") < step);
            json_free(j);
            if (over)
                return found;
            len = (size_t)(line - first);
        }
        end = from + (first - text);
    }
    return false;
}
