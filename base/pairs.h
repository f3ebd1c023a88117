/* SPDX-License-Identifier: Apache-2.0 */
/* pairs.h - the key=value pairs of a log line (logfmt). No value can begin another pair, whatever text a user or peer
 * supplies:
 *   reason="%s"   quotes and backslashes of the text get a backslash
 *   node=%s       the same; quotes are added if the text is empty or has more than plain characters
 * Any other %s takes text of pairs that pairs_format() made before. */
#ifndef TITAN_BASE_PAIRS_H
#define TITAN_BASE_PAIRS_H

#include <stdarg.h>
#include <stddef.h>

#define PAIRS_MAX 4096 /* bytes of a line's pairs, with the NUL */

/* Formats into out. Text beyond room is cut: "..." ends it, and an open quote is closed. fmt is a printf literal with
 * numbers, %s, %.Ns, %.*s and %c; formatting ends at any other conversion. */
void pairs_format(char *out, size_t room, const char *fmt, va_list args) __attribute__((format(printf, 3, 0)));
/* value: a quoted value behind its opening quote. Returns its length up to the closing quote. out receives the unquoted
 * text (room for that length and a NUL). */
size_t pairs_unquote(const char *value, char *out);

#endif
