/* SPDX-License-Identifier: Apache-2.0 */
/* records.h - the agent's durable state, below run/: "term" and, for each job, "jobs/ID.epoch" (a packed AgentJobRecord
 * behind a CRC). A write is atomic, and on disk when it returns. Blocking. */
#ifndef TITAN_DAEMON_AGENT_SHELL_RECORDS_H
#define TITAN_DAEMON_AGENT_SHELL_RECORDS_H

#include <stdint.h>

#include "base/error.h"
#include "daemon/common/proof.h"
#include "titan/internal/agent.pb-c.h"

titan_status record_write_term(const char *run_dir, const struct seen_term *seen,
                               struct titan_error *err) TITAN_MUST_USE;
/* "TERM PROOF"; PROOF is hexadecimal and optional. Term 0 = no file; TITAN_ECORRUPT: the text is no term. */
titan_status record_read_term(const char *run_dir, struct seen_term *ret, struct titan_error *err) TITAN_MUST_USE;
titan_status record_write_job(const char *run_dir, const Titan__Internal__AgentJobRecord *record,
                              struct titan_error *err) TITAN_MUST_USE;
/* Calls each once per record. The error names a damaged record; the other records are still read. */
titan_status record_read_jobs(const char *run_dir,
                              void (*each)(const Titan__Internal__AgentJobRecord *record, void *data), void *data,
                              struct titan_error *err) TITAN_MUST_USE;
void record_forget_job(const char *run_dir, uint64_t job_id);

#endif
