/* SPDX-License-Identifier: Apache-2.0 */
/* audit.h - what goes on record of calls: every one that changed something, and every refusal or failure of one.
 *
 * A storm must not fill the store: of what is refused or fails, the first of an actor, a method and an outcome is an
 * event at once; those that follow within a minute are one event, with their number, when it is over. */
#ifndef TITAN_DAEMON_AUTH_AUDIT_H
#define TITAN_DAEMON_AUTH_AUDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define AUDIT_WINDOW_MS 60000
#define AUDIT_SLOTS 256 /* actors and methods that are told apart within a minute; the rest is counted as one */

struct audit_record {
    char actor[256], why[256]; /* why: the first refusal's text */
    unsigned method;           /* of policy.h */
    titan_status outcome;
    uint64_t job_id;
    uint32_t count;
};

struct audit;

struct audit *audit_new(void); /* never NULL */
void audit_free(struct audit *a);
/* A call was refused or has failed. True: put it on record now. False: it is counted. */
bool audit_failed(struct audit *a, const struct audit_record *r, int64_t now_ms);
/* Minutes that are over (all: those that are not, too): their counts, to each(). Returns when to call again; 0 = there
 * is nothing to wait for. */
int64_t audit_flush(struct audit *a, int64_t now_ms, bool all, void (*each)(const struct audit_record *r, void *data),
                    void *data);

#endif
