/* SPDX-License-Identifier: Apache-2.0 */
/* cgroup.h - a folder of a hierarchy of cgroups of version 2 (Linux's admin-guide/cgroup-v2): what is written to make,
 * to limit and to end a worker's, and read of it. Any thread. */
#ifndef TITAN_DAEMON_COMMON_CGROUP_H
#define TITAN_DAEMON_COMMON_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define CGROUP_WORKER "titan-worker-" /* and its number: a worker's */
#define CGROUP_MAIN "main"            /* beside them, the leaf of processes that are no workers */

struct cgroup_limits {
    uint64_t memory; /* bytes; 0 = no limit */
    uint32_t cpus;   /* processors in thousandths; 0 = no limit */
};
/* What the cgroups in a folder can be limited in. */
struct cgroup_holds {
    bool memory, cpus;
};

/* False: errno has the reason. */
bool cgroup_write(const char *folder, const char *name, const char *text);
/* The number behind key at the start of a line, or alone in the file with the key ""; 0 where there is none, and for
 * "max". */
uint64_t cgroup_number(const char *folder, const char *name, const char *key);
/* Does the file have this word? */
bool cgroup_has(const char *folder, const char *name, const char *word);
/* Hands memory and processors on to the cgroups in the folder. The kernel does so while no process is in the folder
 * itself; done before, it stays. */
struct cgroup_holds cgroup_hand_on(const char *folder);
/* Of a cgroup that is there, before a process is in it. */
titan_status cgroup_limit(const char *folder, const struct cgroup_limits *limits,
                          struct titan_error *err) TITAN_MUST_USE;

#endif
