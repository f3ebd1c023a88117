/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/tls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/auth/certs.h"

static struct rpc_tls files;

const struct rpc_tls *ctl_tls(void)
{
    return files.ca[0] ? &files : NULL;
}

static titan_status given(const struct args *args, const char *option, const char *variable, char out[PATH_MAX],
                          struct titan_error *err)
{
    const char *from_env = getenv(variable), *path = args_text(args, option, from_env ? from_env : "");
    return snprintf(out, PATH_MAX, "%s", path) < PATH_MAX ? TITAN_OK
                                                          : titan_fail(err, TITAN_EINVAL, "--%s is too long", option);
}

titan_status ctl_load_tls(const struct args *args, const char *server, struct titan_error *err)
{
    struct pki_certificate own;
    if (args_has(args, "insecure") || strncmp(server, "unix:", 5) == 0)
        return TITAN_OK;
    TRY(given(args, "tls-ca", "TITAN_TLS_CA", files.ca, err));
    TRY(given(args, "tls-cert", "TITAN_TLS_CERT", files.certificate, err));
    TRY(given(args, "tls-key", "TITAN_TLS_KEY", files.key, err));
    if (!files.ca[0] && (files.certificate[0] || files.key[0])) {
        titan_fail(err, TITAN_EINVAL, "a certificate and key are given, but no CA to know the server by");
        titan_error_hint(err, "--tls-ca FILE or TITAN_TLS_CA; titanctl pki user writes all three");
        return TITAN_EINVAL;
    }

    /* The user's files are tried before the machine's. A CA without a certificate suffices for a bearer token. */
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    char dir[PATH_MAX / 2] = "";
    if (xdg && *xdg == '/')
        (void)snprintf(dir, sizeof(dir), "%s/titan", xdg);
    else if (home && *home == '/')
        (void)snprintf(dir, sizeof(dir), "%s/.config/titan", home);
    const char *const dirs[] = {dir, "/etc/titan/tls"};
    for (size_t i = 0; i < ARRAY_SIZE(dirs) && !files.ca[0]; i++) {
        (void)snprintf(files.ca, sizeof(files.ca), "%s/ca.pem", dirs[i]);
        (void)snprintf(files.certificate, sizeof(files.certificate), "%s/cert.pem", dirs[i]);
        (void)snprintf(files.key, sizeof(files.key), "%s/key.pem", dirs[i]);
        if (!*dirs[i] || access(files.ca, R_OK) != 0)
            files = (struct rpc_tls){.ca = ""};
        else if (access(files.key, R_OK) != 0)
            files.certificate[0] = files.key[0] = '\0';
    }
    titan_assert(files.ca[0] || !files.certificate[0]);
    return files.certificate[0] ? certs_check(&files, clock_wall_ms(), &own, err) : TITAN_OK;
}
