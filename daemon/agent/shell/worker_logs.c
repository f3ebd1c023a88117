/* SPDX-License-Identifier: Apache-2.0 */
/* worker_logs.c - workers' output; see worker_logs.h. */
#include "daemon/agent/shell/worker_logs.h"

#include <dirent.h>
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
#include "base/slowest.h"
#include "base/vec.h"
#include "daemon/agent/shell/flight_dumps.h"
#include "daemon/common/file_pool.h"
#include "daemon/common/job_files.h"

#define CHUNK_BYTES 65536
#define PIECES_MAX 4
#define FOLLOW_MS 50
#define REQUESTS_MAX 256
#define RANKS_BYTES_MAX (1u << 20)
#define FILES_MAX 4096
#define NOT_OURS (-2) /* rank of another node's worker */

/* One file of a request: a worker's output (first the .1, then the file itself), or a dump of its flight recorder. */
struct log_file {
    uint64_t worker_id;
    uint64_t epoch; /* epoch of a dump */
    int32_t rank;
    bool old; /* reads the .1 */
    uint64_t offset;
};

/* Where a request resumes: twice the offset in the file, plus 1 if the file is the .1. */
struct log_position {
    uint64_t worker_id, position;
};

/* A piece that was read and is not sent yet. */
struct log_piece {
    uint64_t worker_id, position;
    int32_t rank;
    size_t len;
    char bytes[CHUNK_BYTES];
};

/* A thread reads a few pieces; the loop sends them; then the thread reads again. */
struct log_request {
    struct file_task task; /* must be the first member */
    struct log_request *next;
    struct logs *owner; /* used only by the loop, like `reading` and `cancelled` */
    bool reading;       /* a thread uses the fields below `cancelled` */
    bool cancelled;
    uint64_t id;
    int32_t rank;
    bool flight, follow, ending, full, over; /* full: there is more to read; over: all is read */
    bool cut;                                /* `over` is set, but not all could be read */
    bool odd;                                /* an entry is not a regular file */
    uint32_t tail_lines;
    char node[256], key[PATH_MAX + 8], folder[PATH_MAX]; /* folder: JOBDIR */
    struct log_file *files;
    size_t n_files, cap_files;
    struct log_position *after;
    size_t n_after;
    struct log_piece *pieces[PIECES_MAX];
    size_t n_pieces;
};

struct logs {
    struct file_pool *pool;
    uv_timer_t timer;
    logs_send_cb send;
    void *data;
    char node[256];
    struct log_request *first;
    void (*done)(void *);
    void *done_data;
};

static const struct log logs_log = {.subsystem = "agent"};

/* Logs once per request, because a followed request retries. */
static void cannot_read(struct log_request *r, const struct titan_error *err)
{
    if (!r->odd && err->status != TITAN_ENOTFOUND)
        tlog_warn(&logs_log, "a job's logs are not all read", "folder=\"%s\" reason=\"%s\"", r->folder, err->msg);
    r->odd |= err->status != TITAN_ENOTFOUND;
}

/* Opens a file of the folder. Returns -1 if it is missing or of the wrong kind. */
static int open_below(struct log_request *r, const char *name)
{
    struct titan_error err = {0};
    int fd = -1;
    if (job_files_folder(r->folder, name, false, &fd, &err) != TITAN_OK)
        cannot_read(r, &err);
    return fd;
}

static int request_folder(struct log_request *r)
{
    return open_below(r, r->flight ? "flight" : "logs");
}

static void file_name(const struct log_request *r, const struct log_file *f, bool old, char out[96])
{
    if (r->flight)
        (void)snprintf(out, 96, "worker-%" PRIu64 "-epoch-%" PRIu64 ".json%s", f->worker_id, f->epoch, old ? ".1" : "");
    else
        (void)snprintf(out, 96, "worker-%" PRIu64 ".log%s", f->worker_id, old ? ".1" : "");
}

static uint64_t file_size(struct log_request *r, const struct log_file *f, bool old)
{
    char name[96];
    struct stat st;
    _cleanup_fd_ int at = request_folder(r);
    file_name(r, f, old, name);
    return at >= 0 && fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? (uint64_t)st.st_size : 0;
}

static size_t file_piece(struct log_request *r, const struct log_file *f, bool old, uint64_t offset, char *out,
                         size_t max)
{
    char name[96];
    file_name(r, f, old, name);
    struct titan_error err = {0};
    _cleanup_fd_ int at = request_folder(r), fd = -1;
    if (at < 0)
        return 0;
    if (job_files_open(at, name, O_RDONLY, &fd, &err) != TITAN_OK) {
        cannot_read(r, &err);
        return 0;
    }
    const ssize_t n = pread(fd, out, max, (off_t)offset);
    return n > 0 ? (size_t)n : 0;
}

/* Returns the start of the file's last *lines lines. If the file has fewer, *lines becomes the missing number. */
static uint64_t tail_offset(struct log_request *r, const struct log_file *f, bool old, uint32_t *lines)
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

enum read_result { READ_MORE, READ_DONE, READ_FULL };

static enum read_result file_read_on(struct log_request *r, struct log_file *f)
{
    struct log_piece *piece = r->n_pieces < PIECES_MAX ? malloc(sizeof(*piece)) : NULL;
    if (!piece)
        return READ_FULL;
    bool last = r->ending || !r->follow || f->old;
    /* The file is shorter than the part read so far. So it was emptied, and the rest is in the .1. */
    if (!f->old && file_size(r, f, false) < f->offset)
        f->old = true;
    size_t n = file_piece(r, f, f->old, f->offset, piece->bytes, sizeof(piece->bytes));
    titan_assert(n <= sizeof(piece->bytes));
    /* Sends the piece up to its last newline. Two kinds of piece are sent whole: a line longer than a chunk, and the
     * last line of a log that is no longer followed. */
    size_t send = n;
    while (send > 0 && piece->bytes[send - 1] != '\n')
        send--;
    if (!send && (n == CHUNK_BYTES || last))
        send = n;
    f->offset += send;
    if (send) {
        piece->worker_id = f->worker_id;
        piece->position = r->flight ? 0 : f->offset << 1 | f->old;
        piece->rank = f->rank;
        piece->len = send;
        r->pieces[r->n_pieces++] = piece;
        return READ_MORE;
    }
    free(piece);
    if (f->old) {
        f->old = false;
        f->offset = 0;
        return READ_MORE;
    }
    return READ_DONE;
}

static struct log_file *request_file(struct log_request *r, uint64_t worker_id, uint64_t epoch)
{
    for (size_t i = 0; i < r->n_files; i++)
        if (r->files[i].worker_id == worker_id && r->files[i].epoch == epoch)
            return &r->files[i];
    const struct log_file file = {.worker_id = worker_id, .epoch = epoch, .rank = -1};
    if (r->n_files == FILES_MAX || !VEC_PUSH(r->files, r->n_files, r->cap_files, file))
        return NULL;
    struct log_file *f = &r->files[r->n_files - 1];

    /* Reads the file from the request's position. Without a position, reads only its last lines. */
    f->old = file_size(r, f, true) > 0;
    for (size_t i = 0; i < r->n_after && !r->flight; i++)
        if (r->after[i].worker_id == f->worker_id) {
            f->old = r->after[i].position & 1;
            f->offset = r->after[i].position >> 1;
            return f;
        }
    uint32_t lines = r->tail_lines;
    if (!lines)
        return f;
    const uint64_t newest = tail_offset(r, f, false, &lines);
    f->old = f->old && lines > 0;
    f->offset = f->old ? tail_offset(r, f, true, &lines) : newest;
    return f;
}

static void request_read(struct file_task *k)
{
    struct log_request *r = (struct log_request *)(void *)k;
    const bool lists = r->folder[0] && !(r->flight && r->n_files > 0);
    r->full = false;
    if (lists && r->flight) { /* lists all dumps, because it is not known yet which workers are this node's */
        int flight = open_below(r, "flight");
        DIR *dir = flight < 0 ? NULL : fdopendir(flight);
        for (struct dirent *e; dir && (e = readdir(dir));) {
            uint64_t worker_id = 0, epoch = 0;
            struct log_file *f =
                flight_parse_name(e->d_name, &worker_id, &epoch) ? request_file(r, worker_id, epoch) : NULL;
            if (f)
                f->rank = NOT_OURS;
        }
        if (dir)
            (void)closedir(dir);
    }

    /* JOBDIR/logs/ranks names this node's workers and their last ranks. */
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct titan_error err = {0};
    bool whole = false;
    _cleanup_fd_ int logs = lists ? open_below(r, "logs") : -1, fd = -1;
    const bool read = logs >= 0 && job_files_open(logs, "ranks", O_RDONLY, &fd, &err) == TITAN_OK &&
                      file_read_tail(fd, "ranks", RANKS_BYTES_MAX, &text, &whole, &err) == TITAN_OK;
    if (logs >= 0 && !read)
        cannot_read(r, &err);
    char *save = NULL, *first = !read ? NULL : whole ? text.data : strchr(text.data, '\n');
    for (char *line = first ? strtok_r(first, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        uint64_t worker_id;
        int32_t rank;
        char node[256];
        if (sscanf(line, "%" SCNu64 " %" SCNd32 " %255s", &worker_id, &rank, node) != 3 || strcmp(node, r->node) != 0)
            continue;
        if (!r->flight)
            (void)request_file(r, worker_id, 0);
        for (size_t i = 0; i < r->n_files; i++)
            if (r->files[i].worker_id == worker_id)
                r->files[i].rank = rank;
    }

    for (size_t i = 0; i < r->n_files && !r->full; i++) {
        struct log_file *f = &r->files[i];
        enum read_result result = READ_MORE;
        if (f->rank == NOT_OURS || (r->rank >= 0 && f->rank != r->rank))
            continue;
        while (result == READ_MORE)
            result = file_read_on(r, f);
        r->full = result == READ_FULL;
    }
    r->over = !r->full && (!r->follow || r->ending);
    r->cut |= r->over && r->odd;
}

static void request_free(struct file_task *k)
{
    struct log_request *r = (struct log_request *)(void *)k;
    for (size_t i = 0; i < r->n_pieces; i++)
        free(r->pieces[i]);
    free(r->files);
    free(r->after);
    free(r);
}

/* --- on the loop -------------------------------------------------------------------------------------------------- */

/* Sends the pieces read. Returns false if there is no room for all of them now. */
static bool request_send(struct log_request *r)
{
    size_t sent = 0;
    while (sent < r->n_pieces) {
        struct log_piece *piece = r->pieces[sent];
        Titan__Internal__AgentLogChunk chunk = TITAN__INTERNAL__AGENT_LOG_CHUNK__INIT;
        chunk.request_id = r->id;
        chunk.rank = piece->rank;
        chunk.worker_id = piece->worker_id;
        chunk.position = piece->position;
        chunk.data.data = (uint8_t *)piece->bytes;
        chunk.data.len = piece->len;
        if (!r->owner->send(&chunk, r->owner->data))
            break;
        free(r->pieces[sent++]);
    }
    r->n_pieces -= sent;
    memmove(r->pieces, r->pieces + sent, r->n_pieces * sizeof(r->pieces[0]));
    return r->n_pieces == 0;
}

static const struct file_calls read_calls;

/* Returns whether the request ended and its end was sent; the request is then freed. */
static bool request_step(struct log_request *r)
{
    const struct logs *l = r->owner;
    if (r->reading || !request_send(r))
        return false;
    if (!r->over) {
        titan_assert(r->n_pieces == 0);
        r->ending |= r->cancelled;
        r->reading = file_pool_add(l->pool, &r->task, &read_calls, sizeof(*r), NULL) == TITAN_OK;
        r->over = r->cut = !r->reading; /* no read is possible now, so the request ends */
        return false;
    }
    Titan__Internal__AgentLogChunk end = TITAN__INTERNAL__AGENT_LOG_CHUNK__INIT;
    end.request_id = r->id;
    end.rank = r->rank;
    end.end = true;
    end.cut = r->cut;
    if (!l->send(&end, l->data))
        return false;
    request_free(&r->task);
    return true;
}

static struct log_request **request_place(struct log_request *r)
{
    struct log_request **at = &r->owner->first;
    while (*at != r)
        at = &(*at)->next;
    return at;
}

static void request_was_read(struct file_task *k)
{
    struct log_request *r = (struct log_request *)(void *)k;
    struct log_request **at = request_place(r), *next = r->next;
    r->reading = false;
    /* Existing data is read as fast as it is sent. New data of a followed file is read when the timer fires. */
    if (!r->full && !r->over)
        (void)request_send(r);
    else if (request_step(r))
        *at = next;
}

/* The request's folder does not answer. A new request, which only sends the end, replaces this one. */
static void request_given_up(struct file_task *k, bool started)
{
    struct log_request *r = (struct log_request *)(void *)k;
    struct log_request **at = request_place(r), *end = calloc(1, sizeof(*end));
    *at = r->next;
    if (end) {
        end->owner = r->owner;
        end->id = r->id;
        end->rank = r->rank;
        end->over = end->cut = true;
        end->next = *at;
        *at = end;
    }
    if (!started)
        request_free(k);
}

static const struct file_calls read_calls = {
    .run = request_read, .done = request_was_read, .given_up = request_given_up, .free = request_free};

static void on_timer(uv_timer_t *timer)
{
    HANDLER("worker.log");
    struct logs *l = timer->data;
    for (struct log_request **at = &l->first; *at;) {
        struct log_request *r = *at, *next = r->next;
        if (request_step(r))
            *at = next;
        else
            at = &r->next;
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
    r->owner = l;
    r->id = request->request_id;
    r->rank = request->rank;
    r->flight = request->flight;
    r->follow = request->follow && !r->flight && n < REQUESTS_MAX;
    r->tail_lines = r->flight ? 0 : request->tail_lines;
    r->after = calloc(request->n_after + 1, sizeof(*r->after));
    for (size_t i = 0; r->after && i < request->n_after; i++)
        r->after[r->n_after++] = (struct log_position){request->after[i]->worker_id, request->after[i]->position};
    r->task.key = r->key;
    (void)snprintf(r->node, sizeof(r->node), "%s", l->node);
    (void)snprintf(r->key, sizeof(r->key), "%s%s", job_dir ? job_dir : "", r->flight ? "/flight" : "");
    if (!job_dir || snprintf(r->folder, sizeof(r->folder), "%s", job_dir) >= (int)sizeof(r->folder)) {
        r->folder[0] = '\0';
        r->follow = false;
    }
    r->next = l->first;
    l->first = r;
    (void)uv_timer_start(&l->timer, on_timer, 0, FOLLOW_MS);
}

void logs_cancel(struct logs *l, uint64_t request_id)
{
    for (struct log_request *r = l->first; r; r = r->next)
        if (r->id == request_id)
            r->cancelled = true;
}

void logs_forget(struct logs *l)
{
    while (l->first) {
        struct log_request *r = l->first;
        l->first = r->next;
        if (!r->reading || file_pool_abandon(l->pool, &r->task))
            request_free(&r->task);
    }
}

/* --- ranks -------------------------------------------------------------------------------------------------------- */

struct rank_line {
    struct file_task task; /* must be the first member */
    char job_dir[PATH_MAX], node[256];
    uint64_t worker_id;
    int32_t rank;
};

void logs_write_rank(const char *job_dir, const char *node, uint64_t worker_id, int32_t rank)
{
    char line[512];
    struct titan_error err = {0};
    int len = snprintf(line, sizeof(line), "%" PRIu64 " %" PRId32 " %s\n", worker_id, rank, node);
    _cleanup_fd_ int logs = -1, fd = -1;
    titan_status status = job_files_folder(job_dir, "logs", false, &logs, &err);
    if (status == TITAN_OK)
        status = job_files_open(logs, "ranks", O_WRONLY | O_CREAT | O_APPEND, &fd, &err);
    /* Writes the line in one call, so that nodes that share the folder do not mix their lines. */
    if (status == TITAN_OK && write(fd, line, (size_t)len) != len)
        status = titan_fail_errno(&err, "cannot write 'ranks'");
    if (status != TITAN_OK && status != TITAN_ENOTFOUND)
        tlog_warn(&logs_log, "a worker's rank is not noted: its log is not served",
                  "worker=%" PRIu64 " folder=\"%s\" reason=\"%s\"", worker_id, job_dir, err.msg);
}

static void rank_run(struct file_task *k)
{
    const struct rank_line *r = (const struct rank_line *)(const void *)k;
    logs_write_rank(r->job_dir, r->node, r->worker_id, r->rank);
}

void logs_record(const struct logs *l, const char *job_dir, uint64_t worker_id, int32_t rank)
{
    /* if this task is given up, the log is served under the previous rank */
    static const struct file_calls calls = {.run = rank_run};
    struct rank_line *r = calloc(1, sizeof(*r));
    if (!r)
        return;
    r->task.key = r->job_dir;
    r->worker_id = worker_id;
    r->rank = rank;
    (void)snprintf(r->job_dir, sizeof(r->job_dir), "%s", job_dir);
    (void)snprintf(r->node, sizeof(r->node), "%s", l->node);
    if (file_pool_add(l->pool, &r->task, &calls, sizeof(*r), NULL) != TITAN_OK)
        free(r);
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

titan_status logs_open(uv_loop_t *loop, const struct logs_options *o, struct logs **ret, struct titan_error *err)
{
    struct logs *l = calloc(1, sizeof(*l));
    if (!l)
        return titan_fail(err, TITAN_ENOMEM, "no memory for logs");
    l->pool = o->files;
    l->send = o->send;
    l->data = o->data;
    (void)snprintf(l->node, sizeof(l->node), "%s", o->node);
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

titan_status log_bound(const char *path, uint64_t max, struct titan_error *err)
{
    char folder[PATH_MAX], old[NAME_MAX + 1], part[NAME_MAX + 1];
    struct stat st;
    titan_assert(max >= 2);
    file_parent(path, folder);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (snprintf(old, sizeof(old), "%s.1", name) > NAME_MAX || snprintf(part, sizeof(part), "%s.2", name) > NAME_MAX)
        return titan_fail(err, TITAN_EINVAL, "log path '%s' is too long", path);
    _cleanup_fd_ int at = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (at < 0 || fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || (uint64_t)st.st_size <= max / 2)
        return TITAN_OK;
    _cleanup_fd_ int in = -1;
    if (job_files_open(at, name, O_RDWR, &in, err) != TITAN_OK)
        return titan_error_wrap(err, "log '%s'", path);
    if (fstat(in, &st) < 0)
        return titan_fail_errno(err, "cannot copy log '%s'", path);
    (void)unlinkat(at, part, 0);
    _cleanup_fd_ int out = openat(at, part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (out < 0)
        return titan_fail_errno(err, "cannot copy log '%s'", path);
    off_t from = (uint64_t)st.st_size > max / 2 + max / 8 ? st.st_size - (off_t)(max / 2) : 0;
    titan_status status = TITAN_OK;
    while (from < st.st_size && status == TITAN_OK) {
        const ssize_t n = sendfile(out, in, &from, (size_t)(st.st_size - from));
        if (n == 0)
            break; /* the file shrank meanwhile */
        if (n < 0 && errno != EINTR)
            status = titan_fail_errno(err, "cannot copy log '%s'", path);
    }
    /* NOLINTNEXTLINE(readability-suspicious-call-argument): the parameter of rename called "old" is the other one */
    if (status == TITAN_OK && renameat(at, part, at, old) < 0)
        status = titan_fail_errno(err, "cannot rename '%s'", part);
    if (status != TITAN_OK)
        (void)unlinkat(at, part, 0);
    /* Empties the file even after a failed copy, because a full disk needs this most. */
    if (ftruncate(in, 0) < 0 && status == TITAN_OK)
        status = titan_fail_errno(err, "cannot empty log '%s'", path);
    return status;
}
