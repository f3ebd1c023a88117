/* SPDX-License-Identifier: Apache-2.0 */
/* touched.c - how much of a segment its traffic touches: what shm.c fills and reads of slots and rings. */
#include "worker/comm/shm/segment.h"

#include "base/cleanup.h"

size_t comm_shm_touched(int members, const struct comm_use *use)
{
    titan_assert(members >= 1 && use->ways >= 0);
    if (members == 1 || members > COMM_WORLD_MAX)
        return 0;
    const struct segment_layout l = segment_layout(members);
    const size_t w = (size_t)members, slot = l.slot_bytes;
    const size_t gathered = MIN(use->gathered, slot), part = MIN(use->exchanged, slot / w);
    const size_t summed = MIN(use->summed, slot);

    /* A member fills its own slot, but for its own part of what is exchanged, and reads of each other one all of what
     * is gathered, its own part of what is exchanged, and of long sums two shares, which lie elsewhere in sums of other
     * lengths: all of it in the end. */
    const size_t own = MAX(MAX(gathered, part * (w - 1)), summed);
    const size_t other = MAX(MAX(gathered, part), summed);
    const size_t rings = (size_t)use->ways * SEGMENT_CHANNEL_SLOTS * MIN(use->message, l.channel_slot_bytes);
    return l.slots + SEGMENT_BUFFERS * (own + (w - 1) * other) + rings;
}
