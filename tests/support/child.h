/* SPDX-License-Identifier: Apache-2.0 */
/* child.h - a process that a test begins, and that never becomes a second run of the tests. */
#ifndef TITAN_TESTS_SUPPORT_CHILD_H
#define TITAN_TESTS_SUPPORT_CHILD_H

#include <sys/types.h>

/* fork(2), where a fault or a failed assertion of the child ends the child. cmocka would go on with the next test in
 * it, and a test that forks again then fills the machine. */
pid_t child_fork(void);

#endif
