/* SPDX-License-Identifier: Apache-2.0 */
/* join.c - see join.h. */
#include "daemon/auth/join.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/toml.h"
#include "daemon/auth/certs.h"

/* Prints the node and the coordinator's addresses. */
static void print_place(const struct join_file *j, struct buf *out)
{
    buf_printf(out, "node = \"%s\"\ncoordinator = \"%s\"\n", j->node, j->coordinator);
    if (j->agents[0])
        buf_printf(out, "agents = \"%s\"\n", j->agents);
}

void join_print(const struct join_file *j, struct buf *out)
{
    char until[32];
    buf_printf(out,
               "# With this file a machine becomes node %s of a Titan cluster: once, before %s.\n"
               "# It is a secret. On the node: titand agent --join FILE\n",
               j->node, clock_format(j->expires_at_ms, until));
    print_place(j, out);
    buf_printf(out,
               "token = \"%s\"\n"
               "expires_at_ms = %lld\n"
               "ca = \"\"\"\n%s\"\"\"\n",
               j->token, (long long)j->expires_at_ms, j->ca.data ? j->ca.data : "");
}

void join_print_place(const struct join_file *j, struct buf *out)
{
    buf_puts(out, "# Where the coordinator is, as the join file said; coordinator of titand.toml counts instead.\n");
    print_place(j, out);
}

static titan_status text_of(const struct toml_value *root, const char *path, const char *key, char *out, size_t cap,
                            struct titan_error *err)
{
    const struct toml_value *v = toml_get(root, key);
    if (!v || v->type != TOML_STRING || !v->string[0])
        return titan_fail(err, TITAN_EINVAL, "%s: no '%s' in it: this is not a file that titanctl node join wrote",
                          path, key);
    if (strlen(v->string) >= cap || strpbrk(v->string, "\n\r\"\\"))
        return titan_fail(err, TITAN_EINVAL, "%s:%d: '%s' is not one that titanctl node join writes", path, v->line,
                          key);
    (void)snprintf(out, cap, "%s", v->string);
    return TITAN_OK;
}

static titan_status addresses_of(const struct toml_value *root, const char *path, const char *key, char *out,
                                 struct titan_error *err)
{
    struct rpc_targets targets;
    TRY(text_of(root, path, key, out, JOIN_ADDRESS_MAX, err));
    if (rpc_targets_parse(out, &targets, err) != TITAN_OK)
        return titan_error_wrap(err, "%s:%d: %s", path, toml_get(root, key)->line, key);
    return TITAN_OK;
}

static titan_status read_place(const struct toml_value *root, const char *path, struct join_file *ret,
                               struct titan_error *err)
{
    TRY(text_of(root, path, "node", ret->node, sizeof(ret->node), err));
    TRY(addresses_of(root, path, "coordinator", ret->coordinator, err));
    if (toml_get(root, "agents"))
        TRY(addresses_of(root, path, "agents", ret->agents, err));
    if (!pki_name_ok(ret->node))
        return titan_fail(err, TITAN_EINVAL, "%s: '%s' is not a valid node name", path, ret->node);
    return TITAN_OK;
}

static titan_status read_values(const struct toml_value *root, const char *path, struct join_file *ret,
                                struct titan_error *err)
{
    TRY(read_place(root, path, ret, err));
    TRY(text_of(root, path, "token", ret->token, sizeof(ret->token), err));
    const struct toml_value *until = toml_get(root, "expires_at_ms"), *ca = toml_get(root, "ca");
    if (!until || until->type != TOML_INT || until->integer <= 0 || until->integer >= INT64_C(1) << 50)
        return titan_fail(err, TITAN_EINVAL, "%s: no time in 'expires_at_ms'", path);
    ret->expires_at_ms = until->integer;
    if (!ca || ca->type != TOML_STRING)
        return titan_fail(err, TITAN_EINVAL, "%s: no 'ca' in it: this is not a file that titanctl node join wrote",
                          path);
    struct pki_certificate certificate;
    if (pki_read(ca->string, strlen(ca->string), &certificate, err) != TITAN_OK)
        return titan_error_wrap(err, "%s:%d: ca", path, ca->line);
    if (!certificate.ca)
        return titan_fail(err, TITAN_EINVAL, "%s:%d: 'ca' is not the certificate of a CA", path, ca->line);
    if (buf_append(&ret->ca, ca->string, strlen(ca->string)) != TITAN_OK)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    return TITAN_OK;
}

titan_status join_parse(const char *text, size_t len, const char *path, struct join_file *ret, struct titan_error *err)
{
    struct toml_value *root = NULL;
    *ret = (struct join_file){.ca = BUF_INIT};
    if (len > JOIN_FILE_MAX)
        return titan_fail(err, TITAN_EINVAL, "%s: %zu bytes; a file of titanctl node join is smaller", path, len);
    TRY(toml_parse(text, len, path, &root, err));
    titan_status status = read_values(root, path, ret, err);
    toml_free(root);
    if (status != TITAN_OK)
        join_free(ret);
    return status;
}

titan_status join_load_place(const char *path, struct join_file *ret, struct titan_error *err)
{
    struct toml_value *root = NULL;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    *ret = (struct join_file){.ca = BUF_INIT};
    TRY(file_read(path, JOIN_FILE_MAX, &text, err));
    TRY(toml_parse(text.data ? text.data : "", text.len, path, &root, err));
    const titan_status status = read_place(root, path, ret, err);
    toml_free(root);
    return status;
}

titan_status join_load(const char *path, struct join_file *ret, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    *ret = (struct join_file){.ca = BUF_INIT};
    titan_status status = certs_read_secret(path, JOIN_FILE_MAX, &text, err);
    /* a bad join file is bad input, like a bad configuration, so the unit is not restarted */
    if (status == TITAN_ENOTFOUND) {
        status = TITAN_EINVAL;
        if (err)
            err->status = status;
    }
    TRY(status);
    return join_parse(text.data ? text.data : "", text.len, path, ret, err);
}

void join_free(struct join_file *j)
{
    buf_free(&j->ca);
}
