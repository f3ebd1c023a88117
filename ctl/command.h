/* SPDX-License-Identifier: Apache-2.0 */
/* command.h - the commands of titanctl, one file each. */
#ifndef TITAN_CTL_COMMAND_H
#define TITAN_CTL_COMMAND_H

#include "base/options.h"

/* Commands get a struct ctl (client.h); the returned status determines the exit code. */
extern const struct command_table titanctl;

extern const struct command command_submit, command_resume, command_run, command_status, command_show, command_list,
    command_cancel, command_rm, command_gc, command_resize, command_checkpoint, command_pki, command_drain,
    command_undrain, command_node, command_attach, command_wait, command_logs, command_events, command_metrics,
    command_compare, command_report, command_top, command_diff, command_flight, command_nodes, command_counters,
    command_checkpoints, command_eval, command_generate, command_convert, command_data, command_plan, command_admin,
    command_audit, command_token, command_version, command_help, command_completion;

/* The program without its process: parses, runs, prints the error; returns the exit code. */
int ctl_main(int argc, char **argv);

#endif
