/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config_look.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "daemon/auth/pki.h"

#define TEXT_MAX 400
#define SOON_MS INT64_C(86400000) /* a certificate's renewal was due long before */

struct look {
    void (*found)(void *data, const char *what, bool wrong, const char *text);
    void *data;
};

static void say(const struct look *l, const char *what, bool wrong, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void say(const struct look *l, const char *what, bool wrong, const char *fmt, ...)
{
    char text[TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    l->found(l->data, what, wrong, text);
}

static void look_at_http(const struct look *l, const struct daemon_config *fresh, const char *serving)
{
    const char *const address = fresh->http.listen;
    const bool ours = strcmp(address, serving) == 0;
    const struct rpc_tls *tls = NULL;
    struct titan_error err = {0};
    struct pki_certificate certificate = {.kind = PKI_NONE};
    _cleanup_(buf_free) struct buf pem = BUF_INIT;
    char until[32];
    if (config_http_transport(fresh, &tls, &err) != TITAN_OK ||
        (!ours && config_address_free(address, &err) != TITAN_OK)) {
        say(l, "http", true, "%.250s%s%.120s%s", err.msg, err.hint[0] ? " (" : "", err.hint, err.hint[0] ? ")" : "");
        return;
    }
    const char *const when = ours ? "" : ", from the next start on";
    const char *const who =
        fresh->auth.metrics.n > 0 ? "the role metrics too" : "operators and admins, as authorization.metrics is empty";
    if (!tls) {
        say(l, "http", false, "%s without TLS, for this machine%s; /metrics for %s", address, when, who);
        return;
    }
    if (file_read(tls->certificate, PKI_PEM_MAX, &pem, &err) != TITAN_OK ||
        pki_read(pem.data ? pem.data : "", pem.len, &certificate, &err) != TITAN_OK) {
        say(l, "http", true, "certificate of %.100s: %.250s", address, err.msg);
        return;
    }
    const bool soon = certificate.until_ms - clock_wall_ms() < SOON_MS;
    say(l, "http", soon, "%s with TLS%s, the certificate is good until %s%s; /metrics for %s", address, when,
        clock_format(certificate.until_ms, until), soon ? " only: renew it (docs/security.md, Rotation)" : "", who);
}

void config_look(const void *config, void (*found)(void *data, const char *what, bool wrong, const char *text),
                 void *data)
{
    const struct daemon_config *running = config;
    const struct look l = {found, data};
    struct titan_error err = {0};
    struct daemon_config *fresh = malloc(sizeof(*fresh));
    titan_assert(fresh);
    *fresh = *running;
    if (running->file[0]) {
        fresh->http.listen[0] = '\0';
        fresh->http.insecure = false;
        if (config_auth_default(&fresh->auth, &err) != TITAN_OK ||
            config_load(fresh, running->file, &err) != TITAN_OK) {
            say(&l, "config", true, "neither a reload nor the next start takes it: %.250s%s%.100s%s", err.msg,
                err.hint[0] ? " (" : "", err.hint, err.hint[0] ? ")" : "");
            *fresh = *running;
        }
    }
    if (fresh->http.listen[0])
        look_at_http(&l, fresh, running->http.listen);
    free(fresh);
}
