/* SPDX-License-Identifier: Apache-2.0 */
#include "base/process_seal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/error.h"

void process_seal(void)
{
    const char *open = getenv(PROCESS_SEAL_OPEN);
    titan_assert(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (!open || strcmp(open, "1") != 0)
        titan_assert(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0);
}
