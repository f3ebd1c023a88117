/* SPDX-License-Identifier: Apache-2.0 */
/* A record of another coordinator's changes, under a right header: changes as they come, or right ones with some bytes
 * changed. It is applied whole, or changes nothing. */
#include "tests/fuzz/common.h"

#include "base/hash.h"
#include "state/changeset.h"
#include "state/event.h"
#include "state/schema.h"

enum { HEADER = 24 };

static struct db *fresh(void)
{
    struct db *db = NULL;
    struct titan_error err = {0};
    fuzz_assert(db_open(":memory:", DB_WRITER, false, &db, &err) == TITAN_OK);
    fuzz_assert(schema_migrate(&schema_store, db, &err) == TITAN_OK);
    return db;
}

/* What a coordinator writes first: a term, an id, rows of several tables. */
static void record_make(struct buf *ret)
{
    struct db *db = fresh();
    struct titan_error err = {0};
    struct changeset *changes = NULL;
    uint64_t number = 0;
    fuzz_assert(db_exec(db, "BEGIN", &err) == TITAN_OK && changeset_begin(db, &changes, &err) == TITAN_OK);
    fuzz_assert(db_exec(db,
                        "INSERT INTO meta VALUES ('term', 7), ('store_id', 5);"
                        "INSERT INTO secrets VALUES ('terms', x'0102030405')",
                        &err) == TITAN_OK);
    fuzz_assert(event_add(db, &(struct event){.at_ms = 1, .type = "t", .message = "m", .rank = -1}, &err) == TITAN_OK);
    fuzz_assert(changeset_end(changes, &number, ret, &err) == TITAN_OK && number == 1);
    changeset_free(changes);
    db_close(db);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct db *db;
    static struct buf right;
    struct fuzz_input in = {data, size};
    struct titan_error err = {0};
    uint64_t number = 1;
    if (!db) {
        db = fresh();
        record_make(&right);
    }
    const bool edited = fuzz_take(&in, 1) & 1;
    const uint32_t len = (uint32_t)(edited ? right.len - HEADER : in.len);
    uint8_t *record = malloc(HEADER + len + 1);
    fuzz_assert(record);
    memcpy(record, right.data, HEADER);
    memcpy(record + HEADER, edited ? (const uint8_t *)right.data + HEADER : in.data, len);
    for (int i = 0; edited && i < 16 && in.len > 0; i++) {
        const uint64_t at = fuzz_take(&in, 2) % len;
        record[HEADER + at] = (uint8_t)fuzz_take(&in, 1);
    }
    const uint64_t sum = hash_mix(hash_bytes(hash_word(HASH_INIT, number), record + HEADER, len));
    memcpy(record + 4, &len, sizeof(len));
    memcpy(record + 16, &sum, sizeof(sum));
    fuzz_assert(changeset_record_number(record, HEADER + len) == 1);
    const titan_status status = changeset_apply(db, record, HEADER + len, &err);
    fuzz_assert(changeset_number(db, &number, NULL) == TITAN_OK && number == (status == TITAN_OK));
    if (status != TITAN_OK) {
        fuzz_error(status, &err);
    } else {
        db_close(db);
        db = fresh();
    }
    free(record);
    return 0;
}
