/* SPDX-License-Identifier: Apache-2.0 */
/* worker_logs.c - workers' output; see worker_logs.h. */
#include "daemon/agent/worker_logs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/vec.h"

#define CHUNK_BYTES 65536
#define FOLLOW_MS 50
#define REQUESTS_MAX 256
#define RANKS_BYTES_MAX (1u << 20)
#define FILES_MAX 4096

/* One worker's output as a request reads it: first the .1, then the file itself. */
struct log_file {
    uint64_t worker_id;
    int32_t rank;
    bool old; /* reading the .1 */
    uint64_t offset;
};

struct log_request {
    struct log_request *next;
    uint64_t id;
    int32_t rank;
    bool follow, ending;
    uint32_t tail_lines;
    char folder[PATH_MAX]; /* JOBDIR/logs */
    struct log_file *files;
    size_t n_files, cap_files;
};

struct logs {
    uv_loop_t *loop;
    uv_timer_t timer;
    logs_send_cb send;
    void *data;
    char node[256];
    struct log_request *first;
    void (*done)(void *);
    void *done_data;
};

static void file_path(const struct log_request *r, const struct log_file *f, bool old, char out[PATH_MAX + 64])
{
    (void)snprintf(out, PATH_MAX + 64, "%s/worker-%" PRIu64 ".log%s", r->folder, f->worker_id, old ? ".1" : "");
}

static uint64_t file_size(const struct log_request *r, const struct log_file *f, bool old)
{
    char path[PATH_MAX + 64];
    struct stat st;
    file_path(r, f, old, path);
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static size_t file_piece(const struct log_request *r, const struct log_file *f, bool old, uint64_t offset, char *out,
                         size_t max)
{
    char path[PATH_MAX + 64];
    file_path(r, f, old, path);
    _cleanup_fd_ int fd = -1;
    ssize_t n =
        open_regular(AT_FDCWD, path, O_NOFOLLOW, &fd, NULL) != TITAN_OK ? -1 : pread(fd, out, max, (off_t)offset);
    return n > 0 ? (size_t)n : 0;
}

/* Where the last `lines` lines of the file begin; *lines is what is still missing when it holds fewer. */
static uint64_t tail_offset(const struct log_request *r, const struct log_file *f, bool old, uint32_t *lines)
{
    char bytes[CHUNK_BYTES];
    uint64_t size = file_size(r, f, old), end = size;
    while (end > 0 && *lines > 0) {
        uint64_t start = end > CHUNK_BYTES ? end - CHUNK_BYTES : 0;
        size_t n = file_piece(r, f, old, start, bytes, (size_t)(end - start));
        for (size_t i = n; i-- > 0;) {
            if (bytes[i] != '\n' || start + i + 1 == size)
                continue;
            if (--*lines == 0)
                return start + i + 1;
        }
        end = n ? start : 0;
    }
    /* The first line of the file has no newline before it. */
    if (size && *lines > 0)
        --*lines;
    return 0;
}

static void file_start(const struct log_request *r, struct log_file *f)
{
    uint32_t lines = r->tail_lines;
    f->old = file_size(r, f, true) > 0;
    f->offset = 0;
    if (!lines)
        return;
    uint64_t newest = tail_offset(r, f, false, &lines);
    if (f->old && lines > 0) {
        f->offset = tail_offset(r, f, true, &lines);
    } else {
        f->old = false;
        f->offset = newest;
    }
}

static bool send_chunk(const struct logs *l, const struct log_request *r, const struct log_file *f, char *bytes,
                       size_t len)
{
    Titan__Internal__AgentLogChunk chunk = TITAN__INTERNAL__AGENT_LOG_CHUNK__INIT;
    chunk.request_id = r->id;
    chunk.rank = f->rank;
    chunk.worker_id = f->worker_id;
    chunk.data.data = (uint8_t *)bytes;
    chunk.data.len = len;
    return l->send(&chunk, l->data);
}

/* How much of a piece to send: up to its last newline. A line longer than a chunk, and the unfinished one at the end
 * of a log that is not followed any more, go as they are. */
static size_t whole_lines(const char *bytes, size_t n, bool last)
{
    for (size_t i = n; i-- > 0;)
        if (bytes[i] == '\n')
            return i + 1;
    return n == CHUNK_BYTES || last ? n : 0;
}

enum read_result { READ_MORE, READ_DONE, READ_FULL };

static enum read_result file_read_on(const struct logs *l, const struct log_request *r, struct log_file *f)
{
    char bytes[CHUNK_BYTES];
    bool last = r->ending || !r->follow || f->old;
    /* Shorter than what was read: it was emptied, the rest went to the .1. */
    if (!f->old && file_size(r, f, false) < f->offset)
        f->old = true;
    size_t n = file_piece(r, f, f->old, f->offset, bytes, sizeof(bytes));
    size_t send = whole_lines(bytes, n, last);
    titan_assert(n <= sizeof(bytes) && send <= n);
    if (send && !send_chunk(l, r, f, bytes, send))
        return READ_FULL;
    f->offset += send;
    if (send)
        return READ_MORE;
    if (f->old) {
        f->old = false;
        f->offset = 0;
        return READ_MORE;
    }
    return READ_DONE;
}

static struct log_file *request_file(struct log_request *r, uint64_t worker_id)
{
    for (size_t i = 0; i < r->n_files; i++)
        if (r->files[i].worker_id == worker_id)
            return &r->files[i];
    const struct log_file file = {.worker_id = worker_id, .rank = -1};
    if (r->n_files == FILES_MAX || !VEC_PUSH(r->files, r->n_files, r->cap_files, file))
        return NULL;
    struct log_file *f = &r->files[r->n_files - 1];
    file_start(r, f);
    return f;
}

/* Read JOBDIR/logs/ranks: which workers are ours, and their last rank. */
static void request_files(const struct logs *l, struct log_request *r)
{
    char path[PATH_MAX + 16];
    struct buf text = BUF_INIT;
    (void)snprintf(path, sizeof(path), "%s/ranks", r->folder);
    if (file_read(path, RANKS_BYTES_MAX, &text, NULL) != TITAN_OK) {
        buf_free(&text);
        return;
    }
    char *save = NULL;
    for (char *line = strtok_r(text.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        uint64_t worker_id;
        int32_t rank;
        char node[256];
        if (sscanf(line, "%" SCNu64 " %" SCNd32 " %255s", &worker_id, &rank, node) != 3 || strcmp(node, l->node) != 0)
            continue;
        struct log_file *f = request_file(r, worker_id);
        if (f)
            f->rank = rank;
    }
    buf_free(&text);
}

/* Returns whether the request is over and its end has been sent. */
static bool request_step(const struct logs *l, struct log_request *r)
{
    request_files(l, r);
    for (size_t i = 0; i < r->n_files; i++) {
        struct log_file *f = &r->files[i];
        enum read_result result = READ_MORE;
        if (r->rank >= 0 && f->rank != r->rank)
            continue;
        while (result == READ_MORE)
            result = file_read_on(l, r, f);
        if (result == READ_FULL)
            return false;
    }
    if (r->follow && !r->ending)
        return false;
    Titan__Internal__AgentLogChunk end = TITAN__INTERNAL__AGENT_LOG_CHUNK__INIT;
    end.request_id = r->id;
    end.rank = r->rank;
    end.end = true;
    return l->send(&end, l->data);
}

static void request_free(struct log_request *r)
{
    free(r->files);
    free(r);
}

static void on_timer(uv_timer_t *timer)
{
    struct logs *l = timer->data;
    for (struct log_request **at = &l->first; *at;) {
        struct log_request *r = *at;
        if (request_step(l, r)) {
            *at = r->next;
            request_free(r);
        } else {
            at = &r->next;
        }
    }
    if (!l->first)
        (void)uv_timer_stop(timer);
}

void logs_request(struct logs *l, const Titan__Internal__LogRequest *request, const char *job_dir)
{
    int n = 0;
    for (const struct log_request *r = l->first; r; r = r->next)
        n++;
    struct log_request *r = calloc(1, sizeof(*r));
    if (!r)
        return;
    r->id = request->request_id;
    r->rank = request->rank;
    r->follow = request->follow && n < REQUESTS_MAX;
    r->tail_lines = request->tail_lines;
    if (!job_dir || snprintf(r->folder, sizeof(r->folder), "%s/logs", job_dir) >= (int)sizeof(r->folder))
        r->follow = false;
    r->next = l->first;
    l->first = r;
    titan_assert(l->first == r);
    (void)uv_timer_start(&l->timer, on_timer, 0, FOLLOW_MS);
}

void logs_cancel(struct logs *l, uint64_t request_id)
{
    for (struct log_request *r = l->first; r; r = r->next)
        if (r->id == request_id)
            r->ending = true;
}

void logs_forget(struct logs *l)
{
    while (l->first) {
        struct log_request *r = l->first;
        l->first = r->next;
        request_free(r);
    }
}

void logs_record(const struct logs *l, const char *job_dir, uint64_t worker_id, int32_t rank)
{
    char path[PATH_MAX + 16], line[512];
    (void)snprintf(path, sizeof(path), "%s/logs/ranks", job_dir);
    int len = snprintf(line, sizeof(line), "%" PRIu64 " %" PRId32 " %s\n", worker_id, rank, l->node);
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    /* One write, so that nodes sharing the folder do not tear each other's lines. */
    if (fd >= 0 && write(fd, line, (size_t)len) != len)
        return; /* a full disk: this worker's log is then not served, the run goes on */
}

titan_status logs_open(uv_loop_t *loop, const char *node, logs_send_cb send, void *data, struct logs **ret,
                       struct titan_error *err)
{
    struct logs *l = calloc(1, sizeof(*l));
    if (!l)
        return titan_fail(err, TITAN_ENOMEM, "no memory for logs");
    l->loop = loop;
    l->send = send;
    l->data = data;
    (void)snprintf(l->node, sizeof(l->node), "%s", node);
    (void)uv_timer_init(loop, &l->timer);
    l->timer.data = l;
    *ret = l;
    return TITAN_OK;
}

static void on_closed(uv_handle_t *handle)
{
    struct logs *l = handle->data;
    void (*done)(void *) = l->done;
    void *data = l->done_data;
    free(l);
    if (done)
        done(data);
}

void logs_close(struct logs *l, void (*done)(void *), void *data)
{
    logs_forget(l);
    l->done = done;
    l->done_data = data;
    uv_close((uv_handle_t *)&l->timer, on_closed);
}

/* Bytes [from, to) of one open file into another. */
static titan_status copy_range(int in, int out, off_t from, off_t to, const char *path, struct titan_error *err)
{
    while (from < to) {
        ssize_t n = sendfile(out, in, &from, (size_t)(to - from));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return titan_fail_errno(err, "cannot copy log '%s'", path);
        if (n == 0)
            break; /* it shrank meanwhile */
    }
    return TITAN_OK;
}

titan_status log_bound(const char *path, uint64_t max, struct titan_error *err)
{
    char old[PATH_MAX], part[PATH_MAX];
    struct stat st;
    titan_assert(max >= 2);
    if (stat(path, &st) < 0 || (uint64_t)st.st_size <= max / 2)
        return TITAN_OK;
    if (snprintf(old, sizeof(old), "%s.1", path) >= PATH_MAX || snprintf(part, sizeof(part), "%s.2", path) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "log path '%s' is too long", path);
    _cleanup_fd_ int in = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    _cleanup_fd_ int out = in < 0 ? -1 : open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (out < 0)
        return titan_fail_errno(err, "cannot copy log '%s'", path);
    off_t from = (uint64_t)st.st_size > max / 2 + max / 8 ? st.st_size - (off_t)(max / 2) : 0;
    titan_status status = copy_range(in, out, from, st.st_size, path, err);
    /* NOLINTNEXTLINE(readability-suspicious-call-argument): the parameter of rename called "old" is the other one */
    if (status == TITAN_OK && rename(part, old) < 0)
        status = titan_fail_errno(err, "cannot rename '%s'", part);
    if (status != TITAN_OK)
        (void)unlink(part);
    /* Emptied even when the copy failed (a full disk is when it matters most). */
    if (ftruncate(in, 0) < 0 && status == TITAN_OK)
        status = titan_fail_errno(err, "cannot empty log '%s'", path);
    return status;
}
