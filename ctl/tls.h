/* SPDX-License-Identifier: Apache-2.0 */
/* tls.h - titanctl's TLS files for servers at HOST:PORT. */
#ifndef TITAN_CTL_TLS_H
#define TITAN_CTL_TLS_H

#include "base/options.h"
#include "proto/rpc/tls.h"

/* Loads --tls-ca, --tls-cert and --tls-key, else $TITAN_TLS_CA, _CERT and _KEY, else ca.pem, cert.pem and key.pem of
 * the first folder with a ca.pem: $XDG_CONFIG_HOME/titan, ~/.config/titan, /etc/titan/tls. Without files, with
 * --insecure, or for a Unix socket: no TLS. An expired client certificate is refused here with the reason. */
titan_status ctl_load_tls(const struct args *args, const char *server, struct titan_error *err) TITAN_MUST_USE;
/* The loaded files; NULL: no TLS. */
const struct rpc_tls *ctl_tls(void);

#endif
