/* transfer.h - live resharding: the training state of the previous epoch, cut for its mesh, becomes this epoch's
 * without touching a disk.
 *
 * Each rank of the previous epoch left its part in the memory of some rank here (its holder), or is gone. What several
 * of them held alike - replicas, tensors that tensor parallelism leaves whole - comes from this rank's own memory where
 * it is there, otherwise from one of its holders, turned by rank so that they share the work. Old and new pieces are
 * intersected (piece_overlap); what a rank keeps is copied, the rest travels point to point in messages of bounded
 * size, in one order that all ranks know. The result is bit for bit what loading a checkpoint of the old state would
 * give. */
#ifndef TITAN_WORKER_ELASTIC_TRANSFER_H
#define TITAN_WORKER_ELASTIC_TRANSFER_H

#include "worker/comm/comm.h"
#include "worker/elastic/membership.h"
#include "worker/state.h"

/* recipe: says how the previous epoch's ranks were arranged. old: this rank's part of it; NULL where it had none. to:
 * an empty state of this epoch; filled, with step, tokens and skipped. Collective over comm (NULL when world is 1).
 * TITAN_ECONFLICT, on every rank alike, when what is in memory is no whole state (another epoch's, missing, of
 * different steps). */
titan_status state_transfer(const struct epoch_view *view, const struct recipe *recipe, const struct train_state *old,
                            struct train_state *to, const struct comm_ops *ops, struct comm *comm, struct stream *s,
                            struct titan_error *err) TITAN_MUST_USE;
/* The same with the previous epoch's layout given. */
titan_status state_transfer_from(const struct epoch_view *view, const struct layout *from,
                                 const struct train_state *old, struct train_state *to, const struct comm_ops *ops,
                                 struct comm *comm, struct stream *s, struct titan_error *err) TITAN_MUST_USE;

#endif
