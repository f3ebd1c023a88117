/* SPDX-License-Identifier: Apache-2.0 */
/* jsonl.h - the text of a document on a line of JSON. Pure. */
#ifndef TITAN_WORKER_DATA_JSONL_H
#define TITAN_WORKER_DATA_JSONL_H

#include <stdbool.h>
#include <stddef.h>

#define JSONL_DEPTH_MAX 512

/* The string that the object on a line has in its member `field` (the last of that name), decoded in place: *ret points
 * into the line, which is spent. The whole line must be JSON (RFC 8259), in UTF-8, nested at most JSONL_DEPTH_MAX deep;
 * it may be of any length, and takes neither memory nor recursion. Half of a surrogate pair becomes U+FFFD. False:
 * *ret_why says what is wrong. */
bool jsonl_text(char *line, size_t n, const char *field, char **ret, size_t *ret_n, const char **ret_why);

#endif
