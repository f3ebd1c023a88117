/* SPDX-License-Identifier: Apache-2.0 */
/* spawn_filter.h - system calls that are refused to a worker for good (seccomp), with EPERM: calls to look into other
 * processes (ptrace, process_vm_*, pidfd_getfd), make name spaces, mount, load code into the kernel, or change the
 * machine. Computing, CUDA and NCCL use none of these calls: NCCL's ranks of a node share memory, without
 * process_vm_readv. */
#ifndef TITAN_DAEMON_SPAWN_SPAWN_FILTER_H
#define TITAN_DAEMON_SPAWN_SPAWN_FILTER_H

#include "base/error.h"

/* Applies to this process and everything it starts. Requires no_new_privs. */
titan_status spawn_filter_set(struct titan_error *err) TITAN_MUST_USE;

#endif
