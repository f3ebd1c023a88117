/* SPDX-License-Identifier: Apache-2.0 */
/* solo.h - membership without an agent: `titan-worker run`, fixed members, one epoch. */
#ifndef TITAN_WORKER_ELASTIC_SOLO_H
#define TITAN_WORKER_ELASTIC_SOLO_H

#include <signal.h>

#include "worker/elastic/membership.h"

/* From the first step on, signals are commands: SIGTERM and SIGINT end the run with a checkpoint, SIGUSR1 writes a
 * checkpoint. With world > 1 the parent forwards them as SOLO_STOP, with the signal's number as its value, and
 * SOLO_SAVE. Before its first step, the process dies of SOLO_STOP and ignores SOLO_SAVE (the caller arranges this). */
#define SOLO_STOP SIGRTMIN
#define SOLO_SAVE (SIGRTMIN + 1)
titan_status membership_solo_open(int rank, int world, int memfd, const char *job_dir, struct membership **ret,
                                  struct titan_error *err) TITAN_MUST_USE;
/* The signal that ended the run before its last step; 0 = none. */
int membership_solo_stopped(const struct membership *m);

#endif
