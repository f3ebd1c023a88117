/* SPDX-License-Identifier: Apache-2.0 */
/* version.c - titanctl version: versions of this program and of the server. */
#include <stdio.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/version.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"
#include "proto/message_json.h"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    _cleanup_message_ Titan__V1__VersionResponse *server = NULL;
    titan_status status = TITAN_OK;
    if (!args_has(args, "client")) {
        Titan__V1__VersionRequest request = TITAN__V1__VERSION_REQUEST__INIT;
        status = ctl_call(ctl, TITAN_METHOD("Version"), &request.base, &titan__v1__version_response__descriptor,
                          &server, err);
    }
    if (ctl->json) {
        struct json_writer w = {.out = &text, .pretty = true};
        json_begin_object(&w, NULL);
        json_begin_object(&w, "client");
        json_put_string(&w, "version", titan_version);
        json_put_string(&w, "api", "titan.v1");
        json_end_object(&w);
        if (server)
            message_json(&w, "server", &server->base);
        else
            json_put_raw(&w, "server", "null");
        json_end_object(&w);
    } else {
        buf_printf(&text, "titanctl %s\n", titan_version);
        if (server) {
            char since[32];
            output_fit(&server->base);
            buf_printf(&text, "titand   %s at %s, %s, store schema %u, up since %s\n", server->version, ctl->server,
                       server->api, server->schema, clock_format(server->started_at_ms, since));
        }
    }
    (void)output_line(&text);
    return status;
}

const struct command command_version = {
    .name = "version",
    .summary = "print the versions of titanctl and of the server",
    .arguments = "",
    .options =
        (const struct option_spec[]){{"client", 0, NULL, "only titanctl's own; needs no server", WORD_NONE}, {NULL}},
    .examples = (const struct example[]){{"titanctl version", "both"}, {NULL}},
    .run = run,
};
