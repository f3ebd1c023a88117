/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/elastic/peer_values.h"

#include <math.h>
#include <string.h>

titan_status peer_values_gather(const struct peer_ranks *ranks, const void *mine, size_t bytes, void *ret_all,
                                struct titan_error *err)
{
    const struct device_handle *d = ranks->device;
    const size_t all = bytes * (size_t)ranks->n;
    char *memory = NULL;

    titan_assert(ranks->n >= 1 && bytes > 0 && (ranks->n == 1 || ranks->comm));
    if (ranks->n == 1) {
        memcpy(ret_all, mine, bytes);
        return TITAN_OK;
    }
    TRY(d->ops->alloc(d->dev, all + bytes, (void **)&memory, err));
    titan_status status = d->ops->copy(ranks->s, memory + all, mine, bytes);
    if (status == TITAN_OK)
        status = ranks->ops->all_gather(ranks->comm, memory, memory + all, bytes, DTYPE_U8, ranks->s);
    /* Waits for the peers here. Otherwise the copy below would wait for them inside its call, because the memory is not
     * pinned. */
    if (status == TITAN_OK)
        status = d->ops->stream_sync(ranks->s, err);
    if (status == TITAN_OK)
        status = d->ops->copy(ranks->s, ret_all, memory, all);
    const titan_status sync = d->ops->stream_sync(ranks->s, err);
    d->ops->release(d->dev, memory);
    return status != TITAN_OK ? status : sync;
}

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

titan_status peer_values_check_words(const char *about, int rank, const struct peer_words *reported,
                                     struct titan_error *err)
{
    titan_assert(rank >= 0);
    if (!memchr(reported->words, '\0', reported->size))
        return titan_fail(err, TITAN_ECONFLICT, "%s: rank %d says %s of %zu bytes without an end", about, rank,
                          reported->name, reported->size);
    return reported->words[0] || !reported->needed
               ? TITAN_OK
               : titan_fail(err, TITAN_ECONFLICT, "%s: rank %d says no %s", about, rank, reported->name);
}
