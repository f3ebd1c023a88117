/* SPDX-License-Identifier: Apache-2.0 */
/* worker_start.h - the part of a worker's start that opens its job's folder, which may be on a file server: folder,
 * recipe, log, record of the folder's place, process. It is a task of the file pool (daemon/common/file_pool.h). It
 * holds all its data, because its worker and agent may be gone when it ends. */
#ifndef TITAN_DAEMON_AGENT_SHELL_WORKER_START_H
#define TITAN_DAEMON_AGENT_SHELL_WORKER_START_H

#include "base/listen.h"
#include "daemon/agent/shell/worker_limits.h"
#include "daemon/agent/shell/worker_process.h"
#include "daemon/common/file_pool.h"

struct worker;

struct worker_start {
    struct file_task task; /* must be the first member */
    struct worker *worker; /* for the loop only */
    uint64_t job_id, worker_id;
    char directory[PATH_MAX], log[PATH_MAX], page[PATH_MAX], program[PATH_MAX], socket[PATH_MAX], run[PATH_MAX];
    char run_dir[PATH_MAX];
    char ports[LISTEN_PORTS_TEXT];        /* "" = any */
    char host[256], node[256], cuda[128]; /* cuda: CUDA_VISIBLE_DEVICES, "" = the agent's */
    char spawnd[SPAWN_SOCKET_MAX];        /* titan-spawnd's socket; "" = the worker runs as the agent's user */
    /* user: the job's user. default_user: for jobs whose user this node does not have; "" = none */
    char user[256], default_user[256];
    struct worker_limits limits; /* of this node */
    bool has_uid;
    uid_t uid; /* the user's number on the coordinator's machine */
    char *recipe;
    struct worker_process process; /* the started process, which waits until its page names it; pid 0 = none */
    struct titan_error err;        /* why there is no process */
};

/* Returns NULL if there is no memory. Leaves the fields process, err and worker unset. */
struct worker_start *worker_start_new(const char *recipe);
/* As in file_calls: worker_start_free also ends a process that was not taken out. */
void worker_start_run(struct file_task *k);
void worker_start_free(struct file_task *k);

#endif
