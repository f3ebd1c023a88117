/* SPDX-License-Identifier: Apache-2.0 */
/* counters.c - titanctl counters: the coordinator's counts since its start. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    Titan__V1__CountersRequest request = TITAN__V1__COUNTERS_REQUEST__INIT;
    _cleanup_message_ Titan__V1__CountersResponse *reply = NULL;
    TRY(ctl_call(ctl, TITAN_METHOD("Counters"), &request.base, &titan__v1__counters_response__descriptor, &reply, err));
    if (ctl->json) {
        (void)output_json(&reply->base, true);
        return TITAN_OK;
    }
    struct table_out table;
    table_begin(&table, (const char *const[]){"COUNTER", "VALUE>", "WHAT~", NULL});
    for (size_t i = 0; i < reply->n_counters; i++) {
        const Titan__V1__Counter *counter = reply->counters[i];
        table_cell(&table, "%s", counter->name);
        table_cell(&table, "%llu", (unsigned long long)counter->value);
        table_cell(&table, "%s", counter->text);
    }
    table_print(&table, args, -1, false);
    return TITAN_OK;
}

const struct command command_counters = {
    .name = "counters",
    .summary = "say what the coordinator has detected, recovered and refused since it started",
    .arguments = "",
    .text = "What is counted is said in the last column; names that end in _ms are sums of milliseconds. The counts "
            "begin at 0\n"
            "with each start of the coordinator; what must outlast it is an event.",
    .options = (const struct option_spec[]){TABLE_WIDE(""), {NULL}},
    .examples =
        (const struct example[]){{"titanctl counters", "how often did nodes fall silent, how long did recoveries take"},
                                 {"titanctl -o json counters", "for a collector of metrics"},
                                 {NULL}},
    .run = run,
};
