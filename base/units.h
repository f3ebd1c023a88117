/* SPDX-License-Identifier: Apache-2.0 */
/* units.h - numbers for people. Each function writes into text[32] and returns it. */
#ifndef TITAN_BASE_UNITS_H
#define TITAN_BASE_UNITS_H

#include <stdbool.h>
#include <stdint.h>

#define UNITS_TEXT 32

/* 1288490189 -> "1.2 GiB". */
char *format_bytes(uint64_t bytes, char text[UNITS_TEXT]);
/* 17179869184 -> "16GiB", 1537 -> "1537B": exact, and readable by units_parse_bytes(). */
char *format_exact_bytes(uint64_t bytes, char text[UNITS_TEXT]);
/* "16GiB", "1.5 GiB", "512MiB": a number and one of B, KiB, ... EiB. False: the text has another form, or is 2^63 or
 * more. */
bool units_parse_bytes(const char *text, uint64_t *ret);
/* 200.4 -> "3m 20s"; 0.0123 -> "12 ms"; 93784 -> "1d 2h". Negative or not finite -> "-". */
char *format_duration(double seconds, char text[UNITS_TEXT]);
/* 12345 -> "12.3k", 8030261248 -> "8.03B"; three significant digits. */
char *format_count(double count, char text[UNITS_TEXT]);

/* The shortest decimal that reads back as exactly this finite double, always with a point or an exponent ("3.0",
 * "1e-08"), so that JSON and TOML readers see a real. */
char *format_real(double value, char text[UNITS_TEXT]);

#endif
