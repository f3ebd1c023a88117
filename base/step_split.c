/* SPDX-License-Identifier: Apache-2.0 */
#include "base/step_split.h"

#include <limits.h>
#include <math.h>

struct step_split step_split_none(void)
{
    const double none = (double)NAN;
    return (struct step_split){none, none, none, none, none, none, -1};
}

double step_split_total(const struct step_split *s)
{
    return s->data + s->compute + s->communication + s->checkpoint + s->stragglers;
}

void step_split_print(const struct step_split *s, struct json_writer *w)
{
    titan_assert(s->slowest >= 0);
    json_put_real(w, "data_ms", s->data);
    json_put_real(w, "compute_ms", s->compute);
    json_put_real(w, "communication_ms", s->communication);
    json_put_real(w, "checkpoint_ms", s->checkpoint);
    json_put_real(w, "straggler_ms", s->stragglers);
    json_put_int(w, "slowest_rank", s->slowest);
    json_put_real(w, "slowest_busy_ms", s->slowest_busy);
}

struct step_split step_split_parse(const struct json *line)
{
    const double none = (double)NAN;
    const int64_t slowest = json_int(line, "slowest_rank", -1);
    const struct step_split s = {.data = json_real(line, "data_ms", none),
                                 .compute = json_real(line, "compute_ms", none),
                                 .communication = json_real(line, "communication_ms", none),
                                 .checkpoint = json_real(line, "checkpoint_ms", none),
                                 .stragglers = json_real(line, "straggler_ms", none),
                                 .slowest_busy = json_real(line, "slowest_busy_ms", none),
                                 .slowest = (int)slowest};

    const bool whole = isfinite(step_split_total(&s)) && isfinite(s.slowest_busy);
    return whole && slowest >= 0 && slowest <= INT_MAX ? s : step_split_none();
}
