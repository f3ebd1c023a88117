/* SPDX-License-Identifier: Apache-2.0 */
/* pki.c - titanctl pki: a cluster's CA, and the certificates that are not requested over the network. Works offline. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"
#include "ctl/state_dir.h"
#include "daemon/auth/certs.h"

#define DAY_MS INT64_C(86400000)
#define CA_DAYS 3650
#define DAYS_MAX 3650

#define UNIT_STATE "/var/lib/titan-coordinator"
/* owned by root, because the state's user also runs daemons that any peer can reach */
#define UNIT_PKI "/var/lib/titan-pki"

static titan_status pki_dir(const struct args *args, char out[PATH_MAX], struct titan_error *err)
{
    const char *given = args_text(args, "pki-dir", NULL);
    if (given)
        return snprintf(out, PATH_MAX, "%s", given) < PATH_MAX - 32
                   ? TITAN_OK
                   : titan_fail(err, TITAN_EINVAL, "pki: --pki-dir is too long");
    TRY(state_dir_path(args, "/pki", out, err));
    char there[PATH_MAX + 16];
    (void)snprintf(there, sizeof(there), "%s/ca.pem", out);
    if (geteuid() == 0 && !args_has(args, "state-dir") && access(UNIT_STATE, F_OK) == 0 && access(there, F_OK) != 0)
        (void)snprintf(out, PATH_MAX, "%s", UNIT_PKI); /* titan-coordinator.service reads this path */
    return TITAN_OK;
}

/* --- the pieces --------------------------------------------------------------------------------------------------- */

/* Creates a key and its certificate in a folder, and copies the CA's certificate. An existing key stays in use, so that
 * a certificate never lies beside another certificate's key. */
static titan_status make_pair(const char *ca_dir, const char *dir, struct pki_spec *spec, int64_t days,
                              struct pki_certificate *ret, struct titan_error *err)
{
    titan_assert(days > 0);
    _cleanup_(authority_free) struct authority a = {BUF_INIT, BUF_INIT};
    _cleanup_(certs_free) struct certs c = {BUF_INIT, BUF_INIT, BUF_INIT};
    _cleanup_(buf_free) struct buf request = BUF_INIT;
    struct rpc_tls files;
    char uri[PKI_URI_MAX];
    if (!pki_name_ok(spec->name))
        return titan_fail(err, TITAN_EINVAL, "'%.64s' is not a valid name: letters, digits, '.', '_', '-', at most %d",
                          spec->name, PKI_NAME_MAX);
    if (authority_load(ca_dir, &a, err) != TITAN_OK) {
        titan_error_wrap(err, "no CA that could sign in '%.128s'", ca_dir);
        titan_error_hint(err, "titanctl pki init makes one; --pki-dir names the folder of one that is kept elsewhere");
        return err->status;
    }
    TRY(certs_in(dir, &files, err));
    TRY(certs_dir(dir, err));
    bool fresh = certs_load(&files, &c, NULL) != TITAN_OK;
    if (fresh)
        TRY(pki_key_make(&c.key, err));
    (void)snprintf(uri, sizeof(uri), "spiffe://titan/%s/%s", pki_kind_name(spec->kind), spec->name);
    TRY(pki_request_make(&c.key, uri, &request, err));
    int64_t now = clock_wall_ms();
    spec->from_ms = pki_begin_ms(now, days * DAY_MS);
    spec->until_ms = now + days * DAY_MS;
    buf_clear(&c.certificate);
    titan_assert(spec->from_ms < spec->until_ms);
    TRY(pki_issue(&(struct pki_issuer){&a.certificate, &a.key}, request.data, request.len, spec, &c.certificate, err));
    if (fresh)
        TRY(certs_write(files.key, &c.key, true, err));
    TRY(certs_write(files.ca, &a.certificate, false, err));
    TRY(certs_write(files.certificate, &c.certificate, false, err));
    return certs_check(&files, now, ret, err);
}

static void print_certificate(struct ctl *ctl, const char *path, const struct pki_certificate *c)
{
    titan_assert(c->n_hosts >= 0 && c->n_hosts <= PKI_HOSTS_MAX);
    char until[32], from[32];
    if (!ctl->json) {
        (void)printf("%s: %s, until %s", path,
                     c->uri[0] ? c->uri
                     : c->ca   ? "a CA"
                               : "no name of Titan's",
                     clock_format(c->until_ms, until));
        for (int i = 0; i < c->n_hosts; i++)
            (void)printf("%s%s", i ? ", " : "; reached as ", c->hosts[i]);
        (void)printf("\n");
        return;
    }
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text, .pretty = true};
    json_begin_object(&w, NULL);
    json_put_string(&w, "path", path);
    json_put_string(&w, "name", c->uri[0] ? c->uri : NULL);
    json_put_bool(&w, "ca", c->ca);
    json_put_string(&w, "serial", c->serial);
    json_put_string(&w, "valid_from", clock_format(c->from_ms, from));
    json_put_string(&w, "valid_until", clock_format(c->until_ms, until));
    json_begin_array(&w, "hosts");
    for (int i = 0; i < c->n_hosts; i++)
        json_put_string(&w, NULL, c->hosts[i]);
    json_end_array(&w);
    json_end_object(&w);
    (void)output_line(&text);
}

/* --- actions ------------------------------------------------------------------------------------------------------ */

static bool add_host(char hosts[PKI_HOSTS_MAX][256], int *n, const char *host)
{
    titan_assert(*n >= 0 && *n <= PKI_HOSTS_MAX);
    for (int i = 0; i < *n; i++)
        if (strcmp(hosts[i], host) == 0)
            return true;
    return *n < PKI_HOSTS_MAX && snprintf(hosts[(*n)++], 256, "%s", host) < 256;
}

static titan_status run_coordinator(struct ctl *ctl, const struct args *args, bool init, struct titan_error *err)
{
    char state[PATH_MAX], ca[PATH_MAX], dir[PATH_MAX + 8], path[PATH_MAX + 32], host[256] = "coordinator";
    char hosts[PKI_HOSTS_MAX][256];
    int64_t days = 0;
    struct pki_spec spec = {.kind = PKI_COORDINATOR, .hosts = hosts};
    struct pki_certificate made = {.kind = PKI_NONE};
    _cleanup_(buf_free) struct buf before = BUF_INIT;
    struct pki_certificate old = {.n_hosts = 0};
    (void)gethostname(host, sizeof(host) - 1);
    TRY(args_int(args, "days", (struct int_range){1, DAYS_MAX}, CERTS_COORDINATOR_LIFE_MS / DAY_MS, &days, err));
    TRY(state_dir_path(args, "", state, err));
    TRY(pki_dir(args, ca, err));
    (void)snprintf(dir, sizeof(dir), "%s/tls", state);
    (void)snprintf(path, sizeof(path), "%s/cert.pem", dir);
    if (file_read(path, PKI_PEM_MAX, &before, NULL) == TITAN_OK && before.len)
        (void)!pki_read(before.data, before.len, &old, NULL);
    spec.name = args_text(args, "name", old.kind == PKI_COORDINATOR ? old.name : host);

    /* Hosts from --address, else from the old certificate, else this machine's name; always plus localhost's names. */
    char name[256] = "";
    bool ok = true;
    int n = 0;
    for (const char *given; (given = args_each(args, "address", n)); n++)
        ok &= add_host(hosts, &spec.n_hosts, given);
    for (int i = 0; n == 0 && i < old.n_hosts; i++)
        ok &= add_host(hosts, &spec.n_hosts, old.hosts[i]);
    if (spec.n_hosts == 0 && gethostname(name, sizeof(name) - 1) == 0 && name[0])
        ok &= add_host(hosts, &spec.n_hosts, name);
    static const char *const here[] = {"localhost", "127.0.0.1", "::1"};
    for (size_t i = 0; i < ARRAY_SIZE(here); i++)
        ok &= add_host(hosts, &spec.n_hosts, here[i]);
    if (!ok)
        return titan_fail(err, TITAN_EINVAL, "pki: at most %d names and addresses", PKI_HOSTS_MAX - 3);

    if (init) {
        char certificate[PATH_MAX + 16], key[PATH_MAX + 16];
        _cleanup_(authority_free) struct authority a = {BUF_INIT, BUF_INIT};
        int64_t now = clock_wall_ms();
        (void)snprintf(certificate, sizeof(certificate), "%s/ca.pem", ca);
        (void)snprintf(key, sizeof(key), "%s/ca.key", ca);
        if (access(certificate, F_OK) == 0 || access(key, F_OK) == 0) {
            titan_fail(err, TITAN_EEXIST, "there is a CA in '%s' already", ca);
            titan_error_hint(err, "titanctl pki coordinator makes another certificate of it");
            return TITAN_EEXIST;
        }
        TRY(pki_key_make(&a.key, err));
        TRY(pki_ca_make(&a.key, spec.name, now - PKI_SKEW_MS, now + CA_DAYS * DAY_MS, &a.certificate, err));
        TRY(certs_dir(ca, err));
        TRY(certs_write(key, &a.key, true, err));
        TRY(certs_write(certificate, &a.certificate, false, err));
    }
    TRY(make_pair(ca, dir, &spec, days, &made, err));
    print_certificate(ctl, path, &made);
    return TITAN_OK;
}

static titan_status run_pair(struct ctl *ctl, const struct args *args, enum pki_kind kind, struct titan_error *err)
{
    titan_assert(kind == PKI_USER || kind == PKI_NODE);
    char ca[PATH_MAX], path[PATH_MAX + 32];
    struct pki_spec spec = {.kind = kind, .name = args->n > 1 ? args->words[1] : ""};
    struct pki_certificate made = {.kind = PKI_NONE};
    int64_t days = 0, usual = kind == PKI_USER ? CERTS_USER_LIFE_MS : CERTS_NODE_LIFE_MS;
    if (args->n != 2)
        return titan_fail(err, TITAN_EINVAL, "pki %s: a name is missing", pki_kind_name(kind));
    TRY(args_int(args, "days", (struct int_range){1, DAYS_MAX}, usual / DAY_MS, &days, err));
    TRY(pki_dir(args, ca, err));
    const char *out = args_text(args, "out", spec.name);
    TRY(make_pair(ca, out, &spec, days, &made, err));
    (void)snprintf(path, sizeof(path), "%s/cert.pem", out);
    print_certificate(ctl, path, &made);
    return TITAN_OK;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    const char *action = args->words[0];
    if (strcmp(action, "init") == 0 && args->n == 1)
        return run_coordinator(ctl, args, true, err);
    if (strcmp(action, "coordinator") == 0 && args->n == 1)
        return run_coordinator(ctl, args, false, err);
    if (strcmp(action, "user") == 0)
        return run_pair(ctl, args, PKI_USER, err);
    if (strcmp(action, "node") == 0)
        return run_pair(ctl, args, PKI_NODE, err);
    if (strcmp(action, "revoke") == 0 && args->n == 2)
        return ctl_revoke(ctl, "", args->words[1], args_text(args, "reason", ""), err);
    if (strcmp(action, "show") == 0) {
        char path[PATH_MAX] = "";
        struct pki_certificate c;
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        if (args->n > 1)
            (void)snprintf(path, sizeof(path), "%s", args->words[1]);
        else
            TRY(state_dir_path(args, "/tls/cert.pem", path, err));
        TRY(file_read(path, PKI_PEM_MAX, &text, err));
        if (pki_read(text.data ? text.data : "", text.len, &c, err) != TITAN_OK)
            return titan_error_wrap(err, "'%s'", path);
        print_certificate(ctl, path, &c);
        return TITAN_OK;
    }
    return titan_fail(
        err, TITAN_EINVAL,
        "pki: there are init, coordinator, user NAME, node NAME, revoke KIND/NAME and show [FILE], not '%.64s'",
        action);
}

const struct command command_pki = {
    .name = "pki",
    .summary = "make a cluster's certificates",
    .arguments = "init|coordinator|user NAME|node NAME|revoke KIND/NAME|show [FILE]",
    .text =
        "init: a CA of its own for the cluster, in PKI-DIR, and the coordinator's certificate, in "
        "STATE/tls. Its key\n"
        "(ca.key, mode 0600) signs for nodes that join; a coordinator that finds none there signs nothing, so the key "
        "may be\n"
        "kept elsewhere: with --pki-dir, or by moving it. A CA that is there is not overwritten (exit code 6).\n"
        "coordinator: its certificate anew, for other names or with a key that is kept elsewhere.\n"
        "user, node: ca.pem, cert.pem and key.pem into a folder. Nodes get theirs by `titanctl node join` where the "
        "CA's key\n"
        "is on the coordinator.\n"
        "revoke: asks the server; no certificate of user/NAME, node/NAME or coordinator/NAME made until now counts any "
        "more.\n"
        "show: what a certificate says.",
    .min_args = 1,
    .max_args = 2,
    .word = WORD_FILE,
    .options =
        (const struct option_spec[]){
            {"state-dir", 0, "DIR", "of the coordinator (default: /var/lib/titan-coordinator, titand's)", WORD_FILE},
            {"pki-dir", 0, "DIR", "of the CA (default: STATE/pki; root's with the unit: /var/lib/titan-pki)",
             WORD_FILE},
            {"address", 0, "HOST", "init, coordinator: where it is reached; repeatable (default: this host's name)",
             WORD_NONE},
            {"name", 0, "NAME", "init, coordinator: its name (default: this host's)", WORD_NONE},
            {"days", 0, "N", "until the certificate expires (default: coordinator 30, user 90, node 7)", WORD_NONE},
            {"reason", 0, "TEXT", "revoke: why; in the event log", WORD_NONE},
            {"out", 0, "DIR", "user, node: where the files go (default: NAME)", WORD_FILE},
            {NULL}},
    .examples =
        (const struct example[]){
            {"titanctl pki init --address head.example --address 10.0.0.1", "a new cluster, on the coordinator's host"},
            {"titanctl pki user eva --out ~eva/.config/titan", "eva may call over TLS"},
            {"titanctl pki revoke user/eva --reason left", "what eva has does not count any more"},
            {"titanctl pki show", "until when is the coordinator's certificate good?"},
            {NULL}},
    .run = run,
};
