/* SPDX-License-Identifier: Apache-2.0 */
/* jsonl.h - the text of a document in a JSON record. Pure. */
#ifndef TITAN_WORKER_DATA_JSONL_H
#define TITAN_WORKER_DATA_JSONL_H

#include <stdbool.h>
#include <stddef.h>

#define JSONL_DEPTH_MAX 512

/* Decodes the string in the object's member `field` (the last member of this name) in place: *ret points into the
 * record, which is overwritten. "a.b" is the member named "a.b", or the member b of the object in member a. The whole
 * record must be JSON (RFC 8259, with Python's NaN and Infinity), in UTF-8, nested at most JSONL_DEPTH_MAX deep. It may
 * have any length. The function needs neither memory nor recursion. An unpaired surrogate becomes U+FFFD. False:
 * *ret_why is the fault. */
bool jsonl_text(char *record, size_t n, const char *field, char **ret, size_t *ret_n, const char **ret_why);
/* Number of bytes between two records of an array or of JSON over several lines: space, commas, and the array's end. */
size_t jsonl_gap(const char *text, size_t n);
/* Size of the value at the text's start, found by quotes and brackets alone; 0 = the value does not end in the text. */
size_t jsonl_value(const char *text, size_t n);

#endif
