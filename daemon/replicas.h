/* SPDX-License-Identifier: Apache-2.0 */
/* replicas.h - this process as one of several coordinators ([ha] of the config): the plug-in, and what happens to the
 * process. All functions run on the loop, except where "any thread" is said. */
#ifndef TITAN_DAEMON_REPLICAS_H
#define TITAN_DAEMON_REPLICAS_H

#include <uv.h>

#include "base/error.h"
#include "daemon/config.h"
#include "daemon/coordinator/coordinator.h"

struct replicas;

/* Loads the plug-in and begins as a follower, which serves the Unix socket: Version, and who leads for all else. leads:
 * called once on the loop, when the coordinator has to be opened with replicas_lead(). When this member has lost its
 * office, or cannot go on, the process starts anew by exec. TITAN_EUNSUPPORTED: the plug-in is not installed. */
titan_status replicas_open(uv_loop_t *loop, const struct daemon_config *config, void (*leads)(void *data),
                           void (*hand_over_asked)(void *data), void *data, struct replicas **ret,
                           struct titan_error *err) TITAN_MUST_USE;
/* For coordinator_options; valid until replicas_close(). Only after leads(). */
const struct coordinator_lead *replicas_lead(const struct replicas *r);
/* The process was told to stop: it ends where it would start anew. */
void replicas_stopping(struct replicas *r);
/* Hands the office over if this member leads, with the store closed, then ends and calls done(data). */
void replicas_close(struct replicas *r, void (*done)(void *data), void *data);

#endif
