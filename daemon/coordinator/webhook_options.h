/* SPDX-License-Identifier: Apache-2.0 */
/* webhook_options.h - the endpoints that get events by POST: [[webhook]] of titand's config file. */
#ifndef TITAN_DAEMON_COORDINATOR_WEBHOOK_OPTIONS_H
#define TITAN_DAEMON_COORDINATOR_WEBHOOK_OPTIONS_H

#include <limits.h>

#include "base/buf.h"
#include "base/error.h"
#include "state/event.h"

#define WEBHOOKS_MAX 8
#define WEBHOOK_NAME 36 /* leaves no padding in the struct */
#define WEBHOOK_EVENTS_DEFAULT "jobs,losses,nodes,checkpoints,store"

struct webhook_options {
    char name[WEBHOOK_NAME];    /* a-z, 0-9, '-' and '_'; its place in the event log is stored under the name */
    char url[1024];             /* http:// or https:// */
    char secret_file[PATH_MAX]; /* absolute; its content signs the POSTs */
    char ca[PATH_MAX];          /* "" = the system's CAs */
    char events[512];           /* words with commas between: groups, types, "job.*", "*" */
    uint32_t timeout_ms;        /* for one POST */
};

/* Unused bytes are zero, so that equal settings are equal in memory. */
struct webhooks_options {
    size_t n;
    struct webhook_options list[WEBHOOKS_MAX];
};

/* Checks the values and fills in the defaults. The messages begin with the key's name. */
titan_status webhook_check(struct webhook_options *w, struct titan_error *err) TITAN_MUST_USE;
/* Does the endpoint want this event? */
bool webhook_wants(const struct webhook_options *w, const struct event *e);
/* Reads the secret, without the newline at its end. TITAN_EPERM: every user may read the file. TITAN_EINVAL: it is
 * shorter than 16 bytes. */
titan_status webhook_secret(const struct webhook_options *w, struct buf *ret, struct titan_error *err) TITAN_MUST_USE;
/* "https://host:port", without the path, which may be a secret of its own. */
void webhook_place(const struct webhook_options *w, char out[256]);

#endif
