/* SPDX-License-Identifier: Apache-2.0 */
/* common.h - what the fuzz targets share. A target is a function of its input alone, leaves nothing behind and ends by
 * an assertion when what it looks at is not as promised. */
#ifndef TITAN_TESTS_FUZZ_COMMON_H
#define TITAN_TESTS_FUZZ_COMMON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define fuzz_assert(what)                                                                                              \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                                         \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* A copy with a NUL behind it, in memory of its own: a read beyond the end is seen. */
char *fuzz_text(const uint8_t *data, size_t size);
/* A refusal has its status and one line of text. */
void fuzz_error(titan_status status, const struct titan_error *err);

/* Input taken from the front, in pieces; zeros when it is used up. */
struct fuzz_input {
    const uint8_t *data;
    size_t len;
};
uint64_t fuzz_take(struct fuzz_input *in, int bytes);
/* The next piece: a length of two bytes (at most what is left), then so many bytes. */
struct fuzz_input fuzz_piece(struct fuzz_input *in);

/* A folder of this process in memory, empty, and a file in it; both are gone at exit. */
const char *fuzz_folder(void);
void fuzz_file(const char *path, const uint8_t *data, size_t len);

/* Run one of the tasks that wait for files (file_pool.c here); false: none does. */
bool fuzz_file_task(void);

#endif
