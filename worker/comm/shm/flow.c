/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/shm/flow.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/progress.h"

/* Advances a flow as far as its channel allows. Returns true if anything moved. */
static bool advance(struct segment *seg, struct flow *f)
{
    titan_assert(f->peer >= 0 && f->peer < seg->world);
    bool moved = false;
    unsigned char *slot;
    while (f->left > 0 && (slot = segment_channel_slot(seg, f->end, f->peer))) {
        size_t len = MIN(f->left, seg->layout.channel_slot_bytes);
        if (f->end == CHANNEL_SEND)
            memcpy(slot, f->at, len);
        else
            memcpy(f->at, slot, len);
        segment_channel_advance(seg, f->end, f->peer);
        f->at += len;
        f->left -= len;
        moved = true;
    }
    return moved;
}

titan_status flows_run(struct segment *seg, struct flow *flows, int n, struct titan_error *err)
{
    int64_t since = 0; /* start of this wait, or time of the last look at processes */
    TRY(segment_check(seg, err));
    for (int idle = 0;; idle++) {
        uint32_t bell = segment_bell(seg);
        bool moved = false, left = false;
        for (int i = 0; i < n; i++) {
            titan_assert(flows[i].after < i);
            if (flows[i].after < 0 || flows[flows[i].after].left == 0)
                moved |= advance(seg, &flows[i]);
            left |= flows[i].left > 0;
        }
        if (!left)
            return TITAN_OK;
        if (moved) {
            progress_action();
            idle = 0;
            since = 0;
            continue;
        }
        if (idle < seg->root->spins) {
            segment_relax();
            continue;
        }
        TRY(segment_check(seg, err));
        int64_t now = clock_mono_ns();
        bool look = since > 0 && now - since >= SEGMENT_SLEEP_NS;
        for (int i = 0; i < n; i++) /* the peer is gone, and nothing more can be read from it */
            if (flows[i].left > 0 && segment_member_gone(seg, flows[i].peer, look) &&
                !segment_channel_slot(seg, flows[i].end, flows[i].peer))
                return segment_give_up(seg, flows[i].peer, err);
        if (since == 0 || look)
            since = now;
        segment_bell_wait(seg, bell);
    }
}
