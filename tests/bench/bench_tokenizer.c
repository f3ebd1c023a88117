/* SPDX-License-Identifier: Apache-2.0 */
/* bench_tokenizer.c - one thread encodes a file as fast as it can.
 *
 *   bench_tokenizer TOKENIZER PATTERN FILE ROUNDS
 *
 * PATTERN may be empty. Prints JSON: bytes, tokens, the seconds it took to open the tokenizer, and those of each round;
 * the first meets every word for the first time. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/file.h"
#include "worker/tokenizer/tokenizer.h"

static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
    struct titan_error err = {0};
    struct tokenizer *t = NULL;
    struct tokenizer_encoder *e = NULL;
    struct tokens tokens = {0};
    struct buf text = BUF_INIT;
    if (argc != 5 || file_read(argv[3], (size_t)1 << 30, &text, &err) != TITAN_OK) {
        (void)fprintf(stderr, "bench_tokenizer TOKENIZER PATTERN FILE ROUNDS: %s\n", err.msg);
        return 2;
    }
    const double opens = seconds();
    if (tokenizer_open_as(argv[1], argv[2], &t, &err) != TITAN_OK || tokenizer_encoder_open(t, &e, &err) != TITAN_OK) {
        (void)fprintf(stderr, "bench_tokenizer: %s\n", err.msg);
        return 2;
    }
    const double opened = seconds() - opens;
    (void)printf("{\"seconds\": [");
    for (int i = 0, n = atoi(argv[4]); i < n; i++) {
        const double begin = seconds();
        tokens.n = 0;
        if (tokenizer_encode(e, text.data, text.len, &tokens, &err) != TITAN_OK) {
            (void)fprintf(stderr, "bench_tokenizer: %s\n", err.msg);
            return 1;
        }
        (void)printf("%s%.6f", i ? ", " : "", seconds() - begin);
    }
    (void)printf("], \"bytes\": %zu, \"tokens\": %zu, \"open\": %.6f}\n", text.len, tokens.n, opened);
    free(tokens.ids);
    buf_free(&text);
    tokenizer_encoder_close(e);
    tokenizer_close(t);
    return 0;
}
