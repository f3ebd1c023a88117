/* SPDX-License-Identifier: Apache-2.0 */
/* touched.c - how much of a segment is touched by the traffic through it: the part of slots and rings that shm.c fills
 * and reads. */
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

    /* A member fills its own slot, except its own part of exchanged data. From every other slot it reads all gathered
     * data and its own part of exchanged data. Of a long sum it reads two shares. Their places differ with the sum's
     * length, so in the end it reads all of the slot. */
    const size_t own = MAX(MAX(gathered, part * (w - 1)), summed);
    const size_t other = MAX(MAX(gathered, part), summed);
    const size_t rings = (size_t)use->ways * SEGMENT_CHANNEL_SLOTS * MIN(use->message, l.channel_slot_bytes);
    return l.slots + SEGMENT_BUFFERS * (own + (w - 1) * other) + rings;
}
