/* core_internal.h - what the files of the agent's core share; see core.h.
 *
 *   core.c       the table of workers; what they and the coordinator say
 *   core_fence.c terms, epochs, promises: what is accepted, and the records of it
 *   core_peer.c  datagrams of other agents, probes
 *   delegate.c   epochs without a coordinator
 *   actions.c    the list of what is to be done */
#ifndef TITAN_DAEMON_AGENT_CORE_INTERNAL_H
#define TITAN_DAEMON_AGENT_CORE_INTERNAL_H

#include "daemon/agent/core.h"
#include "daemon/agent/watch.h"
#include "daemon/proof.h"

typedef Titan__Internal__AgentMessage agent_message;
typedef Titan__Internal__CoordinatorMessage coordinator_message;
typedef Titan__Internal__AgentToWorker worker_order;
typedef Titan__Internal__FormEpoch form_epoch;
typedef Titan__Internal__AgentJobRecord job_record;
typedef Titan__Internal__PeerMessage peer_message;

#define BEATS_KEPT 64
#define ENDED_KEPT 64

/* A report that must arrive, packed. */
struct report {
    struct report *next;
    bool sent; /* in this session */
    int64_t sent_at;
    size_t len;
    uint8_t bytes[];
};

enum end_cause { END_BY_ITSELF, END_ASKED, END_HUNG }; /* why it will end, if it is our doing */

struct aworker {
    struct aworker *next;
    uint64_t job_id, id;
    uint32_t rank;
    char address[256];
    enum end_cause end;
    bool killed;
    bool imposter; /* it has spoken for another one */
    char *fault;   /* what it has said that cannot be: it is killed for it; NULL = nothing */
    struct agent_sample sample;
    struct watch watch;
    uint64_t told_epoch;                       /* newest it was told to form */
    Titan__Internal__WorkerQuiesced *quiesced; /* what it said last when it left an epoch; owned */
    uint64_t revoked_epoch;                    /* must be out of it; 0 = of none */
    int64_t revoked_at;
    struct {
        uint64_t epoch, step, busy_ns; /* where the window began */
        int64_t at;
        double busy_ms; /* per step, of the last whole window; 0 = none */
        bool straggles; /* told of, and did not do better since */
    } pace;
};

struct delegation; /* delegate.c */

struct ajob {
    struct ajob *next;
    uint64_t id;
    job_record *record; /* owned; what is or will be on disk */
    char *checkpoint;   /* newest that a worker here has written */
    uint64_t checkpoint_step;
    bool finished;         /* a worker here has done all steps of it */
    bool complete;         /* all members of the accepted epoch have had their state */
    uint64_t looked_epoch; /* of this accepted epoch it is known whether there is something to watch: */
    bool watched;
    struct delegation *delegation; /* NULL while it needs none */
    bool lease_paused, lease_revoked;
    uint64_t relay_epoch; /* what workers say when they leave it goes to a delegate; 0 = none asked */
    char relay_to[256];   /* its node */
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
    bool up, welcomed, answered, ending; /* answered: a beat of this session was */
    bool fenced_said, imposter_said;     /* of this session */
    bool range_said;                     /* of a datagram; of this session */
    bool unproved_said;
    bool delegated_since; /* an epoch of a delegate has been accepted since the hello */
    int64_t leave_at;     /* when its workers are to be gone; 0 = they are not */
    bool draining, quiet;
    uint32_t beat_ms, away_ms, delegate_lease_ms;
    uint64_t beat, ids, sessions;
    struct proof_keys session_keys; /* of the newest welcome, and of the one before; none = an older coordinator's */
    struct {
        uint64_t number;
        int64_t at;
    } beats[BEATS_KEPT];
    int64_t hello_at, next_beat_at, stream_beat_at, ticked_at;
    int64_t datagram_at; /* when the newest beat was sent that a datagram has answered; INT64_MIN = none */
    int64_t contact_at;  /* when what the coordinator answered last was sent */
    bool contact;        /* ... since this start, at all */
    struct aworker *workers;
    struct ajob *jobs;
    struct probe *probes;
    form_epoch **held; /* orders that wait for a sign that they are of now; owned */
    size_t n_held, cap_held;
    struct report *reports, *reports_last;
    size_t n_reports;
    struct {
        uint64_t job_id, worker_id;
        agent_message *report; /* WorkerExited; owned */
    } ended[ENDED_KEPT];
    size_t n_ended;
};

/* --- actions.c --- */
struct agent_action *agent_action_add(struct agent_actions *out, enum agent_action_kind kind);
void *agent_action_alloc(struct agent_actions *out, size_t bytes);             /* zeroed, of the arena */
void *agent_action_copy(struct agent_actions *out, const ProtobufCMessage *m); /* deep, in the arena */
char *agent_action_text(struct agent_actions *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* sentence is a literal, as in log.h. */
void agent_say(struct agent_actions *out, enum agent_level level, const char *sentence, const char *pairs_fmt, ...)
    __attribute__((format(printf, 4, 5)));
void *agent_message_copy(const ProtobufCMessage *m); /* deep, on the heap */

/* --- core.c --- */
struct aworker *agent_worker_of(const struct agent_core *c, uint64_t worker_id);
struct ajob *agent_job_of(struct agent_core *c, uint64_t job_id, bool make);
void agent_send(struct agent_core *c, agent_message *m, struct agent_actions *out);
void agent_report(struct agent_core *c, agent_message *m, int64_t now, struct agent_actions *out);
void agent_tell(const struct agent_core *c, const struct aworker *w, worker_order *order, struct agent_actions *out);
/* To all of the job here that the order to form names, and their ranks. */
void agent_tell_form(struct agent_core *c, const form_epoch *form, struct agent_actions *out);
void agent_tell_revoke(struct agent_core *c, uint64_t job_id, uint64_t epoch, int64_t now, struct agent_actions *out);
void agent_beat_answered(struct agent_core *c, const peer_message *m); /* by a datagram */
void agent_tell_pause(struct agent_core *c, uint64_t job_id, uint64_t epoch, struct agent_actions *out);
uint32_t agent_alive(const struct agent_core *c);

/* Is it in an epoch up to this one, as far as we know? */
bool agent_in_epoch(const struct aworker *w, uint64_t epoch);

/* --- core_fence.c --- */
enum fence { FENCE_NEW, FENCE_SAME, FENCE_OLDER, FENCE_OTHER };
enum fence agent_fence_form(const struct ajob *j, const form_epoch *form);
/* Is every field what it can be? Else it is counted, and ret_why says which is not. */
bool agent_fence_range(struct agent_core *c, const ProtobufCMessage *m, struct titan_error *ret_why);
/* false: of an older coordinator. proof: the welcome's; NULL = this is none. */
bool agent_fence_term(struct agent_core *c, uint64_t term, const ProtobufCBinaryData *proof, struct agent_actions *out);
ProtobufCBinaryData agent_term_proof(struct agent_core *c); /* of the highest term; empty = there is none */
void agent_fenced_epoch(struct agent_core *c, const char *what, uint64_t job_id, uint64_t epoch, uint64_t seen,
                        struct agent_actions *out);
/* The coordinator's, or with a delegate's node a delegated one: recorded as accepted. */
void agent_job_accept(struct agent_core *c, struct ajob *j, const form_epoch *form, const char *delegate,
                      struct agent_actions *out);
void agent_job_promise(struct agent_core *c, struct ajob *j, const form_epoch *form, struct agent_actions *out);
void agent_refuse_form(struct agent_core *c, const struct ajob *j, const form_epoch *form, struct agent_actions *out);
uint64_t agent_job_accepted(const struct ajob *j); /* 0 = none */

/* --- core_peer.c --- */
void agent_probe_start(struct agent_core *c, const Titan__Internal__ProbeNode *m, int64_t now,
                       struct agent_actions *out);
void agent_probes_tick(struct agent_core *c, int64_t now, struct agent_actions *out);
int64_t agent_probes_deadline(const struct agent_core *c);
void agent_probe_free(struct probe *p);
/* A datagram without the right proof: counted, and said once. */
void agent_unproved(struct agent_core *c, const char *from, struct agent_actions *out);
/* Drawn from the core's seed: the index-th of that name. */
uint64_t agent_draw(const struct agent_core *c, const char *name, uint64_t index);
/* term, from and, when 0, a fresh id are filled in, and the proofs under the keys. Returns the id. */
uint64_t agent_peer_send(struct agent_core *c, const char *to, peer_message *m, const struct proof_keys *keys,
                         struct agent_actions *out);

/* --- delegate.c --- */
bool agent_coordinator_away(const struct agent_core *c, int64_t now);
void agent_delegate_peer(struct agent_core *c, const peer_message *m, const char *from, int64_t now,
                         struct agent_actions *out);
void agent_delegate_quiesced(struct agent_core *c, const Titan__Internal__WorkerQuiesced *m, int64_t now,
                             struct agent_actions *out);
void agent_delegate_tick(struct agent_core *c, int64_t now, struct agent_actions *out);
int64_t agent_delegate_deadline(const struct agent_core *c);
void agent_delegation_free(struct delegation *d);

#endif
