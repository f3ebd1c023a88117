/* SPDX-License-Identifier: Apache-2.0 */
/* coordinators.c - ListCoordinators and HandOver: the coordinators that keep the same job store. */
#include "daemon/api/api.h"

#include <string.h>

#include "daemon/coordinator/shell/shell.h"

/* Returns the number of coordinators. */
static titan_status look(struct coordinator *c, struct coordinator_member ret[HA_MEMBERS_MAX], int *ret_n,
                         struct titan_error *err)
{
    if (!c->options.lead)
        return titan_fail(err, TITAN_ECONFLICT, "there is one coordinator: [ha] of its config names no other");
    *ret_n = c->options.lead->members(c->options.lead->data, ret);
    return TITAN_OK;
}

void api_list_coordinators(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    struct coordinator_member members[HA_MEMBERS_MAX];
    Titan__V1__Coordinator out[HA_MEMBERS_MAX], *list[HA_MEMBERS_MAX];
    Titan__V1__ListCoordinatorsResponse reply = TITAN__V1__LIST_COORDINATORS_RESPONSE__INIT;
    struct titan_error err = {0};
    int n = 0;
    (void)request;
    if (look(data, members, &n, &err) != TITAN_OK) {
        rpc_call_fail(call, &err);
        return;
    }
    for (int i = 0; i < n; i++) {
        out[i] = (Titan__V1__Coordinator)TITAN__V1__COORDINATOR__INIT;
        out[i].name = members[i].name;
        out[i].leads = members[i].leads;
        out[i].reached = members[i].reached;
        out[i].votes = members[i].votes;
        out[i].lag = members[i].lag;
        list[i] = &out[i];
    }
    reply.n_coordinators = (size_t)n;
    reply.coordinators = list;
    rpc_call_reply(call, &reply.base);
}

void api_hand_over(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct coordinator *c = data;
    const char *to = ((const Titan__V1__HandOverRequest *)base)->to;
    struct coordinator_member members[HA_MEMBERS_MAX];
    Titan__V1__HandOverResponse reply = TITAN__V1__HAND_OVER_RESPONSE__INIT;
    struct titan_error err = {0};
    struct auth_user u;
    int n = 0, next = -1, others = 0;
    api_user(c, call, &u);
    titan_status status = look(c, members, &n, &err);
    for (int i = 0; i < n; i++) {
        const bool ready = members[i].reached && members[i].votes && !members[i].leads;
        others += ready;
        if (status != TITAN_OK || strcmp(members[i].name, to) != 0)
            continue;
        next = i;
        if (members[i].leads)
            status = titan_fail(&err, TITAN_ECONFLICT, "'%s' leads already", to);
        else if (!ready)
            status = titan_fail(&err, TITAN_ECONFLICT, "'%s' cannot lead now: it is %s", to,
                                members[i].reached ? "joining" : "not reached");
    }
    if (status == TITAN_OK && to[0] && next < 0)
        status = titan_fail(&err, TITAN_ENOTFOUND, "there is no coordinator '%s'", to);
    if (status == TITAN_OK && others == 0)
        status = titan_fail(&err, TITAN_ECONFLICT, "no other coordinator can lead now");
    if (status != TITAN_OK) {
        api_failed(c, &u, POLICY_HAND_OVER, 0, &err);
        rpc_call_fail(call, &err);
        return;
    }
    api_on_record(c, u.actor, POLICY_HAND_OVER);
    rpc_call_reply(call, &reply.base);
    c->options.lead->hand_over(c->options.lead->data, next);
}
