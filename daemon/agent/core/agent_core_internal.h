/* SPDX-License-Identifier: Apache-2.0 */
/* agent_core_internal.h - the state of the agent's core, and the functions of core/; agent_core.h is its contract.
 *
 *   inputs/                                               core/
 *     agent_core.c            life, time, questions         worker_table.c        workers of this node
 *     coordinator_commands.c  the coordinator's messages    agent_job_table.c     jobs of this node
 *     worker_messages.c       workers' messages             worker_commands.c     commands to workers
 *     worker_watch.c          samples, late ranks           hang_detector.c       does a worker get on?
 *     agent_datagrams.c       other agents' datagrams       straggler.c           slow workers
 *     registration.c          registration, its answer      exit_cause.c          why a worker ended
 *     agent_core_check.c      invariants between inputs     report_queue.c        reports that must arrive
 *                                                           heartbeats.c          heartbeats, last contact
 *   failover/                 epochs without coordinator    held_forms.c          commands that wait
 *                                                           epoch_fence.c         terms, epochs accepted
 *                                                           epoch_record.c        their records
 *                                                           peer_messages.c       datagrams and their proofs
 *                                                           probes.c              pings
 *                                                           node_gpus.c           GPUs of the slots
 *                                                           agent_actions.c       the list of actions
 *
 * inputs/ calls failover/ and core/, failover/ calls core/, and core/ calls neither. */
#ifndef TITAN_DAEMON_AGENT_CORE_AGENT_CORE_INTERNAL_H
#define TITAN_DAEMON_AGENT_CORE_AGENT_CORE_INTERNAL_H

#include "daemon/agent/agent_core.h"
#include "daemon/agent/core/hang_detector.h"
#include "daemon/common/proof.h"

typedef Titan__Internal__AgentMessage agent_message;
typedef Titan__Internal__CoordinatorMessage coordinator_message;
typedef Titan__Internal__AgentToWorker command_to_worker;
typedef Titan__Internal__FormEpoch form_epoch;
typedef Titan__Internal__AgentJobRecord job_record;
typedef Titan__Internal__PeerMessage peer_message;

#define HEARTBEAT_MS 200 /* valid until a coordinator gives its own interval */
#define AWAY_MS 1000
#define HEARTBEATS_KEPT 64
#define ENDED_KEPT 64

/* A message to the coordinator: part goes into the field of its kind. */
#define MESSAGE(name, KIND, field, part)                                                                               \
    agent_message name = TITAN__INTERNAL__AGENT_MESSAGE__INIT;                                                         \
    (name).kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_##KIND;                                                    \
    (name).field = (part)

/* A command to workers: part goes into the field of its kind. */
#define COMMAND(name, KIND, field, part)                                                                               \
    command_to_worker name = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;                                                   \
    (name).kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_##KIND;                                                  \
    (name).field = (part)

/* A report that must arrive, packed. */
struct report {
    struct report *next;
    bool sent; /* sent in this session */
    int64_t sent_at;
    size_t len;
    uint8_t bytes[];
};

enum end_cause { END_BY_ITSELF, END_ASKED, END_HUNG }; /* the reason, if the agent ended the worker */

struct agent_worker {
    struct agent_worker *next;
    uint64_t job_id, id;
    uint32_t rank;
    char address[256];
    enum end_cause end;
    bool killed;
    bool forged; /* it claimed to be another worker */
    char *fault; /* the illegal message or page it is killed for; NULL = none */
    struct agent_sample sample;
    struct watch watch;
    uint64_t commanded_epoch; /* newest epoch of its FormEpoch commands, its registration, or the sample it was adopted
                                 with */
    Titan__Internal__WorkerQuiesced *quiesced; /* its last report of leaving an epoch; owned */
    agent_message *progress;                   /* newest progress report; owned */
    bool progress_kept;                        /* the progress report is or was in the report queue */
    uint64_t revoked_epoch;                    /* the epoch it must leave; 0 = none */
    int64_t revoked_at;
    struct {
        uint64_t epoch, step, busy_ns; /* the values at the start of the window */
        int64_t at;
        double busy_ms; /* busy time per step in the last whole window; 0 = none */
        bool straggles; /* reported as a straggler and not faster since */
    } step_time;
};

struct agent_job {
    struct agent_job *next;
    uint64_t id;
    job_record *record; /* owned; what is or will be on disk */
    char *checkpoint;   /* newest checkpoint written by a worker here */
    uint64_t checkpoint_step;
    bool finished;                   /* a worker here finished all steps of the job */
    bool complete;                   /* all members of the accepted epoch have their state */
    uint64_t checked_epoch;          /* the accepted epoch for which `watched` was set */
    bool watched;                    /* the job has members here, and this agent can reach the other members' agents */
    struct failover_state *failover; /* owned by failover/; NULL while a coordinator is heard */
    bool lease_paused, lease_revoked;
    uint64_t relay_epoch; /* epoch with WorkerQuiesced reports to be relayed to an acting leader; 0 = none */
    char relay_to[256];   /* the acting leader's node */
};

struct probe {
    struct probe *next;
    uint64_t probe_id, id;
    char *node, *address;
    struct proof_keys keys;
    int sent;
    int64_t next_at, until;
};

struct agent_core {
    char *node, *device, *address, *version, *coordinator;
    struct agent_core_options options;
    struct agent_counters counters;
    uint64_t session_term;
    struct seen_term seen;
    bool up, registered, answered, ending; /* answered: the coordinator answered a heartbeat of this session */
    bool fenced_reported, forged_reported; /* flags of this session */
    bool range_reported;                   /* a datagram out of range was logged in this session */
    bool unproved_reported;
    bool leader_epoch_since; /* an acting leader's epoch was accepted since the registration */
    int64_t leave_at;        /* deadline for its workers to leave the node; 0 = they stay */
    bool draining, quiet;
    uint32_t heartbeat_ms, away_ms, leader_lease_ms;
    uint32_t idle_ms;       /* the coordinator allows an idle agent this interval; 0 = it does not */
    uint32_t promised_ms;   /* the newest heartbeat promised the next within this time; 0 = within heartbeat_ms */
    uint32_t contact_slack; /* promise of the heartbeat that the coordinator answered last */
    uint64_t heartbeat, ids, sessions;
    /* keys of the newest and the previous acknowledgement; no keys = the coordinator has an older version */
    struct proof_keys session_keys;
    struct {
        uint64_t number;
        int64_t at;
        uint32_t promised_ms;
    } heartbeats[HEARTBEATS_KEPT];
    int64_t registration_at, next_heartbeat_at, stream_heartbeat_at, ticked_at;
    int64_t datagram_at; /* send time of the newest heartbeat answered by datagram; INT64_MIN = none */
    int64_t contact_at;  /* send time of the last message that the coordinator answered */
    bool contact;        /* the coordinator answered since this start */
    struct agent_worker *workers;
    struct agent_job *jobs;
    void (*drop_failover)(struct agent_job *j); /* frees failover's state of a job, if it has one */
    struct probe *probes;
    Titan__Internal__NodeGpus *gpus; /* owned; NULL = unknown */
    bool gpus_reported;              /* sent in this session */
    form_epoch **held;               /* commands to form that wait for a heartbeat's answer; owned */
    size_t n_held, cap_held;
    struct report *reports, *reports_last;
    size_t n_reports;
    struct {
        uint64_t job_id, worker_id;
        agent_message *report; /* owned */
    } ended[ENDED_KEPT];
    size_t n_ended;
};

/* --- agent_actions.c ---------------------------------------------------------------------------------------------- */
struct agent_action *agent_action_add(struct agent_actions *out, enum agent_action_kind kind);
void *agent_action_alloc(struct agent_actions *out, size_t bytes);             /* zeroed, in the arena */
void *agent_action_copy(struct agent_actions *out, const ProtobufCMessage *m); /* deep, in the arena */
char *agent_action_text(struct agent_actions *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* sentence: a literal, as in log.h. */
void agent_log(struct agent_actions *out, enum agent_level level, const char *sentence, const char *pairs_fmt, ...)
    __attribute__((format(printf, 4, 5)));
void *agent_message_copy(const ProtobufCMessage *m); /* deep, on the heap */
char *agent_text_copy(const char *text);             /* on the heap; NULL gives "" */

/* --- worker_table.c ----------------------------------------------------------------------------------------------- */
struct agent_worker *agent_worker_find(const struct agent_core *c, uint64_t worker_id); /* NULL = none */
struct agent_worker *agent_worker_add(struct agent_core *c, uint64_t job_id, uint64_t worker_id);
void agent_worker_free(struct agent_worker *w); /* w must be out of the table */
uint32_t agent_workers_alive(const struct agent_core *c);
/* May a worker report this? Workers write their pages themselves. */
bool agent_sample_legal(const struct agent_sample *s);
/* Is the worker, as far as known, in this epoch or an older epoch? */
bool agent_in_epoch(const struct agent_worker *w, uint64_t epoch);

/* --- agent_job_table.c -------------------------------------------------------------------------------------------- */
struct agent_job *agent_job_find(const struct agent_core *c, uint64_t job_id); /* NULL = none */
struct agent_job *agent_job_make(struct agent_core *c, uint64_t job_id);       /* finds the job, or adds an empty job */
void agent_job_free(const struct agent_core *c, struct agent_job *j);          /* j must be out of the table */
bool agent_job_has_workers(const struct agent_core *c, uint64_t job_id);
/* Notes that all members of the epoch have their state, as a worker here shows. */
void agent_job_note_complete(struct agent_core *c, uint64_t job_id, uint64_t epoch);
void agent_job_note_checkpoint(struct agent_core *c, const Titan__Internal__CheckpointWritten *m);
void agent_jobs_trim(struct agent_core *c, struct agent_actions *out); /* forgets the oldest job without use here */

/* --- report_queue.c ----------------------------------------------------------------------------------------------- */
/* Sets the message's term, and sends the message if the session takes it. */
void agent_send(struct agent_core *c, agent_message *m, struct agent_actions *out);
/* Queues a copy for the next session. The caller sends the report now if the session takes it. */
void agent_report_keep(struct agent_core *c, const agent_message *m, int64_t now, struct agent_actions *out);
/* Queues a copy of the report, and sends the report. */
void agent_report(struct agent_core *c, agent_message *m, int64_t now, struct agent_actions *out);
/* Sends a worker's progress report. The core keeps only the newest one, and queues it with the worker's next report of
 * another kind. */
void agent_progress(struct agent_core *c, struct agent_worker *w, agent_message *m, struct agent_actions *out);
void agent_progress_keep(struct agent_core *c, struct agent_worker *w, int64_t now, struct agent_actions *out);
void agent_reports_flush(struct agent_core *c, int64_t now,
                         struct agent_actions *out); /* sends all queued reports, in order */
void agent_reports_resend(struct agent_core *c);     /* makes the next flush send all reports again */
void agent_reports_expire(struct agent_core *c, int64_t now);

/* --- node_gpus.c -------------------------------------------------------------------------------------------------- */
/* Sends the slots' GPUs, unless this session's coordinator has them. */
void agent_gpus_report(struct agent_core *c, struct agent_actions *out);

/* --- heartbeats.c ------------------------------------------------------------------------------------------------- */
/* The coordinator answered a message that was sent at time `at`. */
void agent_coordinator_received(struct agent_core *c, int64_t at);
void agent_heartbeat(struct agent_core *c, int64_t now, struct agent_actions *out);
/* The node is no longer idle. A heartbeat ends its promise, and others follow every heartbeat_ms. */
void agent_heartbeat_resume(struct agent_core *c, int64_t now, struct agent_actions *out);
void agent_heartbeat_session_down(struct agent_core *c, int64_t now);
/* From this time on the coordinator counts as away. Needs a contact. */
int64_t agent_away_at(const struct agent_core *c);
void agent_heartbeat_tick(struct agent_core *c, int64_t now, struct agent_actions *out);
int64_t agent_heartbeat_deadline(const struct agent_core *c);
/* Returns false if m answers no recent heartbeat. */
bool agent_on_heartbeat_answer(struct agent_core *c, const Titan__Internal__HeartbeatAnswer *m);
void agent_on_heartbeat_datagram(struct agent_core *c, const peer_message *m);

/* --- worker_commands.c -------------------------------------------------------------------------------------------- */
/* Sends the command, with the worker's rank, to each worker of the epoch that runs here. */
void agent_command_form(struct agent_core *c, const form_epoch *form, struct agent_actions *out);
void agent_command_revoke(struct agent_core *c, uint64_t job_id, uint64_t epoch, int64_t now,
                          struct agent_actions *out);
void agent_command_pause(struct agent_core *c, uint64_t job_id, uint64_t epoch, struct agent_actions *out);
void agent_command_job(const struct agent_core *c, uint64_t job_id, command_to_worker *command,
                       struct agent_actions *out);
void agent_command_stop(struct agent_worker *w, uint32_t grace_ms, bool must_checkpoint, const char *reason,
                        enum end_cause cause, struct agent_actions *out);

void agent_worker_faulty(struct agent_worker *w, const char *what, struct agent_actions *out);

/* --- held_forms.c ------------------------------------------------------------------------------------------------- */
/* Keeps a copy of the command until a heartbeat is answered. So the next heartbeat goes out at once. */
void agent_form_hold(struct agent_core *c, const form_epoch *m, int64_t now);
void agent_forms_drop(struct agent_core *c);

/* --- exit_cause.c ------------------------------------------------------------------------------------------------- */
bool agent_exit_repeat(struct agent_core *c, uint64_t worker_id, struct agent_actions *out);

/* --- straggler.c -------------------------------------------------------------------------------------------------- */
void agent_straggler_sample(struct agent_core *c, struct agent_worker *w, int64_t now, struct agent_actions *out);

/* --- epoch_fence.c ------------------------------------------------------------------------------------------------ */
enum fence { FENCE_NEW, FENCE_SAME, FENCE_OLDER, FENCE_OTHER };
enum fence agent_fence_form(const struct agent_job *j, const form_epoch *form);
/* Is every field in its range? If not, the message is counted, and ret_why names the field. */
bool agent_fence_range(struct agent_core *c, const ProtobufCMessage *m, struct titan_error *ret_why);
/* Returns false if the message is from an older coordinator. proof: from an acknowledgement; NULL = the message is no
 * acknowledgement. */
bool agent_fence_term(struct agent_core *c, uint64_t term, const ProtobufCBinaryData *proof, struct agent_actions *out);
ProtobufCBinaryData agent_term_proof(struct agent_core *c); /* proof of the highest term; empty = none */
void agent_fenced_epoch(struct agent_core *c, const char *what, uint64_t job_id, uint64_t epoch, uint64_t seen,
                        struct agent_actions *out);
void agent_refuse_form(struct agent_core *c, const struct agent_job *j, const form_epoch *form,
                       struct agent_actions *out);

/* --- epoch_record.c ----------------------------------------------------------------------------------------------- */
uint64_t agent_job_accepted(const struct agent_job *j); /* 0 = none */
/* Records form as accepted. leader: node of the acting leader; NULL = the epoch is the coordinator's. */
void agent_job_accept(struct agent_core *c, struct agent_job *j, const form_epoch *form, const char *leader,
                      struct agent_actions *out);
void agent_job_promise(struct agent_core *c, struct agent_job *j, const form_epoch *form, struct agent_actions *out);
bool agent_bytes_equal(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b);

/* --- probes.c ----------------------------------------------------------------------------------------------------- */
void agent_probe_start(struct agent_core *c, const Titan__Internal__ProbeNode *m, int64_t now,
                       struct agent_actions *out);
void agent_probes_tick(struct agent_core *c, int64_t now, struct agent_actions *out);
int64_t agent_probes_deadline(const struct agent_core *c);
void agent_probes_drop(struct agent_core *c);
void agent_on_pong(struct agent_core *c, const peer_message *m, const char *from, struct agent_actions *out);
void agent_on_ping(struct agent_core *c, const peer_message *m, const char *from, struct agent_actions *out);

/* --- peer_messages.c ---------------------------------------------------------------------------------------------- */
/* Draws number `index` of the series `name` from the core's seed. */
uint64_t agent_draw(const struct agent_core *c, const char *name, uint64_t index);
/* Fills in the fields `term` and `from`, a fresh id if m has none, and the proofs under the keys. Returns the id. */
uint64_t agent_peer_send(struct agent_core *c, const char *to, peer_message *m, const struct proof_keys *keys,
                         struct agent_actions *out);
/* Is m for this node, and proved under one of the keys if there are any? */
bool agent_proof_holds(const struct agent_core *c, const peer_message *m, const struct proof_keys *keys);
/* Counts a datagram without the right proof, and logs the first. */
void agent_unproved(struct agent_core *c, const char *from, struct agent_actions *out);

#endif
