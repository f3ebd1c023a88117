/* SPDX-License-Identifier: Apache-2.0 */
/* pairs.h - the key=value pairs of a log line (logfmt). No value can begin a pair of its own, whatever text a user or a
 * peer put into it:
 *   reason="%s"   quotes and backslashes of the text get a backslash
 *   node=%s       the same between quotes that are added, where the text is empty or has more than plain characters
 * A %s that stands elsewhere is pairs that were made here before. */
#ifndef TITAN_BASE_PAIRS_H
#define TITAN_BASE_PAIRS_H

#include <stdarg.h>
#include <stddef.h>

#define PAIRS_MAX 4096 /* bytes of a line's, with the NUL */

/* Formats into out; what has no room is cut, with "..." at its end and a quote that was open closed. The format is a
 * literal of printf's; numbers, %s, %.Ns, %.*s and %c are known, at another conversion it ends. */
void pairs_format(char *out, size_t room, const char *fmt, va_list args) __attribute__((format(printf, 3, 0)));
/* Length of a quoted value behind its quote, and the text it stands for into out (room for that length and a NUL). */
size_t pairs_unquote(const char *value, char *out);

#endif
