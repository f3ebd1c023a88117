/* SPDX-License-Identifier: Apache-2.0 */
/* jsonl.h - the text of a document in a record of JSON. Pure. */
#ifndef TITAN_WORKER_DATA_JSONL_H
#define TITAN_WORKER_DATA_JSONL_H

#include <stdbool.h>
#include <stddef.h>

#define JSONL_DEPTH_MAX 512

/* The string that the object has in the member `field` (the last of that name), decoded in place: *ret points into the
 * record, which is spent. "a.b" is the member of that name, or the member b of the object that is its member a. All of
 * the record must be JSON (RFC 8259, and NaN and Infinity as Python writes them), in UTF-8, nested at most
 * JSONL_DEPTH_MAX deep; it may be of any length, and takes neither memory nor recursion. Half of a surrogate pair
 * becomes U+FFFD. False: *ret_why says what is wrong. */
bool jsonl_text(char *record, size_t n, const char *field, char **ret, size_t *ret_n, const char **ret_why);
/* Bytes between two records of an array or of JSON over several lines: space, commas, and the array's end. */
size_t jsonl_gap(const char *text, size_t n);
/* Bytes of the value that the text begins with, by quotes and brackets alone; 0: it does not end among these. */
size_t jsonl_value(const char *text, size_t n);

#endif
