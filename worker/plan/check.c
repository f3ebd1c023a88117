/* SPDX-License-Identifier: Apache-2.0 */
/* check.c - soundness of one step program: the parts of the proof in turn. */
#include "worker/plan/check.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/plan/checker.h"

#define GIB 1073741824.0

titan_status program_check(const struct program *p, uint64_t memory_bytes, struct titan_error *err)
{
    struct titan_error local = {0};
    struct checker c = {.p = p, .model = p->layout->model, .err = err ? err : &local, .index = NONE};

    TRY(check_form(&c));

    /* Lifetimes are computed here, because the program's own lifetimes may be wrong. */
    _cleanup_free_ int *first = malloc(((size_t)p->n_buffers + 1) * sizeof *first);
    _cleanup_free_ int *last = malloc(((size_t)p->n_buffers + 1) * sizeof *last);
    if (!first || !last)
        return checker_no_memory(&c);
    for (int i = 0; i < p->n_buffers; i++)
        first[i] = last[i] = NONE;
    for (int i = 0; i < p->n_actions; i++)
        for (int k = 0; k < p->actions[i].n_operands; k++) {
            const int b = action_operands(p, &p->actions[i])[k].buffer;
            if (first[b] == NONE)
                first[b] = i;
            last[b] = i;
        }
    c.first = first;
    c.last = last;

    TRY(check_values(&c));
    TRY(check_gradients(&c));
    TRY(check_memory(&c));
    if (memory_bytes == 0)
        return TITAN_OK;

    /* Device memory by kind: external buffers, and the arena at its fullest moment. */
    struct program copy = *p;
    size_t by_kind[MEMORY_COUNT], external = 0;
    _cleanup_free_ struct buffer *buffers = malloc(((size_t)p->n_buffers + 1) * sizeof *buffers);
    if (!buffers)
        return titan_fail(err, TITAN_ENOMEM, "checking a program: out of memory");
    memcpy(buffers, p->buffers, (size_t)p->n_buffers * sizeof *buffers);
    copy.buffers = buffers;
    (void)program_peak(&copy, by_kind, NULL);
    for (int i = 0; i < p->n_buffers; i++) {
        const enum buffer_kind kind = p->buffers[i].kind;
        if (!buffer_is_external(kind) || buffer_memory(kind) == MEMORY_HOST)
            continue;
        external += p->buffers[i].bytes;
        by_kind[buffer_memory(kind)] += p->buffers[i].bytes;
    }
    if (p->arena_bytes + external <= memory_bytes)
        return TITAN_OK;
    char text[256];
    int n = 0;
    for (int k = 0; k < MEMORY_HOST; k++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%s %.2f", k > 0 ? ", " : "",
                      memory_kind_name((enum memory_kind)k), (double)by_kind[k] / GIB);
    (void)titan_fail(err, TITAN_EUNPLACEABLE, "pp rank %d needs %.2f GiB of device memory (%s), there are %.2f GiB",
                     p->pp_rank, (double)(p->arena_bytes + external) / GIB, text, (double)memory_bytes / GIB);
    titan_error_hint(err, "use more workers, activation checkpointing, a smaller training.local_batch_size or a "
                          "shorter training.seq_len");
    return TITAN_EUNPLACEABLE;
}
