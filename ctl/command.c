/* SPDX-License-Identifier: Apache-2.0 */
/* command.c - the table of commands, in the order of help. */
#include "ctl/command.h"

static const struct command *const commands[] = {
    &command_submit,     &command_resume,      &command_run,      &command_status,     &command_show,
    &command_list,       &command_cancel,      &command_rm,       &command_gc,         &command_resize,
    &command_checkpoint, &command_attach,      &command_wait,     &command_logs,       &command_events,
    &command_metrics,    &command_compare,     &command_report,   &command_top,        &command_diff,
    &command_flight,     &command_nodes,       &command_counters, &command_drain,      &command_undrain,
    &command_node,       &command_checkpoints, &command_eval,     &command_generate,   &command_convert,
    &command_data,       &command_plan,        &command_pki,      &command_admin,      &command_audit,
    &command_token,      &command_version,     &command_help,     &command_completion, NULL,
};

static const struct option_spec options[] = {
    {"server", 's', "TARGET",
     "server to talk to: unix:PATH, HOST:PORT or HOST:PORT,HOST:PORT (default: $TITAN_SERVER, see ENVIRONMENT)",
     WORD_FILE},
    {"tls-ca", 0, "FILE", "for HOST:PORT: the CA of its certificate (default: $TITAN_TLS_CA, see ENVIRONMENT)",
     WORD_FILE},
    {"tls-cert", 0, "FILE", "one's own certificate (default: $TITAN_TLS_CERT)", WORD_FILE},
    {"tls-key", 0, "FILE", "its key (default: $TITAN_TLS_KEY)", WORD_FILE},
    {"insecure", 0, NULL, "HOST:PORT without TLS, whatever files there are", WORD_NONE},
    {"token-file", 0, "FILE", "a bearer token to be sent (default: $TITAN_TOKEN, else none)", WORD_FILE},
    {"output", 'o', "FORMAT", "table (default) or json", WORD_FORMAT},
    {"help", 'h', NULL, "say how it is used, with examples", WORD_NONE},
    {"version", 'V', NULL, "print titanctl's version", WORD_NONE},
    {NULL, 0, NULL, NULL, WORD_NONE},
};

const struct command_table titanctl = {.name = "titanctl", .noun = "command", .commands = commands, .options = options};
