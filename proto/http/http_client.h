/* SPDX-License-Identifier: Apache-2.0 */
/* http_client.h - POSTs over HTTP and HTTPS by libcurl, which is loaded by the first client: a daemon without one does
 * not pay for it. HTTPS checks the server's certificate and name, with TLS 1.2 or later. A redirect is an answer like
 * any other, never followed. Proxies and passwords of the environment and of files are not used.
 *
 * A client belongs to one thread at a time, which its POSTs block. Only http_client_abort() may come from another. */
#ifndef TITAN_PROTO_HTTP_CLIENT_H
#define TITAN_PROTO_HTTP_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define HTTP_CLIENT_LIBRARY "libcurl.so.4"

struct http_client;

struct http_post {
    const char *url;
    const char *ca;             /* file of the CAs that sign the server's certificate; NULL or "" = the system's */
    const char *const *headers; /* "Name: value"; ends with NULL */
    const void *body;
    size_t len;
    uint32_t timeout_ms; /* for the whole exchange; a connection has half of it */
};

struct http_posted {
    unsigned status; /* of the answer; 0 = there was none */
    char text[160];  /* why there was none, or the beginning of the answer's body: printable, one line */
};

/* TITAN_ENOTFOUND: there is no libcurl. Loop thread only. */
titan_status http_client_new(struct http_client **ret, struct titan_error *err) TITAN_MUST_USE;
/* Sends the body and waits for the answer's status. At most 64 KiB of the answer's head and of its body are read. */
void http_client_post(struct http_client *c, const struct http_post *post, struct http_posted *ret);
/* The present POST and later ones return at once, with status 0 unless the answer was there. */
void http_client_abort(struct http_client *c);
void http_client_free(struct http_client *c);

#endif
