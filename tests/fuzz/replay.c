/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c - runs a target on the files given, without a fuzzer. TAP: one line for all of them. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include "base/buf.h"
#include "tests/fuzz/common.h"

static void replay(const char *path)
{
    _cleanup_(buf_free) struct buf in = BUF_INIT;
    char piece[65536];
    FILE *f = fopen(path, "re");
    fuzz_assert(f);
    for (size_t n; (n = fread(piece, 1, sizeof(piece), f)) > 0;)
        fuzz_assert(buf_append(&in, piece, n) == TITAN_OK);
    (void)fclose(f);
    (void)LLVMFuzzerTestOneInput((const uint8_t *)in.data, in.len);
}

int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        if (!d) {
            replay(argv[i]);
            n++;
            continue;
        }
        for (const struct dirent *e; (e = readdir(d));) {
            char path[PATH_MAX];
            if (e->d_name[0] == '.' || snprintf(path, sizeof(path), "%s/%s", argv[i], e->d_name) >= (int)sizeof(path))
                continue;
            replay(path);
            n++;
        }
        (void)closedir(d);
    }
    printf("%d\n", n);
    return n > 0 ? 0 : 1;
}
