/* SPDX-License-Identifier: Apache-2.0 */
/* audit.h - the audit record of calls: every call that changed something, and every refusal or failure of such a call.
 *
 * A storm must not fill the store. The first refusal or failure per actor, method and outcome is an event at once. When
 * a minute is over, the later refusals and failures within it become one event with their count. */
#ifndef TITAN_DAEMON_AUTH_AUDIT_H
#define TITAN_DAEMON_AUTH_AUDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define AUDIT_WINDOW_MS 60000
#define AUDIT_SLOTS 256 /* distinct actors and methods within a minute; further actors and methods count as one */

struct audit_record {
    char actor[256], why[256]; /* why: text of the first refusal */
    unsigned method;           /* number in policy.h */
    titan_status outcome;
    uint64_t job_id;
    uint32_t count;
};

struct audit;

struct audit *audit_new(void); /* never NULL */
void audit_free(struct audit *a);
/* Takes a refused or failed call. True: the caller records the call now; false: the call is counted. */
bool audit_failed(struct audit *a, const struct audit_record *r, int64_t now_ms);
/* Passes to each() the counts of finished minutes; with all, also of unfinished minutes. Returns when to call again; 0
 * = nothing is counted. */
int64_t audit_flush(struct audit *a, int64_t now_ms, bool all, void (*each)(const struct audit_record *r, void *data),
                    void *data);

#endif
