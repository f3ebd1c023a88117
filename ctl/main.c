/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - titanctl; docs/man/titanctl.1. */
#include <signal.h>

#include "base/standard_streams.h"
#include "ctl/command.h"

int main(int argc, char **argv)
{
    standard_streams_open();
    (void)signal(SIGPIPE, SIG_IGN);
    return ctl_main(argc, argv);
}
