/* command.c - the table of commands, in the order help lists them. */
#include "ctl/command.h"

#include <string.h>

const struct command *const commands[] = {
    &command_submit,      &command_run,      &command_status,     &command_list,
    &command_cancel,      &command_resize,   &command_checkpoint, &command_wait,
    &command_logs,        &command_events,   &command_metrics,    &command_nodes,
    &command_counters,    &command_drain,    &command_undrain,    &command_node,
    &command_checkpoints, &command_generate, &command_convert,    &command_plan,
    &command_pki,         &command_admin,    &command_audit,      &command_token,
    &command_version,     &command_help,     &command_completion, NULL,
};

const struct option_spec global_options[] = {
    {"server", 's', "TARGET", "server to talk to: unix:PATH or HOST:PORT (default: $TITAN_SERVER, see ENVIRONMENT)",
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

const struct command *command_find(const char *name)
{
    for (size_t i = 0; commands[i]; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

size_t command_names(const char **names, size_t cap)
{
    size_t n = 0;
    for (; n < cap && commands[n]; n++)
        names[n] = commands[n]->name;
    return n;
}
