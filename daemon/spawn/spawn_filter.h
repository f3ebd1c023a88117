/* SPDX-License-Identifier: Apache-2.0 */
/* spawn_filter.h - the system calls that a worker is refused for good (seccomp), with EPERM: those by which it would
 * look into other processes (ptrace, process_vm_*, pidfd_getfd), make name spaces, mount, load code into the kernel, or
 * change the machine. Nothing that computing, CUDA or NCCL use: NCCL's ranks of a node share memory, and by no
 * process_vm_readv. */
#ifndef TITAN_DAEMON_SPAWN_SPAWN_FILTER_H
#define TITAN_DAEMON_SPAWN_SPAWN_FILTER_H

#include "base/error.h"

/* Of this process and all that it starts. It must have no_new_privs. */
titan_status spawn_filter_set(struct titan_error *err) TITAN_MUST_USE;

#endif
