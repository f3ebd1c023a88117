/* SPDX-License-Identifier: Apache-2.0 */
/* solo.h - membership without an agent: `titan-worker run`, fixed members, one epoch. */
#ifndef TITAN_WORKER_ELASTIC_SOLO_H
#define TITAN_WORKER_ELASTIC_SOLO_H

#include <signal.h>

#include "worker/elastic/membership.h"

/* Signals are its commands from its first step on: SIGTERM and SIGINT end it
 * with a checkpoint, SIGUSR1 writes one. With world > 1 the process's parent passes them on, to end with the signal's
 * number as value; until its first step the process ignores SOLO_SAVE (the caller sees to it) and ends by SOLO_STOP. */
#define SOLO_STOP SIGRTMIN
#define SOLO_SAVE (SIGRTMIN + 1)
titan_status membership_solo_open(int rank, int world, int memfd, const char *job_dir, struct membership **ret,
                                  struct titan_error *err) TITAN_MUST_USE;
/* The signal that has ended it before its last step; 0: none has. */
int membership_solo_stopped(const struct membership *m);

#endif
