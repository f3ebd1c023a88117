/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/records/phase.h"

#define TO(phase) SM_BIT(PHASE_##phase)
#define ACTIVE (TO(ASSEMBLING) | TO(TRAINING) | TO(PAUSING))
#define STOPS (TO(REQUEUEING) | TO(FINISHING) | TO(CANCELLING) | TO(ENDED))
static const struct sm_state phases[] = {
    [PHASE_NONE] = {"none", SM_INITIAL, TO(QUEUED) | ACTIVE | TO(REQUEUEING) | TO(FINISHING) | TO(CANCELLING)},
    [PHASE_QUEUED] = {"queued", 0, TO(ASSEMBLING) | TO(ENDED)},
    [PHASE_ASSEMBLING] = {"assembling", 0, TO(TRAINING) | STOPS},
    [PHASE_TRAINING] = {"training", 0, TO(ASSEMBLING) | TO(PAUSING) | STOPS},
    [PHASE_PAUSING] = {"pausing", 0, TO(ASSEMBLING) | TO(TRAINING) | STOPS},
    [PHASE_REQUEUEING] = {"requeueing", 0, TO(QUEUED) | ACTIVE | TO(CANCELLING) | TO(ENDED)},
    [PHASE_FINISHING] = {"finishing", 0, TO(CANCELLING) | TO(ENDED)},
    [PHASE_CANCELLING] = {"cancelling", 0, TO(ENDED)},
    [PHASE_ENDED] = {"ended", SM_FINAL, 0},
};
#undef TO
const struct sm phase_sm = {"phase", phases, sizeof(phases) / sizeof(phases[0])};

enum job_phase phase_by_epoch(const struct jobrec *j)
{
    if (!epoch_live(j))
        return PHASE_ASSEMBLING;
    return epoch_leaving(j) ? PHASE_PAUSING : PHASE_TRAINING;
}

bool phase_ends(const struct jobrec *j)
{
    return j->phase == PHASE_FINISHING || j->phase == PHASE_CANCELLING || j->phase == PHASE_ENDED;
}

bool phase_stops(const struct jobrec *j)
{
    return phase_ends(j) || j->phase == PHASE_REQUEUEING;
}
