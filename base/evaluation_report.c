/* SPDX-License-Identifier: Apache-2.0 */
#include "base/evaluation_report.h"

#include <math.h>

double evaluation_perplexity(const struct evaluation_report *r)
{
    return exp(r->loss);
}

double evaluation_bits_per_byte(const struct evaluation_report *r)
{
    return r->bytes > 0 ? r->loss * (double)r->tokens / (M_LN2 * (double)r->bytes) : (double)NAN;
}
