/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/elastic/peer_values.h"

#include <math.h>
#include <string.h>

titan_status peer_values_check(const char *about, int rank, const struct peer_value *reported, size_t n,
                               struct titan_error *err)
{
    titan_assert(rank >= 0);
    for (size_t i = 0; i < n; i++) {
        const struct peer_value *s = &reported[i];
        if (s->value >= s->least && s->value <= s->most && s->value == floor(s->value))
            continue;
        return titan_fail(err, TITAN_ECONFLICT, "%s: rank %d says %s %.17g: no whole number from %.0f to %.0f", about,
                          rank, s->name, s->value, s->least, s->most);
    }
    return TITAN_OK;
}

titan_status peer_values_check_words(const char *about, int rank, const char *name, const char *words, size_t size,
                                     bool needed, struct titan_error *err)
{
    titan_assert(rank >= 0);
    if (!memchr(words, '\0', size))
        return titan_fail(err, TITAN_ECONFLICT, "%s: rank %d says %s of %zu bytes without an end", about, rank, name,
                          size);
    return words[0] || !needed ? TITAN_OK
                               : titan_fail(err, TITAN_ECONFLICT, "%s: rank %d says no %s", about, rank, name);
}
