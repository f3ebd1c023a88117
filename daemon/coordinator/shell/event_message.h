/* SPDX-License-Identifier: Apache-2.0 */
/* event_message.h - a stored event as the API's message. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_EVENT_MESSAGE_H
#define TITAN_DAEMON_COORDINATOR_SHELL_EVENT_MESSAGE_H

#include "state/event.h"
#include "titan/v1/titan.pb-c.h"

/* The message borrows the event's texts. */
Titan__V1__Event event_message(const struct event *e);

#endif
