/* SPDX-License-Identifier: Apache-2.0 */
/* changeset.h - the changes of one transaction of titan.db as bytes, for other coordinators' copies of the file
 * (sqlite.org/sessionintro.html), and whole images of it.
 *
 * A record is a header (magic, number, length, checksum) and SQLite's changeset. Records have numbers from 1 without
 * gaps; the number of the last one is meta.log_number, which the transaction itself moves. Table `machine` belongs to
 * one machine and is in no record and in no image. Schema changes are in no record either: each machine migrates its
 * file.
 *
 * Bytes come from other machines: a wrong record changes nothing and gives one line of error. */
#ifndef TITAN_STATE_CHANGESET_H
#define TITAN_STATE_CHANGESET_H

#include "base/buf.h"
#include "state/db.h"

struct changeset; /* of a transaction that runs */

/* Inside a transaction, before its first write: records from now on. */
titan_status changeset_begin(struct db *db, struct changeset **ret, struct titan_error *err) TITAN_MUST_USE;
/* Before the COMMIT: moves meta.log_number and returns the record. Nothing was changed: *ret_number is 0, no bytes. */
titan_status changeset_end(struct changeset *c, uint64_t *ret_number, struct buf *ret,
                           struct titan_error *err) TITAN_MUST_USE;
void changeset_free(struct changeset *c); /* NULL is fine; before or after the COMMIT or ROLLBACK */

/* Applies a record in its own transaction, durable on return. A record that the file already holds (number <= its own)
 * changes nothing. TITAN_ECORRUPT: bytes are wrong. TITAN_ECONFLICT: a record is missing before this one, or the file
 * differs from its writer's. TITAN_ENOSPC, TITAN_EIO: may be repeated after a restart. */
titan_status changeset_apply(struct db *db, const void *bytes, size_t len, struct titan_error *err) TITAN_MUST_USE;
/* The number in a record's header, 0: no record. */
uint64_t changeset_record_number(const void *bytes, size_t len);
/* The number of the file's last record; 0: none. */
titan_status changeset_number(struct db *db, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;

/* The content of the store at `path` as of one moment, also during writes, as the bytes of an SQLite file. Any thread:
 * the function opens its own connection. */
titan_status changeset_image(const char *path, struct buf *ret, struct titan_error *err) TITAN_MUST_USE;
/* Makes the file's content that of an image, except the machine's own row, in one transaction that is durable on
 * return. An image with a number that the file has reached changes nothing. TITAN_ECORRUPT, TITAN_EVERSION: the image
 * is no store, or a newer Titan's. TITAN_ECONFLICT: the file is another store (store_id). */
titan_status changeset_install(struct db *db, const void *bytes, size_t len, struct titan_error *err) TITAN_MUST_USE;

#endif
