/* SPDX-License-Identifier: Apache-2.0 */
/* page_watch.h - the agent's side of a worker's page (proto/worker_page.h): made before the worker starts, watched
 * while it lives, found again by the next agent.
 *
 * Watching: a small thread per worker waits for the futex of the robust mutex that the worker holds. When the worker
 * dies the kernel marks the futex before it tears the address space down, and the thread makes an eventfd readable. The
 * thread cannot be interrupted in that wait; it looks once a second whether it is still wanted.
 *
 * The worker may be another user's: whatever it writes into the page, and where it cuts the file, the agent goes on. */
#ifndef TITAN_DAEMON_AGENT_SHELL_PAGE_WATCH_H
#define TITAN_DAEMON_AGENT_SHELL_PAGE_WATCH_H

#include <stdbool.h>

#include "base/error.h"
#include "proto/worker_page.h"

/* Create path (0600, replaced if there) with a fresh token and the mutex set up; mapped into *ret. */
titan_status page_create(const char *path, uint64_t job_id, uint64_t worker_id, uint32_t slot, struct worker_page **ret,
                         struct titan_error *err) TITAN_MUST_USE;
/* Map what an earlier agent made. TITAN_ECORRUPT when it is not a page. */
titan_status page_open(const char *path, struct worker_page **ret, struct titan_error *err) TITAN_MUST_USE;
void page_close(struct worker_page *page);

enum page_owner { PAGE_UNLOCKED, PAGE_ALIVE, PAGE_DEAD };
/* What holds the mutex: no process yet, a live one, or one that died. Does not wait. */
enum page_owner page_owner(struct worker_page *page);

struct page_watch;
/* Start to wait for the death of the holder of path's mutex, which must be locked. */
titan_status page_watch_start(const char *path, struct page_watch **ret, struct titan_error *err) TITAN_MUST_USE;
/* Becomes readable once, at death. Owned by the watch. */
int page_watch_fd(const struct page_watch *watch);
/* Never waits. NULL is fine. */
void page_watch_stop(struct page_watch *watch);

#endif
