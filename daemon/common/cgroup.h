/* SPDX-License-Identifier: Apache-2.0 */
/* cgroup.h - cgroups of version 2 (Linux's admin-guide/cgroup-v2): makes, limits, ends and reads the cgroup of a
 * worker. Any thread. */
#ifndef TITAN_DAEMON_COMMON_CGROUP_H
#define TITAN_DAEMON_COMMON_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define CGROUP_WORKER "titan-worker-" /* prefix of a worker's cgroup; the worker's number follows */
#define CGROUP_MAIN "main"            /* leaf beside the workers' cgroups, for all other processes */

struct cgroup_limits {
    uint64_t memory; /* bytes; 0 = no limit */
    uint32_t cpus;   /* processors in thousandths; 0 = no limit */
};
/* The limits that a folder's cgroups can have. */
struct cgroup_holds {
    bool memory, cpus;
};

/* False: errno has the reason. */
bool cgroup_write(const char *folder, const char *name, const char *text);
/* Reads the number after key at the start of a line. key "": the file is one number. False: not found, or "max"; then
 * *ret is 0. */
bool cgroup_number(const char *folder, const char *name, const char *key, uint64_t *ret);
/* Does the file contain this word? */
bool cgroup_has(const char *folder, const char *name, const char *word);
/* Lets the cgroups in the folder have limits of memory and processors. The kernel permits this only while the folder
 * itself has no process; once set, it stays. */
struct cgroup_holds cgroup_hand_on(const char *folder);
/* Limits an existing cgroup. Call it before a process enters. */
titan_status cgroup_limit(const char *folder, const struct cgroup_limits *limits,
                          struct titan_error *err) TITAN_MUST_USE;

#endif
