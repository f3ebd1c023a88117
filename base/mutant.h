/* SPDX-License-Identifier: Apache-2.0 */
/* mutant.h - deliberate protocol bugs, to verify that tests find them.
 *
 * MUTANT(NAME) is 0 unless the build has -DTITAN_MUTANTS (`make sim-mutants` makes such a build); then it is true while
 * titan_mutant selects NAME. Each mutant stands at the place of its bug. */
#ifndef TITAN_BASE_MUTANT_H
#define TITAN_BASE_MUTANT_H

#define MUTANTS(X)                                                                                                     \
    X(AGENT_TERM, "agent obeys a coordinator of an older term")                                                        \
    X(AGENT_TERM_UNRECORDED, "agent forgets over its death which term it has seen")                                    \
    X(AGENT_EPOCH, "agent accepts an epoch older than the newest")                                                     \
    X(AGENT_RECORD_LATE, "agent obeys before its record is on disk")                                                   \
    X(WORKER_TERM, "worker obeys a command of an older term")                                                          \
    X(WORKER_EPOCH, "worker forms an epoch it has left behind")                                                        \
    X(COORD_UNFENCED, "coordinator of an older term than an agent has seen goes on")                                   \
    X(MOVED_WITH_WORKERS, "a node that comes back elsewhere is taken while its workers may train where it was")        \
    X(REPLACED_KNOWS_ALL, "a machine that gets a node's name counts as knowing which epochs the one before it formed") \
    X(GONE_BEFORE_LAST_WORD, "a node that has said goodbye counts as empty before its workers have ended")             \
    X(AUTHORITY_REMEMBERED, "a session that was opened before its certificate was revoked registers behind that")      \
    X(NAME_THEFT, "a registration in the name of another node, which is there, is accepted")                           \
    X(COORD_ALONE, "coordinator forms an epoch with a minority at once")                                               \
    X(LEADER_EPOCH_UNHEARD, "coordinator does not take up what an acting leader has formed")                           \
    X(LEADER_MINORITY, "an acting leader forms an epoch without a majority")                                           \
    X(LEADER_FROM_OLDER_STATE, "an acting leader's epoch begins from an older state than its members' memory")         \
    X(PROOF_IGNORED, "a datagram counts that is proved under no key")                                                  \
    X(PROMISE_UNRECORDED, "an agent's promise does not survive its death")                                             \
    X(LEASE_IGNORED, "workers go on when the lease is over")                                                           \
    X(SAID_BEFORE_COMMIT, "coordinator's messages leave before their batch is durable")                                \
    X(SUBMIT_ACKED_EARLY, "a submit is acknowledged before it is durable")                                             \
    X(CANCEL_UNSTORED, "a cancel is acknowledged and not stored")                                                      \
    X(EPOCH_REUSED, "an epoch's number is used again after a crash")                                                   \
    X(EPOCH_REDRAWN, "an epoch is sent again with another communicator id after a crash")                              \
    X(EPOCH_SIZE, "an epoch of a size the mesh forbids is formed")                                                     \
    X(OLD_CHECKPOINT, "a checkpoint of an older epoch is accepted")                                                    \
    X(EXPIRED_NEWEST, "the newest checkpoint is let go with the old ones")                                             \
    X(CHECKPOINT_EARLY, "a checkpoint is told of before every shard is durable")                                       \
    X(LOSS_UNCOUNTED, "the loss of a worker is not counted")                                                           \
    X(LOSS_TWICE, "the loss of a worker is counted twice")                                                             \
    X(CANCEL_LEAVES, "a worker is not stopped when its job is cancelled")                                              \
    X(DEAD_ADOPTED, "a worker that its agent does not list counts as alive")                                           \
    X(FINAL_LEFT, "a job that has ended is cancelled")                                                                 \
    X(DEPARTING_DROPPED, "a resize drops a departing rank before its shard has moved")                                 \
    X(INSTALLED_FREED, "installed state is freed before the barrier")                                                  \
    X(COMMITS_AT_AGREE, "a step with a direction section counts before all ranks have come to its end")                \
    X(ROLLED_TOO_FAR, "members roll forward to a step that no rank has committed")                                     \
    X(GOES_BACK, "a survivor goes back to the step of the last one")                                                   \
    X(PUBLISHED_ALONE, "a worker publishes a step when it has the sum, though others lack it")                         \
    X(RANGES_UNCHECKED, "coordinator takes a field for what it can never be")                                          \
    X(TERM_UNPROVED, "a term that nothing proves fences the coordinator")                                              \
    X(IDENTITY_THEFT, "another identity takes over the name of a node that is there")                                  \
    X(EPOCH_UNBOUNDED, "the number of an epoch is believed whatever it is")                                            \
    X(PART_UNCHECKED, "an agent is believed about the epochs of a job it has no part in")                              \
    X(PATH_UNCHECKED, "a checkpoint outside of the job's folder is taken for its own")                                 \
    X(STEP_UNBOUNDED, "a step that cannot have been made is believed")                                                 \
    X(FINISHED_EARLY, "a worker that has not made all steps counts as finished")                                       \
    X(FAULTY_CHARGED, "a worker that breaks the protocol counts as a crash of its node")                               \
    X(FOREIGN_REPORT_BELIEVED, "what a node says of another one's worker counts")                                      \
    X(LEADER_EPOCH_UNSOUND, "an acting leader's epoch is taken with unknown members")                                  \
    X(AGENT_RANGES_UNCHECKED, "agent takes a field for what it can never be")                                          \
    X(COMMIT_UNPROMISED, "an agent takes an epoch of an acting leader that it has not promised")                       \
    X(COMMIT_UNSOUND, "an acting leader's epoch is taken without a source of its state")                               \
    X(PROPOSAL_UNSOUND, "an agent promises an epoch of others than the members, or of an older state")                 \
    X(PEER_SPEAKS_FOR_OTHERS, "an acting leader believes an agent about another one's worker")                         \
    X(PROBE_UNASKED, "what a node says of another counts though it was not asked")                                     \
    X(QUARANTINE_ALONE, "one job that crashes wherever it is puts nodes in quarantine")                                \
    X(STEP_FORGOTTEN, "the stored step falls though the state was in memory")                                          \
    X(RESTORED_EPOCHS, "epochs behind a restore have the numbers of those before it")                                  \
    X(CANCEL_OF_NONE, "the cancel of a job that there is not is answered as done")                                     \
    X(DRAIN_OF_NONE, "the drain of a node that there is not is answered as done")                                      \
    X(UNDRAIN_OF_NONE, "the undrain of a node that there is not is answered as done")                                  \
    X(CHECKPOINT_OF_NONE, "the checkpoint of a job that there is not is answered as asked for")                        \
    X(RESIZE_UNBOUNDED, "a job is resized to a number that it cannot have")                                            \
    X(RANGE_UPSIDE_DOWN, "a job is resized to a range that ends before it begins")                                     \
    X(WINDOW_UNBOUNDED, "a maintenance window is planned that cannot be")                                              \
    X(BACKFILL_KEPT, "a job that has passed another one keeps its slots")                                              \
    X(BACKFILL_DELAYS,                                                                                                 \
      "a job passes another that could start with the free slots, those that come back and those on loan")

enum mutant {
    MUTANT_NONE,
#define MUTANT_NUMBER(name, what) MUTANT_##name,
    MUTANTS(MUTANT_NUMBER)
#undef MUTANT_NUMBER
        MUTANT_COUNT
};

#ifdef TITAN_MUTANTS
extern enum mutant titan_mutant;
#define MUTANT(name) (titan_mutant == MUTANT_##name)
#else
#define MUTANT(name) 0
#endif

#endif
