/* SPDX-License-Identifier: Apache-2.0 */
/* nodes.c - titanctl nodes: where workers can run. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"

void output_node(const struct ctl *ctl, const Titan__V1__Node *node)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    char from[32];
    if (!node)
        return;
    if (ctl->json) {
        (void)output_json(&node->base, false);
        return;
    }
    output_fit(&node->base);
    buf_printf(&text, "node %s %s, %u of %u slots in use", node->name, node->state, node->slots_used, node->slots);
    if (node->window_from_ms)
        buf_printf(&text, ", maintenance from %s", clock_format(node->window_from_ms, from));
    (void)output_line(&text);
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    Titan__V1__ListNodesRequest request = TITAN__V1__LIST_NODES_REQUEST__INIT;
    _cleanup_message_ Titan__V1__ListNodesResponse *reply = NULL;
    TRY(ctl_call(ctl, TITAN_METHOD("ListNodes"), &request.base, &titan__v1__list_nodes_response__descriptor, &reply,
                 err));
    if (ctl->json) {
        (void)output_json(&reply->base, true);
        return TITAN_OK;
    }
    struct table_out table;
    table_begin(&table, (const char *const[]){"NODE", "STATE", "USED>", "SLOTS>", "JOBS~", "DEVICE", "ADDRESS",
                                              "VERSION", "LAST SEEN", "REASON~", NULL});
    table.room = args_has(args, "wide") ? 0 : output_columns();
    int64_t now_ms = clock_wall_ms();
    for (size_t i = 0; i < reply->n_nodes; i++) {
        const Titan__V1__Node *node = reply->nodes[i];
        char ago[48];
        _cleanup_(buf_free) struct buf jobs = BUF_INIT;
        table_cell(&table, "%s", node->name);
        table_cell(&table, "%s", node->state);
        table_cell(&table, "%u", node->slots_used);
        table_cell(&table, "%u", node->slots);
        for (size_t k = 0; k < node->n_jobs; k++)
            buf_printf(&jobs, "%s%llu (%u)", k ? ", " : "", (unsigned long long)node->jobs[k]->job_id,
                       node->jobs[k]->workers);
        table_cell(&table, "%s", jobs.len ? jobs.data : "");
        table_cell(&table, "%s", node->device);
        table_cell(&table, "%s", node->address);
        table_cell(&table, "%s", node->version);
        table_cell(&table, "%s", output_ago(node->last_seen_ms, now_ms, ago));
        table_cell(&table, "%s", node->reason);
    }
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    table_end(&table, &text, -1, false);
    (void)output_line(&text);
    return TITAN_OK;
}

const struct command command_nodes = {
    .name = "nodes",
    .summary = "list the nodes, their slots and what runs there",
    .arguments = "",
    .options =
        (const struct option_spec[]){
            {"wide", 'w', NULL, "reasons in full; else a terminal's width cuts them", WORD_NONE}, {NULL}},
    .examples = (const struct example[]){{"titanctl nodes", "which nodes are there and what is free"}, {NULL}},
    .run = run,
};
