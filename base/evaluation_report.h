/* SPDX-License-Identifier: Apache-2.0 */
/* evaluation_report.h - the model on the validation data: what workers say of it, the store keeps and clients are
 * told. */
#ifndef TITAN_BASE_EVALUATION_REPORT_H
#define TITAN_BASE_EVALUATION_REPORT_H

#include <stdint.h>

struct evaluation_report {
    uint64_t step;          /* after which; 0: there is none */
    uint64_t tokens, bytes; /* that count; the bytes of text behind them, 0: not known */
    double loss;            /* mean over the tokens, in nats */
    double ms;              /* it took */
};

double evaluation_perplexity(const struct evaluation_report *r);
/* NaN where the bytes are not known. */
double evaluation_bits_per_byte(const struct evaluation_report *r);

#endif
