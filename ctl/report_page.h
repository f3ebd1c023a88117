/* SPDX-License-Identifier: Apache-2.0 */
/* report_page.h - a job as one self-contained HTML page: no network, no library. */
#ifndef TITAN_CTL_REPORT_PAGE_H
#define TITAN_CTL_REPORT_PAGE_H

#include "base/buf.h"
#include "base/recipe.h"
#include "proto/curves.h"
#include "proto/history.h"

/* Content of a page; all pointers are borrowed. Strings may contain any bytes. */
struct report_page {
    const Titan__V1__Job *job;
    const char *server_version; /* NULL: unknown */
    const char *recipe;         /* as submitted; NULL: why_no_recipe has the reason */
    const char *why_no_recipe;
    const struct recipe *resolved;             /* NULL: this version cannot read the recipe */
    const Titan__V1__ListNodesResponse *nodes; /* NULL: unknown */
    const struct curves *curves;
    const struct history *history;
    int64_t now_ms;
};

/* False: out of memory. */
bool report_page_put(const struct report_page *page, struct buf *out);
/* Escapes text for HTML: markup becomes references, and characters that change the display become '?'. Line ends stay,
 * tabs become spaces. */
void report_page_escape(const char *text, struct buf *out);

#endif
