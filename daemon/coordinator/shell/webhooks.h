/* SPDX-License-Identifier: Apache-2.0 */
/* webhooks.h - events by POST to the endpoints of [[webhook]].
 *
 * Each endpoint gets the events that it wants in their order, one at a time, each until it is answered with 2xx. The
 * body is the event as `titanctl -o json events` prints it. The number of the last delivered event is a row of table
 * meta, "webhook:NAME"; the next event is sent once the row is durable. So an event is sent again only if the
 * coordinator ended between the answer and the row. A new name begins behind the newest event; a name that is not
 * configured any more is forgotten. After a restore from a backup, events behind the backup's row are sent again.
 *
 * An answer 3xx or 4xx, but for 408 and 429, comes from a receiver that does not take this event: after five of them in
 * a row it is passed over. All else is tried again for ever, after 250 ms, doubled up to a minute.
 *
 * Headers: Titan-Event-Id; Titan-Timestamp, seconds since 1970; Titan-Signature, "sha256=" and the HMAC-SHA256 of
 * "TIMESTAMP.BODY" in hexadecimal; Titan-Gap, "FROM-TO", if events between the last and this one are not stored any
 * more.
 *
 * Each endpoint has a thread, on which it may hang. All else runs on the loop thread. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_WEBHOOKS_H
#define TITAN_DAEMON_COORDINATOR_SHELL_WEBHOOKS_H

#include "daemon/coordinator/shell/shell.h"
#include "daemon/coordinator/webhook_options.h"

/* Makes c->webhooks of the coordinator's options; nothing is sent yet. TITAN_EINVAL: there is no libcurl. */
titan_status webhooks_open(struct coordinator *c, struct titan_error *err) TITAN_MUST_USE;
/* The store is open: begins. */
void webhooks_start(struct coordinator *c);
/* Goes on with other settings. On failure the endpoints stay as they are. */
titan_status webhooks_reload(struct coordinator *c, const struct webhooks_options *options,
                             struct titan_error *err) TITAN_MUST_USE;
/* Something was committed to the store. */
void webhooks_committed(struct coordinator *c);
/* Gives up what is being sent; the store must take writes still. closed(c) runs for each of the two handles that
 * webhooks_start() has opened. */
void webhooks_close(struct coordinator *c, void (*closed)(void *coordinator));
void webhooks_free(struct coordinator *c);

struct webhook_state {
    const struct webhook_options *options;
    uint64_t delivered, failures, passed_over; /* counts since the start */
    double lag_s;                              /* age of the event that is to be delivered; 0 = none */
    uint64_t at;                               /* the last event that was delivered or not wanted */
    unsigned failed;                           /* tries in a row that failed */
    const char *trouble;                       /* why the last of them failed */
};
void webhooks_each(const struct coordinator *c, void (*each)(const struct webhook_state *s, void *data), void *data);

#endif
