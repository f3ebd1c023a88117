/* SPDX-License-Identifier: Apache-2.0 */
/* db.h - one SQLite connection: settings, prepared statements by their text, typed binding, errors as titan_status.
 *
 * One connection of a file writes and checkpoints. Readers never do either, because SQLite before 3.51.3 can lose pages
 * when one connection begins a checkpoint while another resets the WAL ("WAL reset bug",
 * sqlite.org/releaselog/3_51_3.html).
 *
 * A file belongs to one process while it is open. Other processes find it locked (TITAN_EAGAIN). No read waits until
 * the disk has taken a write (sqlite.org/vfs.html, "unix-excl").
 *
 * A connection belongs to one thread at a time. Statements are prepared once per SQL literal and kept; the SQL given
 * to these functions must therefore be a string literal (its address is the key). */
#ifndef TITAN_STATE_DB_H
#define TITAN_STATE_DB_H

#include <sqlite3.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct db;

enum db_mode {
    DB_WRITER, /* read-write, creates; the only connection of its file that writes and checkpoints the WAL */
    DB_PROBE,  /* the file as it is on disk: changes no setting, never checkpoints, never waits */
    DB_READER, /* query_only, never checkpoints */
};

/* TITAN_ECORRUPT: the file is no database. durable: synchronous=FULL, else NORMAL. */
titan_status db_open(const char *path, enum db_mode mode, bool durable, struct db **ret,
                     struct titan_error *err) TITAN_MUST_USE;
void db_close(struct db *db); /* NULL is fine */
sqlite3 *db_handle(struct db *db);

/* Returns TITAN_EIO for ever after a failed fsync of this connection. It is then unknown whether the writes since the
 * last good fsync are, or will be, on the disk. */
titan_status db_sync_failed(const struct db *db, struct titan_error *err);
/* Pages in the WAL after this connection's last commit. */
int db_wal_pages(const struct db *db);
/* Writer: moves pages of the WAL that no reader needs into the database file. */
void db_checkpoint(struct db *db);
/* Call before the first opening of a file: rewrites a leftover WAL byte by byte, and syncs it. After a failed fsync the
 * kernel may hold pages that read well but are not on the disk. SQLite would treat commits in such pages as durable and
 * append other commits. */
titan_status db_rewrite_wal(const char *path, struct titan_error *err) TITAN_MUST_USE;

/* The connection's last error as a status with its text: FULL -> ENOSPC, CORRUPT/NOTADB -> ECORRUPT, CONSTRAINT ->
 * ECONFLICT, BUSY -> EAGAIN, NOMEM -> ENOMEM, otherwise EIO. */
titan_status db_fail(struct db *db, const char *what, struct titan_error *err);

/* Runs one or more statements without parameters or rows. */
titan_status db_exec(struct db *db, const char *sql, struct titan_error *err) TITAN_MUST_USE;
/* Binds and runs a statement that returns no rows. fmt has one letter per parameter: i = int64_t, u = uint64_t (stored
 * as the same 64 bits), t = const char * (NULL = SQL NULL), r = double (NaN = SQL NULL), b = const void *, size_t. */
titan_status db_run(struct db *db, struct titan_error *err, const char *sql, const char *fmt, ...) TITAN_MUST_USE;
/* Number of rows changed by the last db_run. */
int db_changes(struct db *db);
/* Binds a query; call db_step until *ret_row is false, then db_done (also when stopping early). */
titan_status db_query(struct db *db, sqlite3_stmt **ret, struct titan_error *err, const char *sql, const char *fmt,
                      ...) TITAN_MUST_USE;
/* TITAN_OK; *ret_row: is there a row? */
titan_status db_step(struct db *db, sqlite3_stmt *stmt, bool *ret_row, struct titan_error *err) TITAN_MUST_USE;
void db_done(sqlite3_stmt *stmt);
/* Queries one integer; 0 for NULL or without a row. */
titan_status db_int(struct db *db, int64_t *ret, struct titan_error *err, const char *sql, const char *fmt,
                    ...) TITAN_MUST_USE;

/* Column readers: text is never NULL, a NULL real is NaN. */
const char *col_text(sqlite3_stmt *stmt, int i);
int64_t col_int(sqlite3_stmt *stmt, int i);
uint64_t col_uint(sqlite3_stmt *stmt, int i);
double col_real(sqlite3_stmt *stmt, int i);
/* Copies at most cap bytes into out and zeroes the rest. */
void col_blob(sqlite3_stmt *stmt, int i, void *out, size_t cap);

/* --- rows: columns as fields of a struct -------------------------------------------------------------------------- */

/* A table's file lists columns and fields once, LIST(X) with X(column, field). The list gives the columns in the texts
 * of the table's statements. They follow columns that are written out. The list also gives the row: the fields from
 * which statements are bound, and into which they are read:
 *
 *     #define FIELD(column, field) DB_FIELD(struct node, field),
 *     DB_ROW(node_row, struct node, FIELD(name, name) NODE(FIELD));
 *     db_put(db, err, "INSERT INTO nodes (name" NODE(DB_NAME) ") VALUES (?" NODE(DB_MARK) ")", &node_row, n, "")
 */
#define DB_NAME(column, field) ", " #column
#define DB_MARK(column, field) ", ?"
#define DB_SET(column, field) ", " #column " = ?"
#define DB_EXCLUDED(column, field) ", " #column " = excluded." #column

struct db_field {
    enum {
        DB_64, /* the same 64 bits, signed or not */
        DB_SIGNED,
        DB_UNSIGNED, /* enums, too */
        DB_BOOL,
        DB_REAL,  /* NaN = SQL NULL */
        DB_TEXT,  /* valid until the next row; NULL = "" */
        DB_CHARS, /* as much of the text as fits in */
        DB_BYTES, /* all of the array; a shorter blob is read with zeros behind it */
        DB_BITS,  /* a struct; zeros at its end are not stored */
    } kind;
    unsigned offset, size;
};
struct db_row {
    const struct db_field *fields;
    size_t n, bytes; /* fields; size of the struct */
};

/* clang-format off */
#define DB_KIND(value) _Generic((value), int64_t: DB_64, uint64_t: DB_64, int32_t: DB_SIGNED, uint32_t: DB_UNSIGNED, \
    bool: DB_BOOL, double: DB_REAL, const char *: DB_TEXT, char *: DB_CHARS, unsigned char *: DB_BYTES, default: DB_BITS)
#define DB_FIELD(type, field) \
    {DB_KIND(((type *)NULL)->field), offsetof(type, field), sizeof(((type *)NULL)->field)}
/* clang-format on */
#define DB_ROW(name, type, ...)                                                                                        \
    static const struct db_field name##_fields[] = {__VA_ARGS__};                                                      \
    static const struct db_row name = {name##_fields, sizeof(name##_fields) / sizeof(struct db_field), sizeof(type)}

/* Runs a statement without rows. Its parameters are the row's fields, then the values of fmt, as for db_run. */
titan_status db_put(struct db *db, struct titan_error *err, const char *sql, const struct db_row *row, const void *from,
                    const char *fmt, ...) TITAN_MUST_USE;
/* Reads the first columns of the next row into the struct; its other fields become 0. False: there is no row, or
 * *ret_status is not TITAN_OK. Call db_done afterwards. */
bool db_next(struct db *db, sqlite3_stmt *stmt, const struct db_row *row, void *ret, titan_status *ret_status,
             struct titan_error *err);

#endif
