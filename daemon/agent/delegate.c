/* delegate.c - epochs without a coordinator; see core.h. */
#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/agent/core_internal.h"

struct delegation {
    int unused;
};

bool agent_coordinator_away(const struct agent_core *c, int64_t now)
{
    return c->contact && now - c->contact_at >= (int64_t)c->away_ms;
}

void agent_delegate_peer(struct agent_core *c, const peer_message *m, const char *from, int64_t now,
                         struct agent_actions *out)
{
    (void)c;
    (void)m;
    (void)from;
    (void)now;
    (void)out;
}

void agent_delegate_quiesced(struct agent_core *c, const Titan__Internal__WorkerQuiesced *m, int64_t now,
                             struct agent_actions *out)
{
    (void)c;
    (void)m;
    (void)now;
    (void)out;
}

void agent_delegate_tick(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    (void)c;
    (void)now;
    (void)out;
}

int64_t agent_delegate_deadline(const struct agent_core *c)
{
    (void)c;
    return INT64_MAX;
}

void agent_delegation_free(struct delegation *d)
{
    free(d);
}
