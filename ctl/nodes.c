/* SPDX-License-Identifier: Apache-2.0 */
/* nodes.c - titanctl nodes: machines that can run workers. */
#include <inttypes.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"
#include "ctl/when.h"

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
        buf_printf(&text, ", maintenance from %s", when_local(node->window_from_ms, from));
    (void)output_line(&text);
}

/* An unknown value is a dash. */
static void cell_or_dash(struct table_out *table, bool known, uint64_t value)
{
    if (known)
        table_cell(table, "%" PRIu64, value);
    else
        table_cell(table, "-");
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
    if (args_has(args, "gpus")) {
        struct table_out table;
        table_begin(&table, (const char *const[]){"NODE", "SLOT>", "?GPU", "STATE", "?MEMORY", "?TEMP>", "ECC>", "XID>",
                                                  "JOB>", "?WORKER>", "REASON~", NULL});
        for (size_t i = 0; i < reply->n_nodes; i++) {
            for (size_t k = 0; k < reply->nodes[i]->n_gpus; k++) {
                const Titan__V1__Gpu *gpu = reply->nodes[i]->gpus[k];
                char used[UNITS_TEXT], total[UNITS_TEXT];
                table_cell(&table, "%s", reply->nodes[i]->name);
                table_cell(&table, "%u", gpu->slot);
                table_cell(&table, "%s", gpu->name[0] ? gpu->name : "-");
                table_cell(&table, "%s", gpu->state);
                if (gpu->memory_total_bytes)
                    table_cell(&table, "%s/%s", format_bytes(gpu->memory_used_bytes, used),
                               format_bytes(gpu->memory_total_bytes, total));
                else
                    table_cell(&table, "-");
                cell_or_dash(&table, gpu->celsius, gpu->celsius);
                cell_or_dash(&table, gpu->ecc, gpu->ecc_errors);
                cell_or_dash(&table, gpu->xid, gpu->xid);
                cell_or_dash(&table, gpu->job_id, gpu->job_id);
                cell_or_dash(&table, gpu->worker_id, gpu->worker_id);
                table_cell(&table, "%s", gpu->reason);
            }
        }
        table_print(&table, args, -1, false);
        return TITAN_OK;
    }
    struct table_out table;
    table_begin(&table, (const char *const[]){"NODE", "STATE", "USED>", "SLOTS>", "JOBS~", "?DEVICE", "?ADDRESS",
                                              "?VERSION", "?LAST SEEN", "REASON~", NULL});
    int64_t now_ms = clock_wall_ms();
    for (size_t i = 0; i < reply->n_nodes; i++) {
        const Titan__V1__Node *node = reply->nodes[i];
        char ago[48], from[32], until[32];
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
        if (node->window_from_ms)
            table_cell(&table, "maintenance from %s to %s: %s", when_local(node->window_from_ms, from),
                       when_local(node->window_until_ms, until), node->reason);
        else
            table_cell(&table, "%s", node->reason);
    }
    table_print(&table, args, -1, false);
    return TITAN_OK;
}

const struct command command_nodes = {
    .name = "nodes",
    .summary = "list the nodes, their slots and what runs there",
    .arguments = "",
    .options =
        (const struct option_spec[]){
            {"gpus", 'g', NULL,
             "a line for each GPU: memory, temperature (C), uncorrected ECC errors, last Xid, worker", WORD_NONE},
            TABLE_WIDE(""),
            {NULL}},
    .examples = (const struct example[]){{"titanctl nodes", "which nodes are there and what is free"},
                                         {"titanctl nodes --gpus", "which GPU is broken, and why"},
                                         {NULL}},
    .run = run,
};
