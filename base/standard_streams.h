/* SPDX-License-Identifier: Apache-2.0 */
/* standard_streams.h - standard input, output and error as the program received them. */
#ifndef TITAN_BASE_STANDARD_STREAMS_H
#define TITAN_BASE_STANDARD_STREAMS_H

#include <stdbool.h>

/* Opens closed standard streams as files that fail every access. Otherwise a later socket or file could get their
 * number, and receive the program's output. Call before anything else. */
void standard_streams_open(void);
/* Is all of standard output written? Reports a failure on standard error in one line, unless the reader has closed. */
bool standard_streams_flush(const char *program);

#endif
