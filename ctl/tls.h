/* SPDX-License-Identifier: Apache-2.0 */
/* tls.h - the files that titanctl uses for servers at HOST:PORT. */
#ifndef TITAN_CTL_TLS_H
#define TITAN_CTL_TLS_H

#include "base/options.h"
#include "proto/rpc/tls.h"

/* --tls-ca, --tls-cert and --tls-key, else $TITAN_TLS_CA, _CERT and _KEY, else ca.pem, cert.pem and key.pem of the
 * first folder that has a ca.pem: $XDG_CONFIG_HOME/titan, ~/.config/titan, /etc/titan/tls. None of them, --insecure, or
 * a server at a Unix socket: no TLS. One's own certificate is looked at: one that has expired is refused here, and why.
 */
titan_status ctl_load_tls(const struct args *args, const char *server, struct titan_error *err) TITAN_MUST_USE;
/* What was found; NULL: no TLS. */
const struct rpc_tls *ctl_tls(void);

#endif
