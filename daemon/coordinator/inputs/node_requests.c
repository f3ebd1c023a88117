/* SPDX-License-Identifier: Apache-2.0 */
/* Operators' requests about nodes. */
#include "daemon/coordinator/records/core_record.h"

#include "base/mutant.h"
#include "daemon/coordinator/cluster/faulty_slots.h"
#include "daemon/coordinator/cluster/quarantine.h"
#include "daemon/coordinator/inputs/input.h"
#include "daemon/coordinator/run/job_driver.h"
#include "daemon/coordinator/sched/maintenance.h"

titan_status core_drain(struct core *c, const char *node, const struct core_drain *d, struct core_time now,
                        struct batch *out, struct titan_error *err)
{
    struct noderec *n = core_find_node(c, node);
    if (!n && MUTANT(DRAIN_OF_NONE))
        return TITAN_OK;
    if (!n)
        return titan_fail(err, TITAN_ENOTFOUND, "there is no node '%.253s'", node);
    TRY(maintenance_check(d, now.wall_ms, err));
    core_begin(c, now, out);
    maintenance_drain(c, n, d);
    core_finish(c);
    return TITAN_OK;
}

titan_status core_undrain(struct core *c, const char *node, struct core_time now, struct batch *out,
                          struct titan_error *err)
{
    struct noderec *n = core_find_node(c, node);
    if (!n && MUTANT(UNDRAIN_OF_NONE))
        return TITAN_OK;
    if (!n)
        return titan_fail(err, TITAN_ENOTFOUND, "there is no node '%.253s'", node);
    core_begin(c, now, out);
    quarantine_lift(n);
    faulty_slots_lift(c, n);
    maintenance_undrain(c, n);
    core_finish(c);
    return TITAN_OK;
}
