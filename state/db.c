#include "state/db.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define DB_STATEMENTS 256 /* slots of the statement table; a power of two, well above the literals there are */

struct db {
    sqlite3 *handle;
    struct {
        const char *sql;
        sqlite3_stmt *stmt;
    } cache[DB_STATEMENTS];
};

titan_status db_fail(struct db *db, const char *what, struct titan_error *err)
{
    int code = sqlite3_errcode(db->handle) & 0xff, sys = sqlite3_system_errno(db->handle);
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
    if (status == TITAN_EBUG || status == TITAN_ECONFLICT) /* then the statement matters, else it only confuses */
        titan_fail(err, status, "job store: %s: %s", sqlite3_errmsg(db->handle), what);
    else
        titan_fail(err, status, "job store: %s", sqlite3_errmsg(db->handle));
    if (err && status == TITAN_ENOSPC)
        titan_error_hint(err, "free space on the file system of the state directory; nothing accepted is lost");
    return status;
}

static titan_status set_up(struct db *db, enum db_mode mode, bool durable, struct titan_error *err)
{
    sqlite3_busy_timeout(db->handle, 2000);
    sqlite3_extended_result_codes(db->handle, 0);
    if (mode != DB_WRITER)
        sqlite3_db_config(db->handle, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    if (mode == DB_PROBE)
        return TITAN_OK;
    TRY(db_exec(db, "PRAGMA mmap_size=0; PRAGMA foreign_keys=ON; PRAGMA trusted_schema=OFF; PRAGMA temp_store=MEMORY",
                err));
    if (mode == DB_READER)
        return db_exec(db, "PRAGMA wal_autocheckpoint=0; PRAGMA query_only=1", err);
    TRY(db_exec(db, "PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=1000; PRAGMA journal_size_limit=67108864",
                err));
    return db_exec(db, durable ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL", err);
}

titan_status db_open(const char *path, enum db_mode mode, bool durable, struct db **ret, struct titan_error *err)
{
    struct db *db = calloc(1, sizeof(*db));
    if (!db)
        return titan_fail(err, TITAN_ENOMEM, "job store: out of memory opening '%s'", path);
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (mode == DB_WRITER ? SQLITE_OPEN_CREATE : 0);
    titan_status status = TITAN_OK;
    if (sqlite3_open_v2(path, &db->handle, flags, NULL) != SQLITE_OK) {
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
    sqlite3_close(db->handle);
    free(db);
}

sqlite3 *db_handle(struct db *db)
{
    return db->handle;
}

titan_status db_exec(struct db *db, const char *sql, struct titan_error *err)
{
    if (sqlite3_exec(db->handle, sql, NULL, NULL, NULL) != SQLITE_OK)
        return db_fail(db, sql, err);
    return TITAN_OK;
}

static titan_status prepare(struct db *db, const char *sql, sqlite3_stmt **ret, struct titan_error *err)
{
    size_t slot = ((uintptr_t)sql >> 3) * UINT64_C(0x9E3779B97F4A7C15) >> 40;
    for (size_t i = 0;; i++) {
        titan_assert(i < DB_STATEMENTS);
        slot = (slot + 1) & (DB_STATEMENTS - 1);
        if (db->cache[slot].sql == sql) {
            *ret = db->cache[slot].stmt;
            return TITAN_OK;
        }
        if (!db->cache[slot].sql)
            break;
    }
    sqlite3_stmt *stmt = NULL;
    if (sqlite3_prepare_v3(db->handle, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, NULL) != SQLITE_OK)
        return db_fail(db, sql, err);
    db->cache[slot].sql = sql;
    db->cache[slot].stmt = *ret = stmt;
    return TITAN_OK;
}

static titan_status bind(struct db *db, sqlite3_stmt *stmt, const char *sql, const char *fmt, va_list ap,
                         struct titan_error *err)
{
    int code = SQLITE_OK;
    titan_assert(sqlite3_bind_parameter_count(stmt) == (int)strlen(fmt));
    for (int i = 1; *fmt && code == SQLITE_OK; fmt++, i++) {
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
    return code == SQLITE_OK ? TITAN_OK : db_fail(db, sql, err);
}

void db_done(sqlite3_stmt *stmt)
{
    if (!stmt)
        return;
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
}

titan_status db_run(struct db *db, struct titan_error *err, const char *sql, const char *fmt, ...)
{
    sqlite3_stmt *stmt = NULL;
    TRY(prepare(db, sql, &stmt, err));
    va_list ap;
    va_start(ap, fmt);
    titan_status status = bind(db, stmt, sql, fmt, ap, err);
    va_end(ap);
    if (status == TITAN_OK) {
        int code = sqlite3_step(stmt);
        if (code != SQLITE_DONE && code != SQLITE_ROW)
            status = db_fail(db, sql, err);
    }
    db_done(stmt);
    return status;
}

int db_changes(struct db *db)
{
    return sqlite3_changes(db->handle);
}

titan_status db_query(struct db *db, sqlite3_stmt **ret, struct titan_error *err, const char *sql, const char *fmt, ...)
{
    sqlite3_stmt *stmt = NULL;
    TRY(prepare(db, sql, &stmt, err));
    va_list ap;
    va_start(ap, fmt);
    titan_status status = bind(db, stmt, sql, fmt, ap, err);
    va_end(ap);
    if (status != TITAN_OK) {
        db_done(stmt);
        return status;
    }
    *ret = stmt;
    return TITAN_OK;
}

titan_status db_step(struct db *db, sqlite3_stmt *stmt, bool *ret_row, struct titan_error *err)
{
    int code = sqlite3_step(stmt);
    if (code != SQLITE_ROW && code != SQLITE_DONE)
        return db_fail(db, "read", err);
    *ret_row = code == SQLITE_ROW;
    return TITAN_OK;
}

titan_status db_int(struct db *db, int64_t fallback, int64_t *ret, struct titan_error *err, const char *sql,
                    const char *fmt, ...)
{
    sqlite3_stmt *stmt = NULL;
    TRY(prepare(db, sql, &stmt, err));
    va_list ap;
    va_start(ap, fmt);
    titan_status status = bind(db, stmt, sql, fmt, ap, err);
    va_end(ap);
    bool row = false;
    if (status == TITAN_OK)
        status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK)
        *ret = row && sqlite3_column_type(stmt, 0) != SQLITE_NULL ? sqlite3_column_int64(stmt, 0) : fallback;
    db_done(stmt);
    return status;
}

const char *col_text(sqlite3_stmt *stmt, int i)
{
    const char *text = (const char *)sqlite3_column_text(stmt, i);
    return text ? text : "";
}

int64_t col_int(sqlite3_stmt *stmt, int i)
{
    return sqlite3_column_int64(stmt, i);
}

uint64_t col_uint(sqlite3_stmt *stmt, int i)
{
    return (uint64_t)sqlite3_column_int64(stmt, i);
}

double col_real(sqlite3_stmt *stmt, int i)
{
    return sqlite3_column_type(stmt, i) == SQLITE_NULL ? NAN : sqlite3_column_double(stmt, i);
}

void col_blob(sqlite3_stmt *stmt, int i, void *out, size_t cap)
{
    const void *data = sqlite3_column_blob(stmt, i);
    size_t len = data ? (size_t)sqlite3_column_bytes(stmt, i) : 0;
    len = len < cap ? len : cap;
    memset(out, 0, cap);
    if (len)
        memcpy(out, data, len);
}
