/* SPDX-License-Identifier: Apache-2.0 */
/* check_cudnn.c - the graphs of attention against the installed cuDNN, without a GPU: every operation and the whole are
 * finalised. What an engine makes of them needs one. Prints TAP; a first argument is the library's path. */
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "worker/device/cuda/cudnn_graph.h"

#if CUDNN_HEADERS
static int count, failed;

static void result(bool ok, const char *what, const struct cudnn_problem *p, const char *why)
{
    failed += !ok;
    printf("%s %d - %s B%ld T%ld H%ld K%ld D%ld Dv%ld%s%s\n", ok ? "ok" : "not ok", ++count, what, (long)p->b,
           (long)p->t, (long)p->h, (long)p->kv, (long)p->d, (long)p->dv, ok ? "" : ": ", ok ? "" : why);
}

/* Heads of queries, keys and values side by side in rows, as the model has them. */
static struct cudnn_problem problem(int64_t b, int64_t t, int64_t h, int64_t kv, int64_t d, int64_t dv)
{
    const int64_t row = (h + kv) * d + kv * dv;
    return (struct cudnn_problem){b, t, h, kv, d, dv, row, row, row, h * dv, row, row, row, h * dv};
}

static void finalises(const struct cudnn_library *library, struct cudnn_problem p)
{
    static const char *const names[] = {"attention", "attention gradient, any order", "attention gradient, repeatable"};
    const int back = p.h == p.kv ? 22 : 24, operations[] = {14, back, back - 1};

    for (int pass = CUDNN_FORWARD; pass <= CUDNN_BACKWARD_REPEATABLE; pass++) {
        struct titan_error err = {0};
        struct cudnn_graph *g = NULL;
        const titan_status status = cudnn_graph_open(library, NULL, &p, (enum cudnn_pass)pass, &g, &err);
        result(status == TITAN_OK && g && g->n_operations == operations[pass], names[pass], &p, err.msg);
        cudnn_graph_close(g);
    }
}

/* A width that is none: one message, nothing is left. */
static void refuses(const struct cudnn_library *library, struct cudnn_problem p)
{
    struct titan_error err = {0};
    struct cudnn_graph *g = NULL;
    const titan_status status = cudnn_graph_open(library, NULL, &p, CUDNN_FORWARD, &g, &err);
    result(status == TITAN_EDEVICE && !g && err.msg[0], "refuses", &p, "it was finalised");
}

int main(int argc, char **argv)
{
    struct cudnn_library library;
    struct titan_error err = {0};

    if (cudnn_library_open(&library, argc > 1 ? argv[1] : NULL, &err) != TITAN_OK) {
        printf("1..0 # skip %s\n", err.msg);
        return 0;
    }
    printf("# cuDNN %zu\n", library.version);
    finalises(&library, problem(1, 8192, 32, 8, 128, 128));
    finalises(&library, problem(2, 4096, 16, 16, 64, 64));
    finalises(&library, problem(3, 130, 8, 2, 64, 64));
    finalises(&library, problem(2, 200, 4, 1, 128, 128));
    finalises(&library, problem(1, 4096, 16, 16, 192, 128));
    refuses(&library, problem(1, 128, 4, 4, 64, -64));
    printf("1..%d\n", count);
    cudnn_library_close(&library);
    return failed != 0;
}
#else
int main(void)
{
    printf("1..0 # skip built without cuDNN's headers\n");
    return 0;
}
#endif
