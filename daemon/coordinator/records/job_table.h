/* SPDX-License-Identifier: Apache-2.0 */
/* job_table.h - the table of jobs. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_JOB_TABLE_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_JOB_TABLE_H

#include "daemon/coordinator/records/core_record.h"

struct jobrec *core_find_job(const struct core *c, uint64_t id);
struct jobrec *core_add_job(struct core *c, const struct job *job);
void core_forget(struct core *c, struct jobrec *j); /* unlinks and frees */
void job_free(struct jobrec *j);
bool job_on_node(const struct jobrec *j, const struct noderec *n); /* does a worker of the job run there? */

#endif
