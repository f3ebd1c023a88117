/* SPDX-License-Identifier: Apache-2.0 */
/* common.c - what the fuzz targets share; see common.h. */
#include "tests/fuzz/common.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

/* Nothing is logged: a target runs some thousand times a second. */
__attribute__((constructor)) static void quiet(void)
{
    log_set_level(LOG_LEVEL_ERROR);
}

char *fuzz_text(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    fuzz_assert(text);
    if (size)
        memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

void fuzz_error(titan_status status, const struct titan_error *err)
{
    fuzz_assert(err->status == status && err->msg[0] && !strchr(err->msg, '\n'));
}

uint64_t fuzz_take(struct fuzz_input *in, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes && in->len > 0; i++, in->data++, in->len--)
        v |= (uint64_t)*in->data << (8 * i);
    return v;
}

struct fuzz_input fuzz_piece(struct fuzz_input *in)
{
    size_t len = (size_t)fuzz_take(in, 2);
    struct fuzz_input piece = {in->data, MIN(len, in->len)};
    in->data += piece.len;
    in->len -= piece.len;
    return piece;
}

static char folder[64];

static int drop(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static void drop_folder(void)
{
    (void)nftw(folder, drop, 8, FTW_DEPTH | FTW_PHYS);
}

const char *fuzz_folder(void)
{
    if (!folder[0]) {
        (void)snprintf(folder, sizeof(folder), "/dev/shm/titan-fuzz-XXXXXX");
        fuzz_assert(mkdtemp(folder));
        (void)atexit(drop_folder);
    }
    return folder;
}

void fuzz_file(const char *path, const uint8_t *data, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    fuzz_assert(fd >= 0 && write(fd, data, len) == (ssize_t)len);
    (void)close(fd);
}
