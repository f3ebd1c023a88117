/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the shell, when its last handle is closed. */
#include "daemon/coordinator/shell/enrol.h"
#include "daemon/coordinator/shell/log_head.h"
#include "daemon/coordinator/shell/commits.h"
#include "daemon/coordinator/shell/disk_usage.h"
#include "daemon/coordinator/shell/webhooks.h"

#include <stdlib.h>

void shell_free_parts(struct coordinator *c)
{
    core_free(c->core);
    enrol_free(c->enrol);
    job_cache_free(c->jobs);
    auth_free(c->auth);
    audit_free(c->audit);
    disk_usage_free(c);
    log_head_free(c);
    webhooks_free(c);
    free(c);
}

void shell_part_closed(void *coordinator)
{
    struct coordinator *c = coordinator;
    titan_assert(c->open_handles > 0);
    if (--c->open_handles > 0)
        return;
    commits_free(c);
    void (*closed)(void *) = c->closed;
    void *data = c->closed_data;
    shell_free_parts(c);
    if (closed)
        closed(data);
}
