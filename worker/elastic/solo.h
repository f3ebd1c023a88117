/* SPDX-License-Identifier: Apache-2.0 */
/* solo.h - membership without an agent: `titan-worker run`, fixed members, one epoch. */
#ifndef TITAN_WORKER_ELASTIC_SOLO_H
#define TITAN_WORKER_ELASTIC_SOLO_H

#include <signal.h>

#include "worker/elastic/membership.h"

/* Signals are its commands from the first step on: SIGTERM and SIGINT end it with a checkpoint, SIGUSR1 writes a
 * checkpoint. With world > 1 the parent forwards them as SOLO_STOP and SOLO_SAVE; the value of SOLO_STOP is the number
 * of the signal. Before its first step the process ignores SOLO_SAVE (the caller arranges that) and dies of
 * SOLO_STOP. */
#define SOLO_STOP SIGRTMIN
#define SOLO_SAVE (SIGRTMIN + 1)
titan_status membership_solo_open(int rank, int world, int memfd, const char *job_dir, struct membership **ret,
                                  struct titan_error *err) TITAN_MUST_USE;
/* The signal that ended it before its last step; 0 = none. */
int membership_solo_stopped(const struct membership *m);

#endif
