/* SPDX-License-Identifier: Apache-2.0 */
/* page_watch.h - the agent's side of a worker's page (proto/worker_page.h). The agent makes it before the worker starts
 * and watches it; the next agent finds it again.
 *
 * A small thread per worker waits for the futex of the robust mutex that the worker holds. When the worker dies, the
 * kernel marks the futex before it frees the address space, and the thread makes an eventfd readable. Nothing can
 * interrupt that wait; the thread checks once a second whether to end.
 *
 * The worker may belong to another user. The agent survives any content of the page, and a truncated file. */
#ifndef TITAN_DAEMON_AGENT_SHELL_PAGE_WATCH_H
#define TITAN_DAEMON_AGENT_SHELL_PAGE_WATCH_H

#include <stdbool.h>

#include "base/error.h"
#include "proto/worker_page.h"

/* Creates or replaces path (0600) with a fresh token and an initialized mutex, and maps it into *ret. */
titan_status page_create(const char *path, uint64_t job_id, uint64_t worker_id, uint32_t slot, struct worker_page **ret,
                         struct titan_error *err) TITAN_MUST_USE;
/* Maps an earlier agent's page. TITAN_ECORRUPT: the file is no page. */
titan_status page_open(const char *path, struct worker_page **ret, struct titan_error *err) TITAN_MUST_USE;
void page_close(struct worker_page *page);

enum page_owner { PAGE_UNLOCKED, PAGE_ALIVE, PAGE_DEAD };
/* Which process holds the mutex: no process yet, a live process, or a dead process? Does not wait. */
enum page_owner page_owner(struct worker_page *page);

struct page_watch;
/* Starts to wait for the death of the holder of path's mutex, which must be locked. */
titan_status page_watch_start(const char *path, struct page_watch **ret, struct titan_error *err) TITAN_MUST_USE;
/* Returns a descriptor that becomes readable at the worker's death. The watch owns it. */
int page_watch_fd(const struct page_watch *watch);
/* Never waits. NULL is fine. */
void page_watch_stop(struct page_watch *watch);

#endif
