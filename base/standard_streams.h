/* SPDX-License-Identifier: Apache-2.0 */
/* standard_streams.h - standard input, output and error as a program was given them. */
#ifndef TITAN_BASE_STANDARD_STREAMS_H
#define TITAN_BASE_STANDARD_STREAMS_H

#include <stdbool.h>

/* Of the three, those that are closed become files that fail: no socket or file that is opened later gets their number,
 * and with it what is printed. First of all. */
void standard_streams_open(void);
/* Is all of standard output written? What failed is said on standard error in one line, but for a reader that went
 * away.
 */
bool standard_streams_flush(const char *program);

#endif
