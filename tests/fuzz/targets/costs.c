/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of measured costs, of any text: as it is, or with the right end behind it. What is read comes out again as the
 * same text, each of its rows is found, and what lies between two of its sizes is of no other sign. */
#include "tests/fuzz/common.h"

#include <math.h>

#include "base/buf.h"
#include "base/hash.h"
#include "worker/plan/cost_table.h"

static void look_up(const struct cost_table *t)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct cost_row *row = &t->rows[i];
        double seconds = -1, processor = -1;
        fuzz_assert(memchr(row->key, 0, sizeof(row->key)) && row->seconds >= 0 && row->processor >= 0 &&
                    row->spread >= 0);
        if (row->kind == COST_OPERATION) {
            fuzz_assert(cost_table_operation(t, row->size, row->key) == row);
            continue;
        }
        fuzz_assert(cost_table_transfer(t, row->size, row->key, row->bytes, &seconds, &processor));
        fuzz_assert(seconds >= 0 && isfinite(seconds) && processor >= 0 && isfinite(processor));
        if (cost_table_transfer(t, row->size, row->key, row->bytes / 2 + 1, &seconds, &processor))
            fuzz_assert(seconds >= 0 && isfinite(seconds) && processor >= 0 && isfinite(processor));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct titan_error err = {0};
    struct cost_table t, again;
    _cleanup_(buf_free) struct buf text = BUF_INIT, first = BUF_INIT, second = BUF_INIT;
    struct fuzz_input in = {data, size};
    const bool ended = fuzz_take(&in, 1) & 1;
    size_t lines = 0; /* of operations and transfers: what the end counts */
    for (size_t i = 0; i < in.len; i++)
        lines += (i == 0 || in.data[i - 1] == '\n') && (in.data[i] == 'o' || in.data[i] == 't');
    fuzz_assert(buf_append(&text, in.data, in.len) == TITAN_OK);
    if (ended) {
        lines -= in.len > 5 && memcmp(in.data, "titan", 5) == 0;
        (void)buf_printf(&text, "end\t%zu\t%016lx\n", lines, (unsigned long)hash_bytes(HASH_INIT, in.data, in.len));
    }
    _cleanup_free_ char *copy = fuzz_text((const uint8_t *)(text.data ? text.data : ""), text.len);
    const titan_status status = cost_table_parse(copy, text.len, "x", &t, &err);
    if (status != TITAN_OK) {
        fuzz_error(status, &err);
        fuzz_assert(t.n == 0);
        return 0;
    }
    look_up(&t);
    cost_table_print(&t, &first);
    fuzz_assert(cost_table_parse(first.data, first.len, "x", &again, &err) == TITAN_OK);
    fuzz_assert(again.n == t.n && cost_host_check(&again.host, &t.host, "x", NULL) == TITAN_OK);
    cost_table_print(&again, &second);
    fuzz_assert(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
    cost_table_clear(&t);
    cost_table_clear(&again);
    return 0;
}
