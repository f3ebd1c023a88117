/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/shell/event_message.h"

Titan__V1__Event event_message(const struct event *e)
{
    Titan__V1__Event m = TITAN__V1__EVENT__INIT;
    m.id = e->id;
    m.job_id = e->job_id;
    m.at_ms = e->at_ms;
    m.type = (char *)e->type;
    m.message = (char *)e->message;
    m.epoch = e->epoch;
    m.step = e->step;
    m.rank = e->rank;
    m.node = (char *)e->node;
    m.detail = (char *)e->detail;
    m.actor = (char *)e->actor;
    return m;
}
