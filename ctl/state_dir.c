/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/state_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

titan_status state_dir_path(const struct args *args, const char *below, char out[PATH_MAX], struct titan_error *err)
{
    static const char unit[] = "/var/lib/titan-coordinator";
    const char *given = args_text(args, "state-dir", NULL), *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (given)
        n = snprintf(out, PATH_MAX, "%s%s", given, below);
    else if (geteuid() == 0)
        n = snprintf(out, PATH_MAX, "%s%s", access(unit, F_OK) == 0 ? unit : "/var/lib/titan", below);
    else if (xdg && *xdg == '/')
        n = snprintf(out, PATH_MAX, "%s/titan%s", xdg, below);
    else if (home && *home == '/')
        n = snprintf(out, PATH_MAX, "%s/.local/state/titan%s", home, below);
    if (n < 0 || n >= PATH_MAX - 32)
        return titan_fail(err, TITAN_EINVAL, "--state-dir DIR is missing or too long");
    return TITAN_OK;
}
