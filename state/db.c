/* SPDX-License-Identifier: Apache-2.0 */
#include "state/db.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/hash.h"

#define DB_STATEMENTS 256 /* slots of the statement table; a power of two, well above the number of literals */

struct db {
    sqlite3 *handle;
    bool writer, sync_failed;
    int wal_pages;
    struct {
        const char *sql;
        sqlite3_stmt *stmt;
    } cache[DB_STATEMENTS];
};

titan_status db_fail(struct db *db, const char *what, struct titan_error *err)
{
    titan_assert(db->handle && what);
    int extended = sqlite3_extended_errcode(db->handle), code = extended & 0xff;
    int sys = sqlite3_system_errno(db->handle);
    if (extended == SQLITE_IOERR_FSYNC || extended == SQLITE_IOERR_DIR_FSYNC)
        db->sync_failed = true;
    titan_status status = TITAN_EIO;
    switch (code) {
    case SQLITE_FULL:
        status = TITAN_ENOSPC;
        break;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
        status = sys == ENOSPC || sys == EDQUOT || sys == EFBIG ? TITAN_ENOSPC
                 : sys == EACCES                                ? TITAN_EPERM
                                                                : TITAN_EIO;
        break;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        status = TITAN_ECORRUPT;
        break;
    case SQLITE_CONSTRAINT:
        status = TITAN_ECONFLICT;
        break;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        status = TITAN_EAGAIN;
        break;
    case SQLITE_NOMEM:
        status = TITAN_ENOMEM;
        break;
    case SQLITE_PERM:
    case SQLITE_READONLY:
        status = TITAN_EPERM;
        break;
    case SQLITE_MISUSE:
    case SQLITE_ERROR:
    case SQLITE_RANGE:
        status = TITAN_EBUG;
        break;
    default:
        break;
    }
    if (status == TITAN_EBUG || status == TITAN_ECONFLICT) /* only for these errors does the statement's text help */
        titan_fail(err, status, "job store: %s: %s", sqlite3_errmsg(db->handle), what);
    else
        titan_fail(err, status, "job store: %s", sqlite3_errmsg(db->handle));
    if (err && status == TITAN_EAGAIN)
        titan_error_hint(err,
                         "another process has it open; of a titand that runs, `titanctl admin backup` makes a copy");
    if (err && status == TITAN_ENOSPC)
        titan_error_hint(err, "free space on the file system of the state directory; nothing accepted is lost");
    return status;
}

titan_status db_sync_failed(const struct db *db, struct titan_error *err)
{
    if (!db->sync_failed)
        return TITAN_OK;
    titan_fail(err, TITAN_EIO, "job store: an fsync has failed; what was written last may not be on the disk");
    if (err)
        titan_error_hint(err, "look for the disk's errors in the kernel's log; a new start reads what is on it");
    return TITAN_EIO;
}

/* --- the WAL ------------------------------------------------------------------------------------------------------ */

static int on_wal(void *data, sqlite3 *handle, const char *name, int pages)
{
    titan_assert(handle == ((struct db *)data)->handle && pages >= 0);
    struct db *db = data;
    (void)handle;
    (void)name;
    db->wal_pages = pages;
    return SQLITE_OK;
}

int db_wal_pages(const struct db *db)
{
    return db->wal_pages;
}

void db_checkpoint(struct db *db)
{
    titan_assert(db->writer);
    int left = 0, moved = 0;
    int rc = sqlite3_wal_checkpoint_v2(db->handle, NULL, SQLITE_CHECKPOINT_PASSIVE, &left, &moved);
    db->wal_pages = 0; /* the next check comes after as many new pages */
    if (rc != SQLITE_OK)
        (void)db_fail(db, "checkpoint", NULL);
}

titan_status db_rewrite_wal(const char *path, struct titan_error *err)
{
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    char wal[PATH_MAX + 8];
    int there = 0, flags = 0;
    if (snprintf(wal, sizeof(wal), "%s-wal", path) >= (int)sizeof(wal))
        return titan_fail(err, TITAN_EINVAL, "'%s': path is too long", path);
    if (vfs->xAccess(vfs, wal, SQLITE_ACCESS_EXISTS, &there) != SQLITE_OK || !there)
        return TITAN_OK;
    sqlite3_file *file = calloc(1, (size_t)vfs->szOsFile);
    if (!file)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    int rc = vfs->xOpen(vfs, wal, file, SQLITE_OPEN_READWRITE | SQLITE_OPEN_WAL, &flags);
    enum { CHUNK = 1 << 16 };
    sqlite3_int64 size = 0;
    char *chunk = sqlite3_malloc(CHUNK);
    if (rc == SQLITE_OK)
        rc = chunk ? file->pMethods->xFileSize(file, &size) : SQLITE_NOMEM;
    for (sqlite3_int64 at = 0; at < size && rc == SQLITE_OK; at += CHUNK) {
        const int n = (int)MIN(size - at, (sqlite3_int64)CHUNK);
        rc = file->pMethods->xRead(file, chunk, n, at);
        if (rc == SQLITE_OK)
            rc = file->pMethods->xWrite(file, chunk, n, at);
    }
    if (rc == SQLITE_OK)
        rc = file->pMethods->xSync(file, SQLITE_SYNC_FULL);
    sqlite3_free(chunk);
    if (file->pMethods)
        (void)file->pMethods->xClose(file);
    free(file);
    if (rc == SQLITE_FULL)
        return titan_fail(err, TITAN_ENOSPC, "'%s': %s", wal, sqlite3_errstr(rc));
    return rc == SQLITE_OK ? TITAN_OK
                           : titan_fail(err, TITAN_EIO, "'%s' cannot be written: %s", wal, sqlite3_errstr(rc));
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

static titan_status set_up(struct db *db, enum db_mode mode, bool durable, struct titan_error *err)
{
    titan_assert(db->handle && db->writer == (mode == DB_WRITER));
    sqlite3_busy_timeout(db->handle, mode == DB_PROBE ? 0 : 2000);
    sqlite3_extended_result_codes(db->handle, 0);
    if (mode != DB_WRITER)
        sqlite3_db_config(db->handle, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    if (mode == DB_PROBE)
        return TITAN_OK;
    TRY(db_exec(db, "PRAGMA mmap_size=0; PRAGMA foreign_keys=ON; PRAGMA trusted_schema=OFF; PRAGMA temp_store=MEMORY",
                err));
    if (mode == DB_READER)
        return db_exec(db, "PRAGMA wal_autocheckpoint=0; PRAGMA query_only=1", err);
    /* SQLite returns the resulting mode, which differs if it cannot create the WAL. */
    sqlite3_stmt *stmt = NULL;
    bool row = false, wal = false;
    TRY(db_query(db, &stmt, err, "PRAGMA journal_mode=WAL", ""));
    const titan_status status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK)
        wal = row && (strcmp(col_text(stmt, 0), "wal") == 0 || strcmp(col_text(stmt, 0), "memory") == 0);
    db_done(stmt);
    TRY(status);
    if (!wal)
        return titan_fail(err, TITAN_EIO, "job store: the WAL cannot be opened");
    TRY(db_exec(db, "PRAGMA wal_autocheckpoint=0; PRAGMA journal_size_limit=67108864", err));
    sqlite3_wal_hook(db->handle, on_wal, db);
    return db_exec(db, durable ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL", err);
}

titan_status db_open(const char *path, enum db_mode mode, bool durable, struct db **ret, struct titan_error *err)
{
    titan_assert(path && *path);
    struct db *db = calloc(1, sizeof(*db));
    if (!db)
        return titan_fail(err, TITAN_ENOMEM, "job store: out of memory opening '%s'", path);
    db->writer = mode == DB_WRITER;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (mode == DB_WRITER ? SQLITE_OPEN_CREATE : 0);
    titan_status status = TITAN_OK;
    /* Uses the VFS for a single process, with the WAL index in the process's memory. By default the index is a mapped
     * file. A read writes to this file and waits for the disk, and titand's event loop reads. */
    const bool own = strcmp(sqlite3_vfs_find(NULL)->zName, "unix") == 0 && failpoint("store.shared", NULL) == TITAN_OK;
    if (sqlite3_open_v2(path, &db->handle, flags, own ? "unix-excl" : NULL) != SQLITE_OK) {
        if (db->handle)
            status = db_fail(db, "cannot open", err);
        else
            status = titan_fail(err, TITAN_ENOMEM, "job store: out of memory opening '%s'", path);
    } else {
        status = set_up(db, mode, durable, err);
    }
    if (status != TITAN_OK) {
        if (err)
            titan_error_wrap(err, "'%s'", path);
        db_close(db);
        return status;
    }
    *ret = db;
    return TITAN_OK;
}

void db_close(struct db *db)
{
    if (!db)
        return;
    for (size_t i = 0; i < DB_STATEMENTS; i++)
        sqlite3_finalize(db->cache[i].stmt);
    if (db->sync_failed) /* the next process determines what the WAL holds */
        sqlite3_db_config(db->handle, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_close(db->handle);
    free(db);
}

sqlite3 *db_handle(struct db *db)
{
    return db->handle;
}

titan_status db_exec(struct db *db, const char *sql, struct titan_error *err)
{
    titan_assert(sql && *sql);
    if (sqlite3_exec(db->handle, sql, NULL, NULL, NULL) != SQLITE_OK)
        return db_fail(db, sql, err);
    return TITAN_OK;
}

static titan_status prepare(struct db *db, const char *sql, sqlite3_stmt **ret, struct titan_error *err)
{
    size_t slot = hash_mix((uintptr_t)sql);
    for (size_t i = 0;; i++) {
        titan_assert(i < DB_STATEMENTS);
        slot = (slot + 1) & (DB_STATEMENTS - 1);
        if (db->cache[slot].sql == sql) {
            titan_assert(!sqlite3_stmt_busy(
                db->cache[slot].stmt)); /* db_done() was called, and no other query uses the statement */
            *ret = db->cache[slot].stmt;
            return TITAN_OK;
        }
        if (!db->cache[slot].sql)
            break;
    }
    sqlite3_stmt *stmt = NULL;
    if (sqlite3_prepare_v3(db->handle, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, NULL) != SQLITE_OK)
        return db_fail(db, sql, err);
    titan_assert(stmt && !db->cache[slot].stmt);
    db->cache[slot].sql = sql;
    db->cache[slot].stmt = *ret = stmt;
    return TITAN_OK;
}

/* Binds the values that fmt describes to the last parameters. */
static int bind(sqlite3_stmt *stmt, const char *fmt, va_list ap)
{
    int code = SQLITE_OK, i = sqlite3_bind_parameter_count(stmt) - (int)strlen(fmt) + 1;
    for (; *fmt && code == SQLITE_OK; fmt++, i++) {
        switch (*fmt) {
        case 'i':
            code = sqlite3_bind_int64(stmt, i, va_arg(ap, int64_t));
            break;
        case 'u':
            code = sqlite3_bind_int64(stmt, i, (int64_t)va_arg(ap, uint64_t));
            break;
        case 't': {
            const char *text = va_arg(ap, const char *);
            code = text ? sqlite3_bind_text(stmt, i, text, -1, SQLITE_STATIC) : sqlite3_bind_null(stmt, i);
            break;
        }
        case 'r': {
            double real = va_arg(ap, double);
            code = isnan(real) ? sqlite3_bind_null(stmt, i) : sqlite3_bind_double(stmt, i, real);
            break;
        }
        case 'b': {
            const void *data = va_arg(ap, const void *);
            size_t len = va_arg(ap, size_t);
            code = sqlite3_bind_blob64(stmt, i, data ? data : "", len, SQLITE_STATIC);
            break;
        }
        default:
            titan_assert(!"binding letter");
        }
    }
    return code;
}

void db_done(sqlite3_stmt *stmt)
{
    if (!stmt)
        return;
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
}

static titan_status run(struct db *db, sqlite3_stmt *stmt, int code, const char *sql, struct titan_error *err)
{
    if (code == SQLITE_OK)
        code = sqlite3_step(stmt);
    const titan_status status = code == SQLITE_DONE || code == SQLITE_ROW ? TITAN_OK : db_fail(db, sql, err);
    db_done(stmt);
    return status;
}

static titan_status begin(struct db *db, const char *sql, const char *fmt, va_list ap, sqlite3_stmt **ret,
                          struct titan_error *err)
{
    TRY(prepare(db, sql, ret, err));
    titan_assert(sqlite3_bind_parameter_count(*ret) == (int)strlen(fmt));
    if (bind(*ret, fmt, ap) == SQLITE_OK)
        return TITAN_OK;
    const titan_status status = db_fail(db, sql, err);
    db_done(*ret);
    return status;
}

titan_status db_run(struct db *db, struct titan_error *err, const char *sql, const char *fmt, ...)
{
    sqlite3_stmt *stmt = NULL;
    va_list ap;
    va_start(ap, fmt);
    const titan_status status = begin(db, sql, fmt, ap, &stmt, err);
    va_end(ap);
    return status == TITAN_OK ? run(db, stmt, SQLITE_OK, sql, err) : status;
}

static int bind_field(sqlite3_stmt *stmt, int i, const struct db_field *f, const void *at)
{
    size_t len = f->size;
    const char *text = at;
    switch (f->kind) {
    case DB_64:
        return sqlite3_bind_int64(stmt, i, *(const int64_t *)at);
    case DB_SIGNED:
        return sqlite3_bind_int64(stmt, i, *(const int32_t *)at);
    case DB_UNSIGNED:
        return sqlite3_bind_int64(stmt, i, *(const uint32_t *)at);
    case DB_BOOL:
        return sqlite3_bind_int64(stmt, i, *(const bool *)at);
    case DB_REAL:
        return isnan(*(const double *)at) ? sqlite3_bind_null(stmt, i)
                                          : sqlite3_bind_double(stmt, i, *(const double *)at);
    case DB_TEXT:
        text = *(const char *const *)at ? *(const char *const *)at : "";
        return sqlite3_bind_text(stmt, i, text, -1, SQLITE_STATIC);
    case DB_CHARS:
        return sqlite3_bind_text(stmt, i, text, -1, SQLITE_STATIC);
    case DB_BITS:
        titan_assert(len > sizeof(uint64_t)); /* DB_BITS is for structs, because a number has at most 8 bytes */
        while (len > 1 && !text[len - 1])
            len--;
        break;
    case DB_BYTES:
        break;
    }
    return sqlite3_bind_blob64(stmt, i, at, len, SQLITE_STATIC);
}

titan_status db_put(struct db *db, struct titan_error *err, const char *sql, const struct db_row *row, const void *from,
                    const char *fmt, ...)
{
    sqlite3_stmt *stmt = NULL;
    int code = SQLITE_OK;
    TRY(prepare(db, sql, &stmt, err));
    titan_assert((size_t)sqlite3_bind_parameter_count(stmt) == row->n + strlen(fmt));
    for (size_t i = 0; i < row->n && code == SQLITE_OK; i++)
        code = bind_field(stmt, (int)i + 1, &row->fields[i], (const char *)from + row->fields[i].offset);
    va_list ap;
    va_start(ap, fmt);
    if (code == SQLITE_OK)
        code = bind(stmt, fmt, ap);
    va_end(ap);
    return run(db, stmt, code, sql, err);
}

int db_changes(struct db *db)
{
    return sqlite3_changes(db->handle);
}

titan_status db_query(struct db *db, sqlite3_stmt **ret, struct titan_error *err, const char *sql, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const titan_status status = begin(db, sql, fmt, ap, ret, err);
    va_end(ap);
    return status;
}

titan_status db_step(struct db *db, sqlite3_stmt *stmt, bool *ret_row, struct titan_error *err)
{
    titan_assert(stmt && sqlite3_db_handle(stmt) == db->handle);
    int code = sqlite3_step(stmt);
    if (code != SQLITE_ROW && code != SQLITE_DONE)
        return db_fail(db, "read", err);
    *ret_row = code == SQLITE_ROW;
    return TITAN_OK;
}

titan_status db_int(struct db *db, int64_t *ret, struct titan_error *err, const char *sql, const char *fmt, ...)
{
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    va_list ap;
    va_start(ap, fmt);
    titan_status status = begin(db, sql, fmt, ap, &stmt, err);
    va_end(ap);
    TRY(status);
    status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK)
        *ret = row ? sqlite3_column_int64(stmt, 0) : 0; /* 0 for NULL */
    db_done(stmt);
    return status;
}

const char *col_text(sqlite3_stmt *stmt, int i)
{
    titan_assert(i >= 0 && i < sqlite3_column_count(stmt));
    const char *text = (const char *)sqlite3_column_text(stmt, i);
    return text ? text : "";
}

int64_t col_int(sqlite3_stmt *stmt, int i)
{
    titan_assert(i >= 0 && i < sqlite3_column_count(stmt));
    return sqlite3_column_int64(stmt, i);
}

uint64_t col_uint(sqlite3_stmt *stmt, int i)
{
    titan_assert(i >= 0 && i < sqlite3_column_count(stmt));
    return (uint64_t)sqlite3_column_int64(stmt, i);
}

double col_real(sqlite3_stmt *stmt, int i)
{
    titan_assert(i >= 0 && i < sqlite3_column_count(stmt));
    return sqlite3_column_type(stmt, i) == SQLITE_NULL ? NAN : sqlite3_column_double(stmt, i);
}

void col_blob(sqlite3_stmt *stmt, int i, void *out, size_t cap)
{
    titan_assert(i >= 0 && i < sqlite3_column_count(stmt) && cap > 0);
    const void *data = sqlite3_column_blob(stmt, i);
    size_t len = data ? (size_t)sqlite3_column_bytes(stmt, i) : 0;
    len = len < cap ? len : cap;
    memset(out, 0, cap);
    if (len)
        memcpy(out, data, len);
}

bool db_next(struct db *db, sqlite3_stmt *stmt, const struct db_row *row, void *ret, titan_status *ret_status,
             struct titan_error *err)
{
    bool there = false;
    *ret_status = db_step(db, stmt, &there, err);
    if (!there)
        return false;
    memset(ret, 0, row->bytes);
    for (int i = 0; i < (int)row->n; i++) {
        const struct db_field *const f = &row->fields[i];
        void *const at = (char *)ret + f->offset;
        switch (f->kind) {
        case DB_64:
            *(int64_t *)at = col_int(stmt, i);
            break;
        case DB_SIGNED:
        case DB_UNSIGNED:
            *(uint32_t *)at = (uint32_t)col_int(stmt, i);
            break;
        case DB_BOOL:
            *(bool *)at = col_int(stmt, i) != 0;
            break;
        case DB_REAL:
            *(double *)at = col_real(stmt, i);
            break;
        case DB_TEXT:
            *(const char **)at = col_text(stmt, i);
            break;
        case DB_CHARS:
            (void)snprintf(at, f->size, "%s", col_text(stmt, i));
            break;
        case DB_BYTES:
        case DB_BITS:
            col_blob(stmt, i, at, f->size);
            break;
        }
    }
    return true;
}
