/* SPDX-License-Identifier: Apache-2.0 */
/* Backup: copies the store on a thread of the pool, signs the copy, and sends it while reading it. The copy is in the
 * state directory, or in $TMPDIR if the state directory has no room. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/api/api.h"
#include "daemon/auth/signing_key.h"
#include "state/backup.h"

#define CHUNK ((size_t)64 << 10)

struct backup {
    struct coordinator *owner;
    struct rpc_call *call; /* NULL = the call is over, and the coordinator may be gone too */
    uv_work_t work;
    bool copying;
    char state_dir[PATH_MAX], store[PATH_MAX + 16], copy[PATH_MAX + 16];
    char folder[PATH_MAX]; /* folder made for the copy; "" = none */
    struct titan_error err;
    int fd;
    struct signature signature;
    struct buf signed_text;
    uint64_t sent;
};

static void backup_free(struct backup *b)
{
    if (b->fd >= 0)
        (void)close(b->fd);
    buf_free(&b->signed_text);
    free(b);
}

static void fail(struct backup *b)
{
    titan_assert(b->err.status != TITAN_OK);
    if (b->call)
        rpc_call_fail(b->call, &b->err);
}

/* The time of the last backup outlives the process, for those who watch its age. */
struct backup_time {
    int64_t at_ms;
};

static titan_status write_time(struct db *db, void *arg, struct titan_error *err)
{
    const struct backup_time *t = arg;
    return db_run(db, err, "INSERT INTO meta VALUES ('backup_at_ms', ?) ON CONFLICT (key) DO UPDATE SET value = ?",
                  "ii", t->at_ms, t->at_ms);
}

static void time_written(void *arg, const struct titan_error *err)
{
    (void)err;
    free(arg);
}

/* Sends until all is sent or the queue is full. */
static void pump(struct backup *b)
{
    titan_assert(b->call && b->fd >= 0 && b->sent <= b->signature.size && b->signed_text.len);
    static uint8_t data[CHUNK];
    Titan__V1__BackupChunk chunk = TITAN__V1__BACKUP_CHUNK__INIT;
    chunk.total_bytes = b->signature.size;
    while (b->sent < b->signature.size) {
        ssize_t n = pread(b->fd, data, CHUNK, (off_t)b->sent);
        if (n <= 0) {
            titan_fail(&b->err, TITAN_EIO, "'%s' cannot be read: %s", b->copy, n ? strerror(errno) : "it is shorter");
            fail(b);
            return;
        }
        chunk.data = (ProtobufCBinaryData){.data = data, .len = (size_t)n};
        if (b->sent + (uint64_t)n >= b->signature.size)
            chunk.signature = b->signed_text.data;
        if (rpc_call_send(b->call, &chunk.base) != TITAN_OK)
            return;
        b->sent += (uint64_t)n;
    }
    rpc_call_finish(b->call, TITAN_OK, NULL);

    struct coordinator *c = b->owner;
    struct backup_time *t = malloc(sizeof(*t));
    c->backup_at_ms = clock_wall_ms();
    if (!t)
        return;
    t->at_ms = c->backup_at_ms;
    store_write(c->store, write_time, t, time_written);
}

static bool has_room(const char *dir, uint64_t bytes)
{
    struct statvfs fs;
    return statvfs(dir, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize >= bytes;
}

/* Signs the content of the open descriptor. The same content is sent later, whatever happens to the file's name. */
static titan_status sign(struct backup *b, struct titan_error *err)
{
    bool made = false;
    struct signature_key key;
    TRY(signing_key_open(b->state_dir, &key, &made, err));
    (void)clock_format(clock_wall_ms(), b->signature.at);
    titan_status status = backup_head(b->copy, &b->signature.head, err);
    if (status == TITAN_OK && (b->fd = open(b->copy, O_RDONLY | O_CLOEXEC)) < 0)
        status = titan_fail_errno(err, "'%s'", b->copy);
    if (status == TITAN_OK)
        status = signature_digest(b->fd, &b->signature, err);
    if (status == TITAN_OK)
        status = signature_make(&b->signature, &key, &b->signed_text, err);
    signature_key_wipe(&key);
    return status;
}

static void copy(uv_work_t *work)
{
    struct backup *b = work->data;
    char wal[PATH_MAX + 24];
    const char *tmp = getenv("TMPDIR");
    struct stat file = {.st_size = 0}, log = {.st_size = 0};
    tmp = tmp && *tmp ? tmp : "/tmp";
    (void)snprintf(wal, sizeof(wal), "%s-wal", b->store);
    (void)stat(b->store, &file);
    (void)stat(wal, &log);
    const uint64_t size = (uint64_t)file.st_size + (uint64_t)log.st_size;
    /* Asks for room for two copies, because the store keeps growing, and a copy that fills the disk would stop the
     * store. */
    if (!has_room(b->state_dir, 2 * size) && has_room(tmp, size)) {
        if (snprintf(b->folder, sizeof(b->folder), "%s/titan-backup-XXXXXX", tmp) < (int)sizeof(b->folder) &&
            mkdtemp(b->folder))
            (void)snprintf(b->copy, sizeof(b->copy), "%s/titan.db", b->folder);
        else
            b->folder[0] = '\0';
    }
    const titan_status status = backup_copy(b->store, b->copy, &b->err);
    if (status == TITAN_ENOSPC)
        titan_error_hint(&b->err, "free space there, or start titand with TMPDIR on a file system that has some");
    if (status == TITAN_OK)
        (void)!sign(b, &b->err);
    (void)unlink(b->copy); /* the file goes with its last descriptor */
    if (b->folder[0])
        (void)rmdir(b->folder);
}

static void copied(uv_work_t *work, int cancelled)
{
    titan_assert(((struct backup *)work->data)->copying);
    struct backup *b = work->data;
    b->copying = false;
    if (cancelled)
        titan_fail(&b->err, TITAN_EUNREACHABLE, "the coordinator is stopping");
    if (!b->call)
        backup_free(b);
    else if (b->err.status != TITAN_OK)
        fail(b);
    else
        pump(b);
}

static titan_status begin(struct coordinator *c, struct rpc_call *call, struct backup **ret, struct titan_error *err)
{
    if (c->backup)
        return titan_fail(err, TITAN_ELIMIT, "another backup is under way");
    static unsigned count; /* an aborted call may leave a copy under way */
    struct backup *b = calloc(1, sizeof(*b));
    if (!b)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    b->owner = c;
    b->call = call;
    b->fd = -1;
    b->work.data = b;
    (void)snprintf(b->state_dir, sizeof(b->state_dir), "%s", c->state_dir);
    (void)snprintf(b->store, sizeof(b->store), "%s/titan.db", c->state_dir);
    (void)snprintf(b->copy, sizeof(b->copy), "%s/backup-%u.tmp", c->state_dir, count++);
    b->copying = uv_queue_work(c->loop, &b->work, copy, copied) == 0;
    if (!b->copying) {
        backup_free(b);
        return titan_fail(err, TITAN_ELIMIT, "no thread for a backup");
    }
    c->backup = *ret = b;
    return TITAN_OK;
}

void api_backup(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct titan_error err = {0};
    struct backup *b = NULL;
    struct coordinator *c = data;
    struct auth_user u;
    (void)base;
    api_user(c, call, &u);
    if (begin(c, call, &b, &err) != TITAN_OK) {
        api_failed(c, &u, POLICY_BACKUP, 0, &err);
        rpc_call_fail(call, &err);
        return;
    }
    rpc_call_set_data(call, b);
    api_on_record(c, u.actor, POLICY_BACKUP);
}

void api_backup_drain(struct rpc_call *call, void *data)
{
    struct backup *b = rpc_call_data(call);
    (void)data;
    if (b && !b->copying)
        pump(b);
}

void api_backup_closed(struct rpc_call *call, bool cancelled, void *data)
{
    struct coordinator *c = data;
    struct backup *b = rpc_call_data(call);
    (void)cancelled;
    if (!b)
        return;
    titan_assert(c->backup == b && b->call);
    rpc_call_set_data(TAKE(b->call), NULL);
    c->backup = NULL;
    if (!b->copying) /* a copy under way frees b at its end */
        backup_free(b);
}
