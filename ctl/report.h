/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - a job as a page for a browser. */
#ifndef TITAN_CTL_REPORT_H
#define TITAN_CTL_REPORT_H

#include "base/buf.h"
#include "ctl/client.h"

/* Appends a self-contained page; requests all its content from ctl's server. */
titan_status report_page_of(struct ctl *ctl, uint64_t job, struct buf *out, struct titan_error *err) TITAN_MUST_USE;

#endif
