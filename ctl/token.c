/* SPDX-License-Identifier: Apache-2.0 */
/* token.c - titanctl token: bearer tokens, for clients without a Unix socket or a certificate. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/outcomes.h"
#include "ctl/output.h"
#include "ctl/when.h"

struct tokens_named {
    struct ctl *ctl;
    char *const *ids;
};

static titan_status revoke_one(void *data, size_t i, struct titan_error *err)
{
    const struct tokens_named *of = data;
    Titan__V1__RevokeTokenRequest request = TITAN__V1__REVOKE_TOKEN_REQUEST__INIT;
    _cleanup_message_ Titan__V1__RevokeTokenResponse *reply = NULL;
    request.id = of->ids[i];
    TRY(ctl_call(of->ctl, TITAN_METHOD("RevokeToken"), &request.base, &titan__v1__revoke_token_response__descriptor,
                 &reply, err));
    output_fit(&reply->base);
    for (size_t k = 0; k < reply->n_made_tokens; k++)
        (void)fprintf(stderr, "titanctl: the token %s, made with %s, is good still (titanctl token revoke %s)\n",
                      reply->made_tokens[k], of->ids[i], reply->made_tokens[k]);
    for (size_t k = 0; k < reply->n_made_joins; k++)
        (void)fprintf(stderr, "titanctl: the join token %s, made with %s, is good still (titanctl node unjoin %s)\n",
                      reply->made_joins[k], of->ids[i], reply->made_joins[k]);
    return TITAN_OK;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    const char *action = args->words[0];
    if (strcmp(action, "create") == 0) {
        Titan__V1__CreateTokenRequest request = TITAN__V1__CREATE_TOKEN_REQUEST__INIT;
        _cleanup_message_ Titan__V1__CreateTokenResponse *reply = NULL;
        int64_t ttl_ms;
        if (args->n < 2)
            return titan_fail(err, TITAN_EINVAL, "token create: the NAME of the user it speaks for is missing");
        TRY(when_duration(args_text(args, "ttl", "30d"), &ttl_ms, err));
        request.name = args->words[1];
        request.role = (char *)(uintptr_t)args_text(args, "role", "user");
        request.ttl_s = (uint64_t)MAX(ttl_ms / 1000, 1);
        TRY(ctl_call(ctl, TITAN_METHOD("CreateToken"), &request.base, &titan__v1__create_token_response__descriptor,
                     &reply, err));
        output_fit(&reply->base);
        if (ctl->json)
            (void)output_json(&reply->base, true);
        else
            (void)puts(reply->token);
        return TITAN_OK;
    }
    if (strcmp(action, "list") == 0) {
        Titan__V1__ListTokensRequest request = TITAN__V1__LIST_TOKENS_REQUEST__INIT;
        _cleanup_message_ Titan__V1__ListTokensResponse *reply = NULL;
        TRY(ctl_call(ctl, TITAN_METHOD("ListTokens"), &request.base, &titan__v1__list_tokens_response__descriptor,
                     &reply, err));
        if (ctl->json)
            return output_json(&reply->base, true), TITAN_OK;
        struct table_out t;
        table_begin(&t, (const char *const[]){"ID", "NAME~", "ROLE", "STATE", "?EXPIRES", "CREATED BY~", NULL});
        for (size_t i = 0; i < reply->n_tokens; i++) {
            const Titan__V1__Token *token = reply->tokens[i];
            const bool expired = token->expires_at_ms <= clock_wall_ms();
            char at[32];
            table_cell(&t, "%s", token->id);
            table_cell(&t, "%s", token->name);
            table_cell(&t, "%s", token->role);
            table_cell(&t, "%s", token->revoked_at_ms ? "revoked" : expired ? "expired" : "valid");
            table_cell(&t, "%s", clock_format(token->expires_at_ms, at));
            table_cell(&t, "%s", token->created_by);
        }
        table_print(&t, args, -1, ctl->color);
        return TITAN_OK;
    }
    if (strcmp(action, "revoke") == 0) {
        struct tokens_named of = {.ctl = ctl, .ids = args->words + 1};
        if (args->n < 2)
            return titan_fail(err, TITAN_EINVAL, "token revoke: the ID is missing (titanctl token list)");
        return outcomes((size_t)args->n - 1, revoke_one, &of, "tokens are not revoked", err);
    }
    return titan_fail(err, TITAN_EINVAL, "token: there are create, list and revoke, not '%.64s'", action);
}

const struct command command_token = {
    .name = "token",
    .summary = "make, list and revoke bearer tokens",
    .arguments = "create NAME | list | revoke ID...",
    .text =
        "For admins. create prints the token, which is shown this once; the server keeps a hash of it. A client "
        "sends it\nfrom TITAN_TOKEN or --token-file, over TLS, or over a Unix socket of root, of the user titan or of "
        "its own user.\nA token that is revoked is refused at once, and streams that were opened with it end.",
    .min_args = 1,
    .max_args = 64,
    .options = (const struct option_spec[]){{"role", 0, "ROLE", "user (default), operator or admin", WORD_NONE},
                                            {"ttl", 0, "TIME", "how long it counts: 12h, 30d (default), at most 400d",
                                             WORD_NONE},
                                            TABLE_WIDE("list: "),
                                            {NULL}},
    .examples = (const struct example[]){{"titanctl token create ci --role user --ttl 7d > ci.token",
                                          "for a pipeline; its jobs belong to the user ci"},
                                         {"titanctl token revoke 3f2a9c01d4e5b6a7", "it is refused from now on"},
                                         {NULL}},
    .run = run,
};
