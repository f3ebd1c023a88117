/* SPDX-License-Identifier: Apache-2.0 */
/* flight_dumps.c - see flight_dumps.h. */
#include "daemon/agent/shell/flight_dumps.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/vec.h"
#include "daemon/common/job_files.h"

#define DUMP_BYTES_MAX ((size_t)1 << 20)
#define AGAIN_NS INT64_C(100000000)  /* minimum between dumps for one cause, except for a worker at fault */
#define HUNG_NS INT64_C(10000000000) /* time in which a revoke does not replace the dump of a hang */

struct dump {
    struct file_task task; /* must be the first member */
    struct log log;
    struct flight_ring *ring;
    struct dump_head head;
    char job_dir[PATH_MAX], folder[PATH_MAX + 8], detail[160], node[256];
};

/* --- the text ----------------------------------------------------------------------------------------------------- */

void dump_print(const struct dump_head *head, const struct flight_copy *copy, struct buf *out)
{
    static const char *const causes[DUMP_CAUSES] = {"request", "revoke", "hang", "exit"};
    static const char *const kinds[FLIGHT_KINDS] = {"action", "collective", "send", "receive"};
    struct json_writer w = {.out = out};
    json_begin_object(&w, NULL);
    json_put_int(&w, "flight", 1);
    json_put_uint(&w, "job", head->job_id);
    json_put_uint(&w, "worker", head->worker_id);
    json_put_string(&w, "node", head->node);
    json_put_string(&w, "cause", causes[head->cause]);
    json_put_string(&w, "detail", head->detail);
    json_put_int(&w, "time_ms", head->wall_ms);
    json_put_int(&w, "now_ns", head->mono_ns);
    json_put_uint(&w, "epoch", copy->epoch);
    json_put_int(&w, "rank", copy->rank);
    json_put_int(&w, "world", copy->world);
    json_put_int(&w, "damaged", copy->damaged);

    json_begin_array(&w, "groups");
    for (int g = 0; g < FLIGHT_GROUPS; g++) {
        if (!copy->groups[g].name[0])
            continue;
        json_begin_object(&w, NULL);
        json_put_int(&w, "group", g);
        json_put_string(&w, "name", copy->groups[g].name);
        json_begin_array(&w, "members");
        for (int rank = 0; rank < copy->world; rank++)
            if (copy->groups[g].members[rank / 64] >> rank % 64 & 1)
                json_put_int(&w, NULL, rank);
        json_end_array(&w);
        json_end_object(&w);
    }
    json_end_array(&w);

    json_begin_array(&w, "records");
    for (int i = 0; i < copy->n; i++) {
        const struct flight_entry *e = &copy->entries[i];
        titan_assert(e->kind < FLIGHT_KINDS);
        buf_puts(w.out, "\n");
        json_begin_object(&w, NULL);
        json_put_string(&w, "kind", kinds[e->kind]);
        json_put_string(&w, "op", e->op);
        json_put_string(&w, "place", e->place);
        json_put_string(&w, "phase", e->phase);
        json_put_uint(&w, "step", e->step);
        json_put_int(&w, "microbatch", e->microbatch);
        if (e->kind != FLIGHT_ACTION) {
            json_put_int(&w, "group", e->group);
            json_put_uint(&w, "number", e->number);
            json_put_uint(&w, "bytes", e->bytes);
            json_put_int(&w, "peer", e->peer);
        }
        json_put_int(&w, "began_ns", e->began_ns);
        json_put_int(&w, "ended_ns", e->ended_ns);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_end_object(&w);
    buf_puts(out, "\n");
}

/* --- the folder --------------------------------------------------------------------------------------------------- */

struct dump_file {
    uint64_t worker, epoch, bytes;
};

static int by_epoch(const void *a, const void *b)
{
    const struct dump_file *x = a, *y = b;
    return x->epoch != y->epoch ? (x->epoch > y->epoch) - (x->epoch < y->epoch)
                                : (x->worker > y->worker) - (x->worker < y->worker);
}

static titan_status dump_write(const struct dump *d, struct titan_error *err)
{
    _cleanup_free_ struct flight_copy *copy = malloc(sizeof *copy);
    _cleanup_(buf_free) struct buf text = {.limit = DUMP_BYTES_MAX};
    char name[FLIGHT_NAME_BYTES];
    if (!copy)
        return titan_fail(err, TITAN_ENOMEM, "no memory for it");
    TRY(flight_check(d->ring, d->head.mono_ns, copy, err));
    if (copy->world == 0) /* the worker never was in an epoch */
        return TITAN_OK;
    dump_print(&d->head, copy, &text);
    if (buf_failed(&text))
        return titan_fail(err, TITAN_ELIMIT, "it takes more than %zu bytes", DUMP_BYTES_MAX);
    _cleanup_fd_ int folder = -1;
    TRY(job_files_folder(d->job_dir, "flight", true, &folder, err));
    flight_name(d->head.worker_id, copy->epoch, name);
    const titan_status status = file_place_at(folder, name, text.data, text.len, err);

    /* While the dumps exceed a limit, deletes dumps, oldest epochs first. Keeps the newest epoch's dumps. */
    _cleanup_free_ struct dump_file *files = NULL;
    size_t n = 0, cap = 0;
    uint64_t bytes = 0;
    const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        struct dump_file f;
        struct stat st;
        if (!flight_parse_name(e->d_name, &f.worker, &f.epoch) || fstatat(folder, e->d_name, &st, AT_SYMLINK_NOFOLLOW))
            continue;
        f.bytes = (uint64_t)st.st_size;
        bytes += f.bytes;
        if (!VEC_PUSH(files, n, cap, f))
            break;
    }
    if (dir)
        (void)closedir(dir);
    else if (fd >= 0)
        (void)close(fd);
    if (n > 1)
        qsort(files, n, sizeof *files, by_epoch);
    for (size_t i = 0; i < n && files[i].epoch < files[n - 1].epoch; i++) {
        if (n - i <= DUMPS_FILES_MAX && bytes <= DUMPS_BYTES_MAX)
            break;
        flight_name(files[i].worker, files[i].epoch, name);
        (void)unlinkat(folder, name, 0);
        bytes -= files[i].bytes;
    }
    return status;
}

static void dump_run(struct file_task *k)
{
    const struct dump *d = (const struct dump *)(const void *)k;
    struct titan_error err = {0};
    if (dump_write(d, &err) != TITAN_OK)
        tlog_warn(&d->log, "flight recorder not dumped", "job=%" PRIu64 " worker=%" PRIu64 " reason=\"%s\"",
                  d->head.job_id, d->head.worker_id, err.msg);
}

static void dump_free(struct file_task *k)
{
    free(((struct dump *)(void *)k)->ring);
    free(k);
}

/* --- on the loop -------------------------------------------------------------------------------------------------- */

void dump_worker(struct worker *w, enum dump_cause cause, const char *detail, struct file_pool *files,
                 const struct log *log)
{
    static const struct file_calls calls = {.run = dump_run, .free = dump_free};
    const int64_t now = clock_mono_ns();
    struct titan_error err = {0};
    char path[PATH_MAX];
    const bool again = w->dumped_for == (int)cause && now - w->dumped_ns < AGAIN_NS;
    if (w->start || w->start_error.status != TITAN_OK || (again && !detail) ||
        (cause == DUMP_REVOKE && w->hung_ns && now - w->hung_ns < HUNG_NS))
        return;
    struct dump *d = calloc(1, sizeof *d);
    if (!d)
        return;
    w->dumped_ns = now;
    w->dumped_for = (int)cause;
    if (cause == DUMP_HANG && detail)
        w->hung_ns = now;
    flight_path(w->page_path, path);
    titan_status status = flight_read(path, &d->ring, &err);
    d->log = *log;
    (void)snprintf(d->job_dir, sizeof d->job_dir, "%s", w->job_dir);
    (void)snprintf(d->folder, sizeof d->folder, "%s/flight", w->job_dir);
    (void)snprintf(d->detail, sizeof d->detail, "%s", detail ? detail : "");
    (void)snprintf(d->node, sizeof d->node, "%s", workers_node(w->set));
    d->task.key = d->folder;
    d->head = (struct dump_head){.job_id = w->job_id,
                                 .worker_id = w->id,
                                 .cause = cause,
                                 .detail = d->detail,
                                 .node = d->node,
                                 .wall_ms = clock_wall_ms(),
                                 .mono_ns = clock_mono_ns()};
    if (status == TITAN_OK)
        status = file_pool_add(files, &d->task, &calls, sizeof *d + sizeof *d->ring, &err);
    if (status == TITAN_OK)
        return;
    tlog_debug(log, "flight recorder not dumped", "job=%" PRIu64 " worker=%" PRIu64 " reason=\"%s\"", w->job_id, w->id,
               err.msg);
    dump_free(&d->task);
}

void dump_job(struct workers *workers, uint64_t job_id, enum dump_cause cause, struct file_pool *files,
              const struct log *log)
{
    for (struct worker *w = workers_first(workers); w; w = w->next)
        if (w->job_id == job_id && !w->reported)
            dump_worker(w, cause, NULL, files, log);
}
