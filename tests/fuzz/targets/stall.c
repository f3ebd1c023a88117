/* SPDX-License-Identifier: Apache-2.0 */
/* Dumps of flight recorders, as `titanctl flight` gets them of workers by way of files: any text, a dump from each line
 * that begins one. What is read is printed and read again as the same; what is told of an epoch has no character that a
 * terminal obeys, and as JSON it can be read. */
#include "tests/fuzz/common.h"

#include "ctl/stall.h"
#include "daemon/agent/shell/flight_dumps.h"

enum { DUMPS = 12 };
#define BEGINS "{\"flight\":"

static void again(const struct stall_dump *d)
{
    _cleanup_(buf_free) struct buf first = BUF_INIT, second = BUF_INIT;
    struct dump_head head = {.worker_id = d->worker, .cause = DUMP_HANG, .detail = d->detail, .node = d->node};
    struct stall_dump other;
    head.wall_ms = d->time_ms;
    head.mono_ns = d->now_ns;
    dump_print(&head, d->copy, &first);
    fuzz_assert(stall_read(first.data, first.len, &other, NULL) == TITAN_OK);
    fuzz_assert(other.worker == d->worker && strcmp(other.node, d->node) == 0 && strcmp(other.detail, d->detail) == 0);
    dump_print(&head, other.copy, &second);
    fuzz_assert(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
    stall_dump_free(&other);
}

static void is_line(const struct buf *text)
{
    for (size_t i = 0; i < text->len; i++)
        fuzz_assert((unsigned char)text->data[i] >= 0x20 && (unsigned char)text->data[i] != 0x7f);
}

static void tell(const struct stall_dump *dumps, int n)
{
    struct stall_slowest slowest;
    struct stall_report report;
    _cleanup_(buf_free) struct buf text = BUF_INIT, object = BUF_INIT;
    struct json_writer w = {.out = &object};
    struct json *root = NULL;
    fuzz_assert(stall_slowest(dumps, n, &slowest, NULL) == TITAN_OK);
    fuzz_assert(stall_find(dumps, n, &report, NULL) == TITAN_OK);
    for (int i = 0; i < report.n; i++)
        stall_print(&report, &report.stalls[i], &text);
    stall_print_none(&report, &text);
    stall_print_slowest(&slowest, &text);
    is_line(&text);
    stall_put(&report, &slowest, dumps, n, &w);
    fuzz_assert(json_parse(object.data, object.len, &root, NULL) == TITAN_OK);
    json_free(root);
    stall_report_free(&report);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct stall_dump dumps[DUMPS];
    int n = 0;
    _cleanup_free_ char *text = fuzz_text(data, size);
    for (const char *at = text, *next; at && n < DUMPS; at = next) {
        struct titan_error err = {0};
        next = strstr(at + (*at != '\0'), "\n" BEGINS);
        next = next ? next + 1 : NULL;
        const titan_status status = stall_read(at, next ? (size_t)(next - at) : strlen(at), &dumps[n], &err);
        if (status != TITAN_OK)
            fuzz_error(status, &err);
        else
            again(&dumps[n++]);
    }
    for (int i = 0, behind; i < n; i = behind) { /* each epoch's stand together */
        behind = i + 1;
        while (behind < n && dumps[behind].copy->epoch == dumps[i].copy->epoch)
            behind++;
        tell(dumps + i, behind - i);
    }
    for (int i = 0; i < n; i++)
        stall_dump_free(&dumps[i]);
    return 0;
}
