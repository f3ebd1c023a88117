/* SPDX-License-Identifier: Apache-2.0 */
/* node.c - titanctl node: admits and revokes nodes of the cluster. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/outcomes.h"
#include "ctl/output.h"
#include "ctl/when.h"
#include "daemon/auth/join.h"

/* --- rm ----------------------------------------------------------------------------------------------------------- */

struct removal {
    struct ctl *ctl;
    const struct args *args;
};

static titan_status remove_one(void *data, size_t i, struct titan_error *err)
{
    const struct removal *of = data;
    Titan__V1__RemoveNodeRequest request = TITAN__V1__REMOVE_NODE_REQUEST__INIT;
    _cleanup_message_ Titan__V1__RemoveNodeResponse *reply = NULL;
    titan_assert(1 + i < (size_t)of->args->n);
    request.node = of->args->words[1 + i];
    TRY(ctl_call(of->ctl, TITAN_METHOD("RemoveNode"), &request.base, &titan__v1__remove_node_response__descriptor,
                 &reply, err));
    if (of->ctl->json)
        (void)output_json(&reply->base, false);
    else
        (void)printf("node %s is removed\n", request.node);
    return TITAN_OK;
}

/* --- join --------------------------------------------------------------------------------------------------------- */

/* Is this the statfs(2) type of a network file system, which root of other machines can read? */
static bool is_shared(long type)
{
    static const long shared[] = {
        0x6969 /* NFS */,        0xff534d42 /* CIFS */,   0xfe534d42 /* SMB2 */,
        0x0bd00bd0 /* Lustre */, 0x47504653 /* GPFS */,   0x00c36400 /* Ceph */,
        0x5346414f /* AFS */,    0x01021997 /* 9P */,     0x7461636f /* OCFS2 */,
        0x01161970 /* GFS2 */,   0x19830326 /* BeeGFS */, 0x65735546 /* FUSE: sshfs, GlusterFS */};
    for (size_t i = 0; i < ARRAY_SIZE(shared); i++)
        if (shared[i] == type)
            return true;
    return false;
}

static titan_status run_join(struct ctl *ctl, const struct args *args, struct titan_error *err)
{
    Titan__V1__JoinNodeRequest request = TITAN__V1__JOIN_NODE_REQUEST__INIT;
    _cleanup_message_ Titan__V1__JoinNodeResponse *reply = NULL;
    _cleanup_(join_free) struct join_file join = {.ca = BUF_INIT}, back = {.ca = BUF_INIT};
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct rpc_targets targets;
    struct stat st;
    struct statfs fs;
    int64_t ttl = 0;

    /* Restricts a file that the shell opened for the output, before the secret is written. */
    if (fstat(STDOUT_FILENO, &st) == 0 && S_ISREG(st.st_mode) && fchmod(STDOUT_FILENO, 0600) != 0)
        return titan_fail_errno(err, "the file that this is written to cannot be made private");
    if (fstatfs(STDOUT_FILENO, &fs) == 0 && is_shared((long)fs.f_type))
        (void)fputs("titanctl: this file is a secret on a shared file system: root of a machine that mounts it can "
                    "become the node; bring it there by another way, and take this one back (titanctl node unjoin)\n",
                    stderr);
    if (isatty(STDOUT_FILENO)) {
        titan_fail(err, TITAN_EINVAL, "what node join writes is a secret, and a terminal keeps none");
        titan_error_hint(err, "titanctl node join NAME > NAME.join");
        return TITAN_EINVAL;
    }

    TRY(when_duration(args_text(args, "ttl", "1h"), &ttl, err));
    request.node = args->words[1];
    request.ttl_ms = (uint64_t)ttl;
    TRY(ctl_call(ctl, TITAN_METHOD("JoinNode"), &request.base, &titan__v1__join_node_response__descriptor, &reply,
                 err));
    const char *address = args_text(args, "address", reply->address);
    if (!*address) {
        titan_fail(err, TITAN_EINVAL, "the coordinator does not know at which address nodes reach it");
        titan_error_hint(err, "name it: --address HOST:PORT");
        return TITAN_EINVAL;
    }
    (void)snprintf(join.node, sizeof(join.node), "%s", request.node);
    (void)snprintf(join.coordinator, sizeof(join.coordinator), "%s", address);
    if (rpc_targets_parse(address, &targets, err) != TITAN_OK)
        return titan_error_wrap(err, "--address");
    if (reply->agents_port) {
        /* Lists each host once, with the agents' port. */
        size_t len = 0;
        for (size_t i = 0; i < targets.n; i++) {
            const char *at = targets.at[i], *colon = strrchr(at, ':');
            bool again = !colon;
            for (size_t k = 0; k < i && !again; k++)
                again = strncmp(targets.at[k], at, (size_t)(colon - at) + 1) == 0;
            if (!again)
                len += (size_t)snprintf(join.agents + len, JOIN_ADDRESS_MAX - len, "%s%.*s:%u", len ? "," : "",
                                        (int)(colon - at), at, reply->agents_port);
        }
    }
    (void)snprintf(join.token, sizeof(join.token), "%s", reply->token);
    join.expires_at_ms = reply->expires_at_ms;
    buf_puts(&join.ca, reply->ca);
    join_print(&join, &text);
    /* Parses the text as the node will, to check it. */
    if (buf_failed(&text) || join_parse(text.data, text.len, "node join", &back, err) != TITAN_OK)
        return titan_error_wrap(err, "the server's answer is not good for a node");
    return fwrite(text.data, 1, text.len, stdout) == text.len && fflush(stdout) == 0
               ? TITAN_OK
               : titan_fail_errno(err, "the join file could not be written");
}

/* --- revoke ------------------------------------------------------------------------------------------------------- */

titan_status ctl_revoke(struct ctl *ctl, const char *kind, const char *name, const char *reason,
                        struct titan_error *err)
{
    Titan__V1__RevokeCertificateRequest request = TITAN__V1__REVOKE_CERTIFICATE_REQUEST__INIT;
    _cleanup_message_ Titan__V1__RevokeCertificateResponse *reply = NULL;
    char whole[512];
    if (snprintf(whole, sizeof(whole), "%s%s", kind, name) >= (int)sizeof(whole))
        return titan_fail(err, TITAN_EINVAL, "revoke: the name is too long");
    request.name = whole;
    request.reason = (char *)reason;
    TRY(ctl_call(ctl, TITAN_METHOD("RevokeCertificate"), &request.base,
                 &titan__v1__revoke_certificate_response__descriptor, &reply, err));
    if (!ctl->json) {
        output_fit(&reply->base);
        (void)printf("%s: revoked%s\n", reply->name, reply->sessions ? "; its session is over" : "");
        return TITAN_OK;
    }
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text, .pretty = true};
    json_begin_object(&w, NULL);
    json_put_string(&w, "name", reply->name);
    json_put_uint(&w, "sessions", reply->sessions);
    json_end_object(&w);
    (void)output_line(&text);
    return TITAN_OK;
}

/* --- join tokens -------------------------------------------------------------------------------------------------- */

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    const char *action = args->words[0];
    if (strcmp(action, "joins") == 0) {
        Titan__V1__ListJoinsRequest request = TITAN__V1__LIST_JOINS_REQUEST__INIT;
        _cleanup_message_ Titan__V1__ListJoinsResponse *reply = NULL;
        struct table_out t;
        TRY(ctl_call(ctl, TITAN_METHOD("ListJoins"), &request.base, &titan__v1__list_joins_response__descriptor, &reply,
                     err));
        if (ctl->json) {
            (void)output_json(&reply->base, true);
            return TITAN_OK;
        }
        output_fit(&reply->base);
        table_begin(&t, (const char *const[]){"ID", "NODE~", "STATE", "?EXPIRES", "CREATED BY~", NULL});
        for (size_t i = 0; i < reply->n_joins; i++) {
            const Titan__V1__Join *join = reply->joins[i];
            const bool expired = join->expires_at_ms <= clock_wall_ms();
            char at[32];
            table_cell(&t, "%s", join->id);
            table_cell(&t, "%s", join->node);
            table_cell(&t, "%s", expired ? "expired" : join->used_at_ms ? "used" : "good");
            table_cell(&t, "%s", clock_format(join->expires_at_ms, at));
            table_cell(&t, "%s", join->created_by);
        }
        table_print(&t, args, -1, ctl->color);
        return TITAN_OK;
    }
    if (args->n < 2)
        return titan_fail(err, TITAN_EINVAL, "node %.32s: the %s is missing", action,
                          strcmp(action, "unjoin") == 0 ? "ID (titanctl node joins)" : "NODE");
    if (strcmp(action, "rm") == 0)
        return outcomes((size_t)args->n - 1, remove_one, &(struct removal){ctl, args}, "nodes are not removed", err);
    if (args->n > 2)
        return titan_fail(err, TITAN_EINVAL, "node %.32s: one %s at a time", action,
                          strcmp(action, "unjoin") == 0 ? "ID" : "NODE");
    if (strcmp(action, "unjoin") == 0) {
        Titan__V1__RevokeJoinRequest request = TITAN__V1__REVOKE_JOIN_REQUEST__INIT;
        _cleanup_message_ Titan__V1__RevokeJoinResponse *reply = NULL;
        request.id = args->words[1];
        TRY(ctl_call(ctl, TITAN_METHOD("RevokeJoin"), &request.base, &titan__v1__revoke_join_response__descriptor,
                     &reply, err));
        if (ctl->json)
            return output_json(&reply->base, true), TITAN_OK;
        output_fit(&reply->base);
        (void)printf("no machine becomes %s by the join token %s any more\n", reply->node, request.id);
        return TITAN_OK;
    }
    if (strcmp(action, "forget") == 0) {
        Titan__V1__ForgetNodeRequest request = TITAN__V1__FORGET_NODE_REQUEST__INIT;
        _cleanup_message_ Titan__V1__ForgetNodeResponse *reply = NULL;
        request.node = args->words[1];
        TRY(ctl_call(ctl, TITAN_METHOD("ForgetNode"), &request.base, &titan__v1__forget_node_response__descriptor,
                     &reply, err));
        output_node(ctl, reply->node);
        return TITAN_OK;
    }
    if (strcmp(action, "join") == 0)
        return run_join(ctl, args, err);
    if (strcmp(action, "revoke") == 0)
        return ctl_revoke(ctl, "node/", args->words[1], args_text(args, "reason", ""), err);
    return titan_fail(err, TITAN_EINVAL, "node: there are join, joins, unjoin, revoke, forget and rm, not '%.32s'",
                      action);
}

const struct command command_node = {
    .name = "node",
    .summary = "let a node join, revoke its certificate, declare it gone for good, or take it off the list",
    .arguments = "join|revoke|forget NODE | rm NODE... | joins | unjoin ID",
    .text =
        "join: writes a file with which one machine becomes this node, once: `titand agent --join FILE`. It is a "
        "secret; a\n"
        "file that standard output goes to gets mode 0600.\n"
        "joins: the join tokens that were made, without their secrets; unjoin takes one back.\n"
        "revoke: no certificate that the node has got until now counts any more. Its session ends at once, its workers "
        "are\n"
        "lost, the runs they were in go on without them. Another `node join` lets it in again, with a new "
        "certificate.\n"
        "forget: runs with workers on a node that cannot be reached wait until it is sure that no worker trains there "
        "any more.\n"
        "Run it when the machine is certainly off, and they go on at once.\n"
        "rm: the row of a lost node goes, with its drain, window and quarantine. Refused while it is there, or a job "
        "may "
        "have\nworkers on it. With agent.ephemeral = true in its titand.toml a node goes by itself.",
    .min_args = 1,
    .max_args = ANY_NUMBER,
    .word = WORD_NODE,
    .options =
        (const struct option_spec[]){
            {"ttl", 0, "TIME", "join: how long the file is good (default 1h, at most 30d)", WORD_NONE},
            {"address", 0, "HOST:PORT",
             "join: where nodes reach the coordinator (default: its certificate's first name); several, with commas, "
             "where it may be at one of them",
             WORD_NONE},
            {"reason", 0, "TEXT", "revoke: why; in the event log", WORD_NONE},
            TABLE_WIDE("joins: "),
            {NULL}},
    .examples =
        (const struct example[]){{"titanctl node join gpu7 > gpu7.join", "gpu7 may join within the hour"},
                                 {"titanctl node unjoin 3f2a9c01d4e5b6a7", "the file was mailed to the wrong list"},
                                 {"titanctl node revoke gpu7 --reason stolen", "it speaks for no node any more"},
                                 {"titanctl node forget gpu7", "it burnt down"},
                                 {"titanctl node rm gpu7 gpu8", "and does not come back"},
                                 {NULL}},
    .run = run,
};
