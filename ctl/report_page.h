/* SPDX-License-Identifier: Apache-2.0 */
/* report_page.h - a job as one HTML page that needs nothing else: no network, no library. */
#ifndef TITAN_CTL_REPORT_PAGE_H
#define TITAN_CTL_REPORT_PAGE_H

#include "base/buf.h"
#include "base/recipe.h"
#include "ctl/curves.h"
#include "ctl/history.h"

/* What a page is made of; all of it is borrowed. Its strings may hold anything. */
struct report_page {
    const Titan__V1__Job *job;
    const char *server_version; /* NULL: not known */
    const char *recipe;         /* as it was submitted; NULL: why_no_recipe says why */
    const char *why_no_recipe;
    const struct recipe *resolved;             /* NULL: it is not one that this version reads */
    const Titan__V1__ListNodesResponse *nodes; /* NULL: not known */
    const struct curves *curves;
    const struct history *history;
    int64_t now_ms;
};

/* False: out of memory. */
bool report_page_put(const struct report_page *page, struct buf *out);
/* Text as HTML: what would be markup becomes references, what would change how a page shows it becomes '?'. Lines stay
 * lines, tabs become spaces. */
void report_page_escape(const char *text, struct buf *out);

#endif
