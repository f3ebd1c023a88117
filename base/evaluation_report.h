/* SPDX-License-Identifier: Apache-2.0 */
/* evaluation_report.h - one evaluation of the model on the validation data: workers report it, the store keeps it,
 * clients read it. */
#ifndef TITAN_BASE_EVALUATION_REPORT_H
#define TITAN_BASE_EVALUATION_REPORT_H

#include <stdint.h>

struct evaluation_report {
    uint64_t step;          /* the evaluation follows this step; 0: no evaluation */
    uint64_t tokens, bytes; /* tokens counted, and the bytes of their text; bytes 0: unknown */
    double loss;            /* mean over the tokens, in nats */
    double ms;              /* duration of the evaluation */
};

double evaluation_perplexity(const struct evaluation_report *r);
/* NaN when the bytes are unknown. */
double evaluation_bits_per_byte(const struct evaluation_report *r);

#endif
