/* transfer.h - live resharding: the training state of the previous epoch, cut for its world, becomes this epoch's
 * without touching a disk.
 *
 * Every rank of the previous epoch left its shard in the memory of some rank here (its holder). Old and new ranges of
 * each unit are intersected (piece_overlap); what a rank keeps is copied, the rest travels point to point, one message
 * for each pair of an old shard and a new rank, in one order that all ranks know. The result is bit for bit what
 * loading a checkpoint of the old state would give. */
#ifndef TITAN_WORKER_ELASTIC_TRANSFER_H
#define TITAN_WORKER_ELASTIC_TRANSFER_H

#include "worker/comm/comm.h"
#include "worker/elastic/membership.h"
#include "worker/state.h"

/* old: this rank's shard of the previous epoch; NULL where it had none. to: an empty state of this epoch; filled, with
 * step, tokens and skipped. Collective over comm (NULL when world is 1). TITAN_ECONFLICT, on every rank alike, when the
 * shards in memory are not what the view says (another epoch's, missing, of different steps). */
titan_status state_transfer(const struct epoch_view *view, const struct train_state *old, struct train_state *to,
                            const struct comm_ops *ops, struct comm *comm, struct stream *s,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
