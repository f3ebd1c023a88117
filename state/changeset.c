/* SPDX-License-Identifier: Apache-2.0 */
#define SQLITE_ENABLE_SESSION 1 /* declarations of sqlite3.h that it hides otherwise */
#define SQLITE_ENABLE_PREUPDATE_HOOK 1
#include "state/changeset.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "state/schema.h"

#define MAGIC UINT32_C(0x31736354) /* "Tcs1" */

static const char own_table[] = "machine";

struct changeset {
    struct db *db;
    sqlite3_session *session;
};

/* Little endian on disk and between machines, as all machines are that Titan runs on. */
struct header {
    uint32_t magic, len;
    uint64_t number, sum;
};
_Static_assert(sizeof(struct header) == 24, "a record's header has no holes");

static uint64_t sum_of(uint64_t number, const void *bytes, size_t len)
{
    return hash_mix(hash_bytes(hash_word(HASH_INIT, number), bytes, len));
}

/* --- capture ------------------------------------------------------------------------------------------------------ */

static int is_shared(void *data, const char *table)
{
    (void)data;
    return strcmp(table, own_table) != 0;
}

titan_status changeset_begin(struct db *db, struct changeset **ret, struct titan_error *err)
{
    titan_assert(!sqlite3_get_autocommit(db_handle(db)));
    struct changeset *c = calloc(1, sizeof(*c));
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "job store: out of memory");
    c->db = db;
    int rc = sqlite3session_create(db_handle(db), "main", &c->session);
    if (rc == SQLITE_OK) {
        sqlite3session_table_filter(c->session, is_shared, NULL);
        rc = sqlite3session_attach(c->session, NULL);
    }
    if (rc == SQLITE_OK) {
        *ret = c;
        return TITAN_OK;
    }
    changeset_free(c);
    return titan_fail(err, TITAN_ENOMEM, "job store: changes cannot be recorded: %s", sqlite3_errstr(rc));
}

titan_status changeset_end(struct changeset *c, uint64_t *ret_number, struct buf *ret, struct titan_error *err)
{
    titan_assert(!sqlite3_get_autocommit(db_handle(c->db)));
    *ret_number = 0;
    buf_clear(ret);
    if (sqlite3session_isempty(c->session))
        return TITAN_OK;
    uint64_t number = 0;
    TRY(changeset_number(c->db, &number, err));
    number++;
    TRY(db_run(c->db, err, "INSERT INTO meta VALUES ('log_number', ?) ON CONFLICT DO UPDATE SET value = excluded.value",
               "u", number));
    int len = 0;
    void *bytes = NULL;
    const int rc = sqlite3session_changeset(c->session, &len, &bytes);
    if (rc != SQLITE_OK)
        return titan_fail(err, rc == SQLITE_NOMEM ? TITAN_ENOMEM : TITAN_EIO, "job store: reading the changes: %s",
                          sqlite3_errstr(rc));
    titan_assert(len > 0); /* the number has moved */
    const struct header h = {MAGIC, (uint32_t)len, number, sum_of(number, bytes, (size_t)len)};
    titan_status status = buf_append(ret, &h, sizeof(h));
    if (status == TITAN_OK)
        status = buf_append(ret, bytes, (size_t)len);
    sqlite3_free(bytes);
    if (status != TITAN_OK)
        return titan_fail(err, status, "job store: out of memory for %d bytes of changes", len);
    *ret_number = number;
    return TITAN_OK;
}

void changeset_free(struct changeset *c)
{
    if (c)
        sqlite3session_delete(c->session);
    free(c);
}

/* --- apply -------------------------------------------------------------------------------------------------------- */

titan_status changeset_number(struct db *db, uint64_t *ret, struct titan_error *err)
{
    int64_t number = 0;
    TRY(db_int(db, &number, err, "SELECT value FROM meta WHERE key = 'log_number'", ""));
    *ret = (uint64_t)number;
    return TITAN_OK;
}

static bool take_header(struct header *h, const void *bytes, size_t len)
{
    if (len < sizeof(*h))
        return false;
    memcpy(h, bytes, sizeof(*h));
    const void *body = (const char *)bytes + sizeof(*h);
    return h->magic == MAGIC && h->len == len - sizeof(*h) && h->number != 0 && h->number <= INT64_MAX &&
           h->len <= INT32_MAX && h->sum == sum_of(h->number, body, h->len);
}

uint64_t changeset_record_number(const void *bytes, size_t len)
{
    struct header h;
    return take_header(&h, bytes, len) ? h.number : 0;
}

/* SQLite skips the changes of a table that it does not have as the changeset says. So this is checked first. */
static titan_status check_table(struct db *db, const char *table, uint64_t columns, const uint8_t *key,
                                struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool row = false, same = is_shared(NULL, table) != 0;
    uint64_t i = 0;
    titan_status status;
    TRY(db_query(db, &stmt, err, "SELECT pk FROM pragma_table_info(?) ORDER BY cid", "t", table));
    for (; (status = db_step(db, stmt, &row, err)) == TITAN_OK && row; i++)
        same = same && i < columns && (col_int(stmt, 0) != 0) == (key[i] != 0);
    db_done(stmt);
    TRY(status);
    return same && i == columns
               ? TITAN_OK
               : titan_fail(err, TITAN_ECONFLICT,
                            "a record has changes of a table with %llu columns, which this store has not",
                            (unsigned long long)columns);
}

/* A reader of SQLite's changeset: "The changeset format" in ext/session/sqlite3session.c of SQLite. SQLite's own reader
 * trusts the bytes; damaged ones make it read beyond their end, or without end. */
struct reader {
    const uint8_t *at, *end;
};

static bool take_size(struct reader *r, uint64_t *ret)
{
    uint64_t n = 0;
    for (int i = 0; i < 4 && r->at < r->end; i++) { /* four bytes hold more than any record's length */
        const uint8_t byte = *r->at++;
        n = n << 7 | (byte & 0x7f);
        if (!(byte & 0x80)) {
            *ret = n;
            return true;
        }
    }
    return false;
}

static bool skip(struct reader *r, uint64_t n)
{
    if (n > (uint64_t)(r->end - r->at))
        return false;
    r->at += n;
    return true;
}

enum values { VALUES_ALL, VALUES_OLD, VALUES_NEW }; /* of an insert or delete; before and after an update */

/* One row: each column has a type and its value. */
static bool skip_row(struct reader *r, const uint8_t *key, uint64_t columns, enum values which)
{
    for (uint64_t i = 0; i < columns; i++) {
        uint64_t len = 0;
        if (r->at == r->end)
            return false;
        const uint8_t type = *r->at++;
        if (type == 0 ? which == VALUES_ALL || (which == VALUES_OLD && key[i]) : which == VALUES_NEW && key[i])
            return false; /* a row without its key, or with two */
        if (type > SQLITE_NULL || (type == SQLITE_NULL && key[i]))
            return false;
        if (type == SQLITE_INTEGER || type == SQLITE_FLOAT)
            len = 8;
        else if ((type == SQLITE_TEXT || type == SQLITE_BLOB) && !take_size(r, &len))
            return false;
        if (!skip(r, len))
            return false;
    }
    return true;
}

static bool skip_change(struct reader *r, const uint8_t *key, uint64_t columns)
{
    if (r->end - r->at < 2 || r->at[1] > 1)
        return false;
    const uint8_t op = *r->at;
    r->at += 2;
    if (op == SQLITE_UPDATE)
        return skip_row(r, key, columns, VALUES_OLD) && skip_row(r, key, columns, VALUES_NEW);
    return (op == SQLITE_INSERT || op == SQLITE_DELETE) && skip_row(r, key, columns, VALUES_ALL);
}

static titan_status check_changes(struct db *db, const void *bytes, size_t len, struct titan_error *err)
{
    struct reader r = {bytes, (const uint8_t *)bytes + len};
    const uint8_t *key = NULL;
    uint64_t columns = 0;
    while (r.at < r.end) {
        if (*r.at != 'T') {
            if (!key || !skip_change(&r, key, columns))
                return titan_fail(err, TITAN_ECORRUPT, "a record's changes are damaged");
            continue;
        }
        r.at++;
        if (!take_size(&r, &columns) || columns == 0 || (key = r.at, !skip(&r, columns)))
            return titan_fail(err, TITAN_ECORRUPT, "a record's table is damaged");
        const char *name = (const char *)r.at;
        if (!memchr(name, 0, (size_t)(r.end - r.at)) || strlen(name) > 64)
            return titan_fail(err, TITAN_ECORRUPT, "a record's table has no name");
        r.at += strlen(name) + 1;
        TRY(check_table(db, name, columns, key, err));
    }
    return TITAN_OK;
}

struct conflict {
    const char *what; /* NULL: none */
    char table[64];
};

static int on_conflict(void *data, int kind, sqlite3_changeset_iter *iter)
{
    static const char *const names[] = {[SQLITE_CHANGESET_DATA] = "a row with other values",
                                        [SQLITE_CHANGESET_NOTFOUND] = "no row",
                                        [SQLITE_CHANGESET_CONFLICT] = "a row already",
                                        [SQLITE_CHANGESET_CONSTRAINT] = "a constraint against it",
                                        [SQLITE_CHANGESET_FOREIGN_KEY] = "a row that refers to nothing"};
    struct conflict *c = data;
    const char *table = "";
    int columns = 0, op = 0, indirect = 0;
    titan_assert(kind > 0 && kind < (int)ARRAY_SIZE(names));
    if (kind != SQLITE_CHANGESET_FOREIGN_KEY)
        (void)sqlite3changeset_op(iter, &table, &columns, &op, &indirect);
    c->what = names[kind];
    (void)snprintf(c->table, sizeof(c->table), "%s", table);
    return SQLITE_CHANGESET_ABORT;
}

static titan_status apply(struct db *db, const struct header *h, void *changes, struct titan_error *err)
{
    struct conflict conflict = {0};
    uint64_t number = 0;
    TRY(check_changes(db, changes, h->len, err));
    const int rc = sqlite3changeset_apply(db_handle(db), (int)h->len, changes, NULL, on_conflict, &conflict);
    if (conflict.what)
        return titan_fail(err, TITAN_ECONFLICT, "record %llu does not fit this store: table '%s' has %s",
                          (unsigned long long)h->number, conflict.table, conflict.what);
    if (rc != SQLITE_OK)
        return db_fail(db, "applying a record", err);
    TRY(changeset_number(db, &number, err));
    return number == h->number ? TITAN_OK
                               : titan_fail(err, TITAN_ECORRUPT, "record %llu moves the store to number %llu",
                                            (unsigned long long)h->number, (unsigned long long)number);
}

titan_status changeset_apply(struct db *db, const void *bytes, size_t len, struct titan_error *err)
{
    titan_assert(sqlite3_get_autocommit(db_handle(db)));
    struct header h;
    uint64_t number = 0;
    if (!take_header(&h, bytes, len))
        return titan_fail(err, TITAN_ECORRUPT, "%zu bytes are no whole record of changes", len);
    TRY(changeset_number(db, &number, err));
    if (h.number <= number)
        return TITAN_OK;
    if (h.number != number + 1)
        return titan_fail(err, TITAN_ECONFLICT, "record %llu does not follow the store's number %llu",
                          (unsigned long long)h.number, (unsigned long long)number);
    TRY(db_run(db, err, "BEGIN IMMEDIATE", ""));
    titan_status status = apply(db, &h, (char *)bytes + sizeof(h), err);
    if (status == TITAN_OK)
        status = db_run(db, err, "COMMIT", "");
    if (status != TITAN_OK && !sqlite3_get_autocommit(db_handle(db)))
        (void)!db_run(db, NULL, "ROLLBACK", "");
    return status;
}

/* --- images ------------------------------------------------------------------------------------------------------- */

static void close_db(struct db **db)
{
    db_close(*db);
}
#define _cleanup_db_ _cleanup_(close_db)

/* Copies all pages. The copy is one transaction of `to`. */
static titan_status copy_pages(struct db *from, struct db *to, struct titan_error *err)
{
    sqlite3_backup *b = sqlite3_backup_init(db_handle(to), "main", db_handle(from), "main");
    if (!b)
        return db_fail(to, "copying the store", err);
    (void)sqlite3_backup_step(b, -1);
    return sqlite3_backup_finish(b) == SQLITE_OK ? TITAN_OK : db_fail(to, "copying the store", err);
}

titan_status changeset_image(const char *path, struct buf *ret, struct titan_error *err)
{
    _cleanup_db_ struct db *db = NULL, *image = NULL;
    sqlite3_int64 len = 0;
    TRY(db_open(path, DB_READER, true, &db, err));
    TRY(db_open(":memory:", DB_WRITER, false, &image, err));
    TRY(copy_pages(db, image, err));
    TRY(db_exec(image, "UPDATE machine SET clean = 1, path = '', inode = 0", err));
    unsigned char *bytes = sqlite3_serialize(db_handle(image), "main", &len, 0);
    if (!bytes)
        return titan_fail(err, TITAN_ENOMEM, "job store: out of memory for an image");
    bytes[18] = bytes[19] = 1; /* https://www.sqlite.org/fileformat.html: not in WAL mode, which has no image */
    buf_clear(ret);
    const titan_status status = buf_append(ret, bytes, (size_t)len);
    sqlite3_free(bytes);
    return status == TITAN_OK ? status : titan_fail(err, status, "job store: an image of %lld bytes", (long long)len);
}

static titan_status open_image(const void *bytes, size_t len, struct db **ret, struct titan_error *err)
{
    int64_t id = 0, version = 0;
    TRY(db_open(":memory:", DB_WRITER, false, ret, err));
    unsigned char *copy = sqlite3_malloc64(len + 1);
    if (!copy)
        return titan_fail(err, TITAN_ENOMEM, "job store: out of memory for an image of %zu bytes", len);
    memcpy(copy, bytes, len);
    const int rc = sqlite3_deserialize(db_handle(*ret), "main", copy, (sqlite3_int64)len, (sqlite3_int64)len,
                                       SQLITE_DESERIALIZE_FREEONCLOSE |
                                           SQLITE_DESERIALIZE_RESIZEABLE); /* frees copy if it fails */
    if (rc != SQLITE_OK)
        return titan_fail(err, TITAN_ENOMEM, "job store: an image: %s", sqlite3_errstr(rc));
    TRY(db_int(*ret, &id, err, "PRAGMA application_id", ""));
    TRY(db_int(*ret, &version, err, "PRAGMA user_version", ""));
    if (id != schema_store.application_id || version < 1)
        return titan_fail(err, TITAN_ECORRUPT, "an image is no job store (application id %08llx)",
                          (unsigned long long)id);
    if (version > SCHEMA_VERSION)
        return titan_fail(err, TITAN_EVERSION, "an image has schema %lld; this Titan knows up to %d",
                          (long long)version, SCHEMA_VERSION);
    TRY(schema_check(*ret, false, err));
    TRY(schema_compare(&schema_store, *ret, err));
    return schema_migrate(&schema_store, *ret, err);
}

titan_status changeset_install(struct db *db, const void *bytes, size_t len, struct titan_error *err)
{
    _cleanup_db_ struct db *image = NULL;
    uint64_t own = 0, number = 0;
    int64_t id = 0, image_id = 0, clean = 0, inode = 0;
    char path[4096] = "";
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    titan_status status = open_image(bytes, len, &image, err);
    if (status != TITAN_OK)
        return status == TITAN_EIO || status == TITAN_EBUG ? titan_fail(err, TITAN_ECORRUPT, "an image is damaged")
                                                           : status;
    TRY(changeset_number(db, &own, err));
    TRY(changeset_number(image, &number, err));
    TRY(db_int(db, &id, err, "SELECT value FROM meta WHERE key = 'store_id'", ""));
    TRY(db_int(image, &image_id, err, "SELECT value FROM meta WHERE key = 'store_id'", ""));
    if (id && image_id && id != image_id)
        return titan_fail(err, TITAN_ECONFLICT, "the image is of store %016llx, the file of %016llx",
                          (unsigned long long)image_id, (unsigned long long)id);
    if (own && number <= own)
        return TITAN_OK;

    TRY(db_query(db, &stmt, err, "SELECT clean, path, inode FROM machine", ""));
    status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK && row) {
        clean = col_int(stmt, 0);
        (void)snprintf(path, sizeof(path), "%s", col_text(stmt, 1));
        inode = col_int(stmt, 2);
    }
    db_done(stmt);
    TRY(status);
    TRY(db_run(image, err, "UPDATE machine SET clean = ?, path = ?, inode = ?", "iti", clean, path, inode));
    return copy_pages(image, db, err);
}
