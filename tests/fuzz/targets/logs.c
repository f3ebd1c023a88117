/* SPDX-License-Identifier: Apache-2.0 */
/* A job's folder of logs as workers and other nodes may leave it: which files are this node's (`ranks`), and what is in
 * them. What is sent are the files' own bytes in order, of the last lines no more than were asked for. */
#include "tests/fuzz/common.h"

#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "base/buf.h"
#include "daemon/agent/shell/worker_logs.h"
#include "daemon/common/file_pool.h"

static struct sending {
    struct buf of[3]; /* by worker; 0 = of any other */
    int room, ends;
} s;

static bool send_chunk(const Titan__Internal__AgentLogChunk *chunk, void *data)
{
    (void)data;
    if (s.room-- == 0) /* now and then there is none */
        return false;
    fuzz_assert(chunk->data.len <= 65536 && chunk->end == (chunk->data.len == 0));
    s.ends += chunk->end != 0;
    if (chunk->data.len)
        fuzz_assert(buf_append(&s.of[chunk->worker_id < 3 ? chunk->worker_id : 0], chunk->data.data, chunk->data.len) ==
                    TITAN_OK);
    return true;
}

static uint32_t lines_of(const uint8_t *text, size_t len)
{
    uint32_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += text[i] == '\n' || i + 1 == len;
    return n;
}

/* Files of worker 1 and 2: the older half, then the newer. */
static void check(const struct fuzz_input *old, const struct fuzz_input *now, const struct buf *sent, uint32_t tail)
{
    const size_t from_now = MIN(sent->len, now->len), from_old = sent->len - from_now;
    if (sent->len == 0)
        return;
    fuzz_assert(from_old <= old->len);
    fuzz_assert(memcmp(sent->data + from_old, now->data + now->len - from_now, from_now) == 0);
    fuzz_assert(memcmp(sent->data, old->data + old->len - from_old, from_old) == 0);
    fuzz_assert(tail || sent->len == old->len + now->len);
    fuzz_assert(!tail ||
                lines_of((uint8_t *)sent->data, from_old) + lines_of((uint8_t *)sent->data + from_old, from_now) <=
                    tail);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size}, files[5];
    static const char *const names[] = {"ranks", "worker-1.log.1", "worker-1.log", "worker-2.log.1", "worker-2.log"};
    char path[5][160], folder[128];
    struct titan_error err = {0};
    struct file_pool *pool = NULL;
    struct logs *l = NULL;
    uv_loop_t loop;
    Titan__Internal__LogRequest r = TITAN__INTERNAL__LOG_REQUEST__INIT;
    s = (struct sending){.room = 1 + (int)(fuzz_take(&in, 1) % 8)};
    r.request_id = 1;
    r.rank = (int32_t)(fuzz_take(&in, 1) % 4) - 1;
    r.tail_lines = (uint32_t)fuzz_take(&in, 1) % 8;
    (void)snprintf(folder, sizeof(folder), "%s/logs", fuzz_folder());
    (void)mkdir(folder, 0700);
    for (int i = 0; i < 5; i++) {
        files[i] = fuzz_piece(&in);
        (void)snprintf(path[i], sizeof(path[i]), "%s/%s", folder, names[i]);
        if (files[i].len)
            fuzz_file(path[i], files[i].data, files[i].len);
    }
    fuzz_assert(uv_loop_init(&loop) == 0);
    fuzz_assert(file_pool_open(&loop, 1000, &pool, &err) == TITAN_OK);
    fuzz_assert(logs_open(&loop, &(struct logs_options){pool, "here", send_chunk, NULL}, &l, &err) == TITAN_OK);
    logs_request(l, &r, fuzz_folder());
    for (int i = 0; i < 64 && s.ends == 0; i++) {
        if (fuzz_file_task())
            continue;
        (void)uv_run(&loop, UV_RUN_ONCE);
        s.room = 1000;
    }
    fuzz_assert(s.ends == 1);
    file_pool_close(pool, NULL, NULL);
    logs_close(l, NULL, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    fuzz_assert(uv_loop_close(&loop) == 0);
    check(&files[1], &files[2], &s.of[1], r.tail_lines);
    check(&files[3], &files[4], &s.of[2], r.tail_lines);
    for (int i = 0; i < 3; i++)
        buf_free(&s.of[i]);
    for (int i = 0; i < 5; i++)
        (void)unlink(path[i]);
    return 0;
}
