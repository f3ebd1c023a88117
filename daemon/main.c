/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - titand; docs/man/titand.8. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/process_seal.h"
#include "base/standard_streams.h"
#include "base/version.h"
#include "daemon/config.h"
#include "daemon/loop.h"

static int complain(const struct titan_error *err)
{
    (void)fprintf(stderr, "titand: %s%s%s%s\n", err->msg, err->hint[0] ? " (" : "", err->hint, err->hint[0] ? ")" : "");
    return titan_status_exit(err->status);
}

int main(int argc, char **argv)
{
    struct daemon_config config;
    struct titan_error err = {0};
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGUSR1, SIG_IGN); /* only `titanctl run` handles it, but batch systems send it to all processes */
    standard_streams_open();
    if (config_parse(argc, argv, &config, &err) != TITAN_OK)
        return complain(&err);
    if (config.help) {
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        config_help(&text);
        (void)fputs(text.data, stdout);
        return standard_streams_flush("titand") ? 0 : 1;
    }
    if (config.version) {
        (void)printf("titand %s\n", titan_version);
        return standard_streams_flush("titand") ? 0 : 1;
    }
    log_set_level(config.log_level);
    if (config.role == ROLE_DEV) /* debuggers may attach to a person's own daemon */
        (void)setenv(PROCESS_SEAL_OPEN, "1", false);
    process_seal();
    return daemon_run(&config, &err) == TITAN_OK ? 0 : complain(&err);
}
